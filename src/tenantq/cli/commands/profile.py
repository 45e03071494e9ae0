"""``tenantq profile``: servers and credentials by name."""

import sys
from typing import Final

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.options import name_argument
from tenantq.cli.output import Output, Table, output_command
from tenantq.cli.profiles import Profile, load_profiles, profiles_file, save_profiles
from tenantq.client import Client
from tenantq.client.settings import URL_DEFAULT
from tenantq.errors import Conflict

_PEM_FILE: Final = click.Path(exists=True, dir_okay=False, resolve_path=True)


@click.group(cls=CommandGroup)
def profile() -> None:
    """Manage named servers and tokens, stored in a file that only you can read."""


@output_command(profile)
@name_argument
@click.option("--url", default=URL_DEFAULT, metavar="URL", help="Server URL.")
@click.option("--token", metavar="TOKEN", help="Token; - reads it from stdin.  [default: prompt]")
@click.option("--tenant", metavar="NAME", help="Default tenant of commands.")
@click.option("--ca-file", type=_PEM_FILE, help="PEM file of trusted certificate authorities, for HTTPS.")
@click.option("--cert-file", type=_PEM_FILE, help="PEM file of the client certificate.")
@click.option("--key-file", type=_PEM_FILE, help="PEM file of the client certificate's key.")
@click.option("--use", "current", is_flag=True, help="Set as the default profile. The first profile always becomes the default.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace an existing profile.")
def add(*, name: str, url: str, token: str | None, current: bool, replace: bool, **rest: str | None) -> Output:
    """Store a server and a token as a profile. Unlike --token, this keeps the token out of the process list and shell history."""
    profiles = load_profiles()
    if name in profiles.profiles and not replace:
        raise Conflict(f"profile {name} already exists; replace it with --replace")
    token = _token(token)
    Client(url, token).close()  # raises Invalid if one of them is malformed
    profiles.profiles[name] = Profile(url=url, token=token, **rest)
    if current or profiles.current is None:
        profiles.current = name
    save_profiles(profiles)
    file = str(profiles_file())
    return Output({"name": name, "url": url, "file": file}, f"stored profile {name} in {file}")


@output_command(profile, name="list")
def list_profiles() -> Output:
    """List profiles, without tokens."""
    profiles = load_profiles()
    shown = [
        {"name": name, "url": one.url, "tenant": one.tenant, "token": one.token is not None, "current": name == profiles.current}
        for name, one in profiles.profiles.items()
    ]  # fmt: skip
    rows = [(one["name"], one["url"], one["tenant"], one["token"], "*" if one["current"] else "") for one in shown]
    return Output({"profiles": shown}, Table(("name", "url", "tenant", "token", "current"), rows, "no profiles"))


@output_command(profile, name_argument)
def use(*, name: str) -> Output:
    """Set the default profile."""
    profiles = load_profiles()
    url = profiles.get(name).url
    profiles.current = name
    save_profiles(profiles)
    return Output({"name": name, "url": url}, f"using profile {name}: {url}")


@output_command(profile, name_argument)
def remove(*, name: str) -> Output:
    """Remove a profile. Its token stays valid until revoked with 'tenantq key revoke'."""
    profiles = load_profiles()
    profiles.get(name)
    del profiles.profiles[name]
    if profiles.current == name:
        profiles.current = None
    save_profiles(profiles)
    return Output({"name": name, "removed": True}, f"removed profile {name}")


def _token(given: str | None) -> str | None:
    if given is None and sys.stdin.isatty():
        given = str(click.prompt("Token", hide_input=True, default="", show_default=False, err=True))
    elif given in (None, "-"):
        given = sys.stdin.readline()
    return given.strip() or None if given is not None else None
