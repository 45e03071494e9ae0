"""Settings of a client: address, credential, timeouts, retries, TLS. Frozen and validated."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from tenantq.domain.validation import between, check_field
from tenantq.errors import Invalid, Limited, TenantqError, Unavailable
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.randomness import Randomness, system_randomness

URL_DEFAULT: Final = "http://127.0.0.1:7070"
TIMEOUT_MS_MAX: Final = 3_600_000
_RetryCount = Annotated[int, between(0, 1_000)]
_PauseMs = Annotated[int, between(0, TIMEOUT_MS_MAX)]
_ReplyTimeoutMs = Annotated[int, between(1, TIMEOUT_MS_MAX)]
_ConnectionsMax = Annotated[int, between(1, 10_000)]


class Connect(Protocol):
    """Opens a connection to the server: TCP, TLS, or in memory."""

    async def __call__(self, make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.BaseProtocol:
        """Return a connected protocol. Raises OSError."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often a call is retried, and after which delays.

    The delay before the n-th retry is a random part of ``base_ms * 2^(n - 1)``, at most ``max_ms``. The server's ``Retry-After`` is
    added to it. If the server asks for more than ``max_ms``, the call is not retried and raises the error.
    """

    count: int = 5
    base_ms: int = 100
    max_ms: int = 5_000

    def __post_init__(self) -> None:
        check_field("count", self.count, _RetryCount)
        check_field("base_ms", self.base_ms, _PauseMs)
        check_field("max_ms", self.max_ms, _PauseMs)

    def pause_ms(self, retry: int, error: TenantqError, randomness: Randomness) -> int | None:
        """Return the delay before retry number ``retry`` (from 1), or None for no retry."""
        if retry > self.count:
            return None
        asked_ms = error.retry_after_ms if isinstance(error, Limited | Unavailable) else 0
        if asked_ms > self.max_ms:
            return None
        return asked_ms + Backoff(self.base_ms, self.max_ms).full_jitter_ms(retry, randomness)


NO_RETRIES: Final = Retries(count=0)


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS settings of ``https`` connections. Without a CA file the system's authorities are trusted."""

    ca_file: str | None = None  # PEM; trust only these authorities
    certificate_file: str | None = None  # PEM; the client's certificate, for mTLS
    key_file: str | None = None  # PEM; its private key, if not in the same file
    context: ssl.SSLContext | None = None  # replaces all other fields

    def build(self) -> ssl.SSLContext:
        """Return the SSL context. Raises Invalid naming the wrong file."""
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
            wrong = f"no such file: {missing[0]}" if missing else f"not a valid PEM file: {' or '.join(names)}"
            raise Invalid(f"tls: {wrong}") from error
        return context


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a client. Create them with ``parse``."""

    host: str
    port: int
    prefix: str  # path before /v1, if the server is behind a proxy
    secure: bool
    token: str | None = None
    timeout_ms: int = 10_000  # for a reply; a call that waits at the server gets its wait on top
    connect_timeout_ms: int = 5_000
    retries: Retries = Retries()
    connections: int = 32
    coalesce: bool = True  # send concurrent adds, acks and polls of one queue together
    follow: bool = True  # go directly to the shard that owns a tenant
    tls: Tls = Tls()
    user_agent: str = f"tenantq-python/{version('tenantq')}"
    clock: Clock = msgspec.field(default_factory=SystemClock)
    randomness: Randomness = msgspec.field(default_factory=system_randomness)
    connect: Connect | None = None  # instead of TCP
    others: tuple[tuple[str, int], ...] = ()  # hosts and ports of further servers of the same cluster

    def __post_init__(self) -> None:
        check_field("timeout_ms", self.timeout_ms, _ReplyTimeoutMs)
        check_field("connect_timeout_ms", self.connect_timeout_ms, _ReplyTimeoutMs)
        check_field("connections", self.connections, _ConnectionsMax)

    def __repr__(self) -> str:
        """Show the address, never the token."""
        return f"<tenantq settings for {self.url}>"

    @property
    def origin(self) -> str:
        """Scheme and host, as in a URL."""
        return f"{'https' if self.secure else 'http'}://{f'[{self.host}]' if ':' in self.host else self.host}"

    @property
    def url(self) -> str:
        """The address without credentials."""
        return f"{self.origin}:{self.port}{self.prefix}"


def parse(
    url: str | Sequence[str],
    token: str | None,
    *,
    retries: Retries | int = Retries(),  # noqa: B008  # frozen
    **options: Any,
) -> Settings:
    """Return settings for an address, or for those of several servers of one cluster, as a list or separated by commas.

    ``options`` are fields of Settings. Raises Invalid naming the wrong argument.
    """
    if not isinstance(retries, Retries):
        retries = Retries(count=check_field("retries", retries, _RetryCount))
    urls = url.split(",") if isinstance(url, str) else list(url) if isinstance(url, list | tuple) else [url]
    (secure, host, port, prefix), *others = [_split(one) for one in urls or [""]]
    if any((one[0], one[3]) != (secure, prefix) for one in others):
        raise Invalid("url: all addresses must have the same scheme and path")
    return Settings(
        host=host,
        port=port,
        prefix=prefix,
        secure=secure,
        token=_check_token(token),
        retries=retries,
        others=tuple((one[1], one[2]) for one in others),
        **options,
    )


def _split(url: object) -> tuple[bool, str, int, str]:
    example = f"for example {URL_DEFAULT}"
    if type(url) is not str:
        raise Invalid(f"url: must be a string, {example}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Invalid(f"url: malformed address. Use a URL, {example}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Invalid(f"url: must start with http:// or https:// and name a host, {example}")
    if parts.username is not None or parts.password is not None:
        raise Invalid("url: must not contain a credential. Pass it as token.")
    if parts.query or parts.fragment:
        raise Invalid("url: must not contain a query or fragment")
    if not url.isascii() or any(character <= " " for character in url):
        raise Invalid("url: must be ASCII without spaces")
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/")


def _check_token(token: object) -> str | None:
    if token is None:
        return None
    if type(token) is not str or not token or not token.isascii() or any(not "!" <= one <= "~" for one in token):
        raise Invalid("token: must be printable ASCII without spaces")  # the error must not reveal it
    return token
