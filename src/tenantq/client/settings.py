"""How a client reaches the server: address, credential, patience, TLS. One frozen value, checked when it is made."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from tenantq.domain.message import check_int
from tenantq.errors import Invalid, Limited, TenantqError, Unavailable
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.randomness import Randomness, system_randomness

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

URL_DEFAULT: Final = "http://127.0.0.1:7070"
TIMEOUT_MS_MAX: Final = 3_600_000


class Connect(Protocol):
    """Opens a connection to the server: TCP, TLS, or in memory."""

    async def __call__(self, make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.BaseProtocol:
        """Return the protocol that was made, connected. Raises OSError."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often a call is tried again, and how long it pauses before.

    The pause before the n-th retry is a random part of ``base_ms * 2^(n - 1)``, at most ``max_ms``. What the server asks for in
    ``Retry-After`` is added to it; a server that asks for more than ``max_ms`` is not waited for: the caller gets the error.
    """

    count: int = 5
    base_ms: int = 100
    max_ms: int = 5_000

    def __post_init__(self) -> None:
        check_int("count", self.count, 0, 1_000)
        check_int("base_ms", self.base_ms, 0, TIMEOUT_MS_MAX)
        check_int("max_ms", self.max_ms, 0, TIMEOUT_MS_MAX)

    def pause_ms(self, retry: int, error: TenantqError, randomness: Randomness) -> int | None:
        """Return the pause before retry number ``retry`` (from 1), or None where there is to be none."""
        if retry > self.count:
            return None
        asked_ms = error.retry_after_ms if isinstance(error, Limited | Unavailable) else 0
        if asked_ms > self.max_ms:
            return None
        return asked_ms + Backoff(self.base_ms, self.max_ms).full_jitter_ms(retry, randomness)


NO_RETRIES: Final = Retries(count=0)


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """What an ``https`` connection checks and shows. Without a CA file the system's authorities count."""

    ca_file: str | None = None  # PEM; trust these authorities, and no others
    certificate_file: str | None = None  # PEM; the client's own certificate, where the server asks for one
    key_file: str | None = None  # PEM; its private key, if it is not in the same file
    context: ssl.SSLContext | None = None  # instead of all of these

    def build(self) -> ssl.SSLContext:
        """Return the context, or raise Invalid naming the file that is wrong."""
        if self.context is not None:
            return self.context
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            names = [name for name in (self.ca_file, self.certificate_file, self.key_file) if name]
            missing = [name for name in names if not Path(name).is_file()]
            wrong = f"there is no file {missing[0]}" if missing else f"one of {', '.join(names)} is no usable PEM file"
            raise Invalid(f"tls: {wrong}") from error
        return context


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a client is made from. ``parse`` checks it."""

    host: str
    port: int
    prefix: str  # what stands before /v1, where the server is behind a path of another
    secure: bool
    token: str | None = None
    timeout_ms: int = 10_000  # for an answer; a call that waits at the server gets that on top
    connect_timeout_ms: int = 5_000
    retries: Retries = Retries()
    connections: int = 32
    coalesce: bool = True  # send concurrent adds, acks and polls of one queue together
    follow: bool = True  # go straight to the shard that has a tenant, where several are behind the address
    tls: Tls = Tls()
    user_agent: str = "tenantq-python"
    clock: Clock = msgspec.field(default_factory=SystemClock)
    randomness: Randomness = msgspec.field(default_factory=system_randomness)
    connect: Connect | None = None  # instead of TCP

    def __repr__(self) -> str:
        """Show where it leads, and never the token."""
        return f"<tenantq settings for {self.url}>"

    @property
    def url(self) -> str:
        """The address, without any credential."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.prefix}"


def parse(
    url: str,
    token: str | None,
    *,
    timeout_ms: int,
    connect_timeout_ms: int,
    retries: Retries | int,
    connections: int,
    coalesce: bool,
    tls: Tls,
    follow: bool = True,
    connect: Connect | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Settings:
    """Return the settings, or raise Invalid naming the argument that is wrong."""
    check_int("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
    check_int("connect_timeout_ms", connect_timeout_ms, 1, TIMEOUT_MS_MAX)
    check_int("connections", connections, 1, 10_000)
    if not isinstance(retries, Retries):
        retries = Retries(count=check_int("retries", retries, 0, 1_000))
    secure, host, port, prefix = _split(url)
    return Settings(
        host=host,
        port=port,
        prefix=prefix,
        secure=secure,
        token=_check_token(token),
        timeout_ms=timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
        retries=retries,
        connections=connections,
        coalesce=coalesce,
        follow=follow,
        tls=tls,
        connect=connect,
        clock=clock or SystemClock(),
        randomness=randomness or system_randomness(),
    )


def _split(url: object) -> tuple[bool, str, int, str]:
    example = f"for example {URL_DEFAULT}"
    if type(url) is not str:
        raise Invalid(f"url: must be text, {example}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Invalid(f"url: is malformed; give an address, {example}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Invalid(f"url: must start with http:// or https:// and name a host, {example}")
    if parts.username is not None or parts.password is not None:
        raise Invalid("url: must not hold a credential; give it as token")
    if parts.query or parts.fragment:
        raise Invalid("url: must not have a query or a fragment")
    if not url.isascii() or any(character <= " " for character in url):
        raise Invalid("url: must be ASCII without spaces")
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/")


def _check_token(token: object) -> str | None:
    if token is None:
        return None
    if type(token) is not str or not token or not token.isascii() or any(not "!" <= one <= "~" for one in token):
        raise Invalid("token: must be printable ASCII without spaces")  # never shown: it is a secret
    return token
