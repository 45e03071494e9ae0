"""Addresses of Redis stores: ``redis://``, ``rediss://``, ``unix://`` or ``redis+cluster://`` with one or more nodes."""

from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from tenantq.errors import Invalid
from tenantq.store.host_port import parse_host

_SCHEMES: Final = {
    "redis": (False, False),
    "rediss": (False, True),
    "redis+cluster": (True, False),
    "rediss+cluster": (True, True),
}
"""By scheme: whether it is a cluster, and whether it uses TLS."""
_PORT: Final = 6379
_SHAPE: Final = (
    "redis://[user:password@]HOST[:PORT][/DB], rediss:// for TLS, redis+cluster://HOST:PORT,HOST:PORT, unix:///PATH"
)


class RedisAddress(msgspec.Struct, frozen=True):
    """A parsed address. ``str`` of it never shows the password."""

    nodes: tuple[tuple[str, int], ...] = ()
    cluster: bool = False
    tls: bool = False
    ca_file: str | None = None
    username: str | None = None
    password: str | None = None
    db: int = 0
    socket: str | None = None  # path of a unix socket

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix://{self.socket}"
        scheme = ("rediss" if self.tls else "redis") + ("+cluster" if self.cluster else "")
        nodes = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.nodes)
        return f"{scheme}://{nodes}" + (f"/{self.db}" if self.db else "")

    __repr__ = __str__


def parse_address(url: str) -> RedisAddress:
    """Return the address. Raises Invalid, whose text never contains the URL, because that may contain a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid(f"store: malformed URL. Use {_SHAPE}") from None  # the text of the cause contains the URL
    try:
        query = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise Invalid("store: the query of the URL is not name=value. Use ?ca_file=FILE or remove it.") from None
    ca_file = query.pop("ca_file", [None])[0]
    if query:
        raise Invalid("store: unknown parameter in the query of the URL (allowed: ca_file)")
    credentials, _, nodes = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    known = RedisAddress(username=unquote(username) or None, password=unquote(password) or None, ca_file=ca_file)
    if parts.scheme == "unix" and parts.path:
        return msgspec.structs.replace(known, socket=unquote(parts.path))
    if parts.scheme not in _SCHEMES:
        raise Invalid(f"store: unknown scheme. Use {_SHAPE}")
    cluster, tls = _SCHEMES[parts.scheme]
    if not cluster and "," in nodes:
        raise Invalid("store: several nodes need redis+cluster://")
    return msgspec.structs.replace(
        known, nodes=tuple(parse_host(one, _PORT, _SHAPE) for one in nodes.split(",")), cluster=cluster, tls=tls, db=_db(parts.path, cluster=cluster)
    )  # fmt: skip


def _db(path: str, *, cluster: bool) -> int:
    text = path.strip("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise Invalid("store: the path of the URL must be the number of a database (0 to 65535)")
    if cluster and int(text):
        raise Invalid("store: a Redis Cluster has only database 0. Remove the path of the URL.")
    return int(text)
