"""The server, credential and tenant that a command works with."""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import click
import msgspec
from click.core import ParameterSource

from tenantq.cli.command_group import ConnectionOption
from tenantq.cli.options import duration, options
from tenantq.cli.output import Output, output_command
from tenantq.cli.profiles import Profile, Profiles, load_profiles
from tenantq.client import NO_RETRIES, AsyncClient, Client, Platform, Queue, Retries, Tenant
from tenantq.client.settings import URL_DEFAULT
from tenantq.errors import BadAnswer, ConnectionFailed, Invalid, Unauthenticated

R = TypeVar("R")

_RETRIES: Final = Retries(count=3)
_option = functools.partial(click.option, cls=ConnectionOption)
_OPTIONS: Final = (
    _option("--url", envvar="TENANTQ_URL", show_envvar=True, metavar="URL", help=f"Server URL.  [default: the profile's, or {URL_DEFAULT}]"),
    _option("--token", envvar="TENANTQ_TOKEN", show_envvar=True, metavar="TOKEN", help="API key or JWT.  [default: the profile's]"),
    _option("--profile", envvar="TENANTQ_PROFILE", show_envvar=True, metavar="NAME", help="Profile with URL and token, stored by 'tenantq profile add'."),
    _option("--tenant", envvar="TENANTQ_TENANT", show_envvar=True, metavar="NAME", help="Tenant to act on.  [default: the token's own]"),
    _option("--timeout", "timeout_ms", type=duration, default="10s", help="Time limit for a reply."),
    _option("--ca-file", metavar="FILE", help="PEM file of trusted certificate authorities, for HTTPS."),
    _option("--cert-file", metavar="FILE", help="PEM file of the client certificate, for HTTPS."),
    _option("--key-file", metavar="FILE", help="PEM file of the client certificate's key."),
)  # fmt: skip
_CHOOSING: Final = ("profile", *Profile.__struct_fields__)


class ServerConnection:
    """A client, created when it is first used, and the tenant that the command is about."""

    def __init__(self, target: Profile, timeout_ms: int, given: frozenset[str] = frozenset()) -> None:
        self.target = target
        self.given = given  # options that were set by flag or environment, not by a profile or default
        self.timeout_ms = timeout_ms
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client. It retries what is safe to retry."""
        if self._client is None:
            self._client = self._open(self.target)
        return self._client

    def async_client(self) -> AsyncClient:
        """Return a new asyncio client without retries, to be closed by the caller."""
        target = self.target
        return AsyncClient(target.url, target.token, timeout_ms=self.timeout_ms, retries=NO_RETRIES, tls=target.tls)

    def queue(self, name: str) -> Queue:
        """Return a queue of the given tenant, by default the credential's own."""
        tenant = self.target.tenant
        return self.client.queue(name) if tenant is None else self.client.tenant(tenant).queue(name)

    def tenant(self) -> Tenant:
        """Return the given tenant, by default the credential's own."""
        return self.client.tenant(self.target.tenant or self.client.own_tenant().name)

    def owner(self, *, platform: bool) -> Tenant | Platform:
        """Return the platform or the tenant. Both have keys and an audit trail."""
        if not platform:
            return self.tenant()
        if self.target.tenant is not None and "tenant" in self.given:
            raise click.UsageError("give --tenant or --platform, not both")
        return self.client.platform()

    def open_profile(self, name: str) -> Client:
        """Return a client for the server of a profile, to be closed by the caller."""
        return self._open(load_profiles().get(name))

    def open_url(self, url: str, token: str | None) -> Client:
        """Return a client for another server that trusts the same authorities, to be closed by the caller."""
        return self._open(msgspec.structs.replace(self.target, url=url, token=token))

    def probe(self, url: str, timeout_ms: int) -> Client:
        """Return a client without retries for another server, with the credential of a profile for that address.

        Without such a profile it uses the token that was given. The token of a profile is only for the profile's server.
        The caller closes the client.
        """
        known = (one for one in load_profiles().profiles.values() if _same_url(one.url, url))
        token = self.target.token if _same_url(self.target.url, url) or "token" in self.given else None
        profile = next(known, msgspec.structs.replace(self.target, url=url, token=token))
        return Client(profile.url, profile.token, timeout_ms=timeout_ms, retries=NO_RETRIES, tls=profile.tls)

    def _open(self, target: Profile) -> Client:
        return Client(target.url, target.token, timeout_ms=self.timeout_ms, retries=_RETRIES, tls=target.tls)

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()


def connected(function: Callable[..., R]) -> Callable[..., R]:
    """Add the options of a connection to a command, and pass the connection on as the first argument."""

    @functools.wraps(function)
    def command(*args: Any, timeout_ms: int, **rest: Any) -> R:
        context = click.get_current_context()
        given = {name: rest.pop(name) for name in _CHOOSING}
        flags = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        named = frozenset(name for name, text in given.items() if text)
        connection = ServerConnection(choose(given, flags), timeout_ms, named)
        try:
            return function(connection, *args, **rest)
        except Unauthenticated as error:
            if connection.target.token is None:
                error.args = (f"{error.message} Give a token with --token, TENANTQ_TOKEN or a profile.",)
            raise
        except BadAnswer as error:
            error.args = (f"{connection.target.url}: {error.message}",)
            raise
        except ConnectionFailed as error:
            error.args = (
                f"{connection.target.url}: {error.message}. Is the server running? Start one with 'tenantq serve', or set --url",
            )
            raise
        finally:
            connection.close()

    return options(*_OPTIONS)(command)


def server_command(
    group: click.Group | None = None, *parameters: Callable[[Any], Any], **attributes: Any
) -> Callable[[Callable[..., Output]], click.Command]:
    """Like ``output_command``, for a function that gets the connection to a server as its first argument."""
    declare = output_command(group, *parameters, **attributes)
    return lambda function: declare(connected(function))


def _same_url(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _profiles(given: Mapping[str, str | None]) -> Profiles:
    """Return the stored profiles. A damaged file is ignored if the command line gives everything itself."""
    try:
        return load_profiles()
    except Invalid:
        if given["profile"] or not (given["url"] and given["token"]):
            raise
        return Profiles()


def choose(given: Mapping[str, str | None], flags: Collection[str]) -> Profile:
    """Return the server and credential by precedence: flag, environment, profile, default. ``flags`` names the given flags.

    A profile named by a flag precedes the environment. The token of a profile is only for the profile's server, and its tenant
    only for its token.
    """
    profiles = _profiles(given)
    name = given["profile"] or profiles.current
    profile = profiles.get(name) if name is not None else Profile(url=URL_DEFAULT)
    ours = {field: text for field, text in given.items() if text and ("profile" not in flags or field in flags)}
    ours.pop("profile", None)
    if not _same_url(ours.get("url", profile.url), profile.url):
        profile = Profile(url=ours["url"])
    if "token" in ours:
        profile = msgspec.structs.replace(profile, tenant=None)
    return msgspec.structs.replace(profile, **ours)
