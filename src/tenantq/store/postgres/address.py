"""Addresses of PostgreSQL stores: ``postgresql://`` with one or more hosts, as libpq reads them."""

from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from tenantq.errors import Invalid
from tenantq.store.host_port import parse_host, parse_port

SCHEMES: Final = ("postgresql", "postgres")
_PORT: Final = 5432
_PARAMETERS: Final = frozenset(("host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding"))
_SHAPE: Final = "postgresql://[user[:password]@]HOST[:PORT][,HOST[:PORT]]/DATABASE[?sslmode=verify-full]"


class PostgresAddress(msgspec.Struct, frozen=True):
    """A parsed address. ``str`` of it never shows the password."""

    hosts: tuple[tuple[str, int], ...]
    database: str = ""  # empty: the user's name, as in libpq
    user: str | None = None
    password: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()  # for TLS, by libpq's names

    def __str__(self) -> str:
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts)
        return f"postgresql://{hosts}/{self.database}"

    __repr__ = __str__

    def connection(self) -> dict[str, str]:
        """Return libpq's parameters."""
        named = {"dbname": self.database, "user": self.user, "password": self.password}
        return {
            "host": ",".join(host for host, _ in self.hosts),
            "port": ",".join(str(port) for _, port in self.hosts),
            **{name: value for name, value in named.items() if value},
            **dict(self.parameters),
        }


def parse_postgres_address(url: str) -> PostgresAddress:
    """Return the address. Raises Invalid, whose text never contains the URL, because that may contain a password."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise Invalid(f"store: malformed URL. Use {_SHAPE}") from None  # the text of the cause contains the URL
    if query.keys() - _PARAMETERS:
        raise Invalid(f"store: unknown parameter in the query of the URL (allowed: {', '.join(sorted(_PARAMETERS))})")
    credentials, _, nodes = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if socket := query.pop("host", ""):  # the directory of a local socket
        hosts: tuple[tuple[str, int], ...] = ((socket, parse_port(query.pop("port", str(_PORT)), _SHAPE)),)
    else:
        hosts = tuple(parse_host(one, _PORT, _SHAPE) for one in nodes.split(","))
    return PostgresAddress(
        hosts=hosts,
        database=unquote(parts.path.strip("/")),
        user=unquote(user) or None,
        password=unquote(password) or None,
        parameters=tuple(sorted(query.items())),
    )
