"""Addresses of remote stores: the scheme of the URL says which kind it is."""

from typing import Final

from tenantq.errors import Invalid
from tenantq.store.postgres.address import SCHEMES, PostgresAddress, parse_postgres_address
from tenantq.store.redis.address import RedisAddress, parse_address

StoreAddress = RedisAddress | PostgresAddress
_REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")


def store_hosts(address: StoreAddress) -> tuple[tuple[str, int], ...]:
    """Return the hosts and ports of a store; none if it is at a local socket."""
    hosts = address.nodes if isinstance(address, RedisAddress) else address.hosts
    return tuple((host, port) for host, port in hosts if not host.startswith("/"))


def parse_store(url: str) -> StoreAddress:
    """Return the address. Raises Invalid, whose text never contains the URL, because that may contain a password."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme in SCHEMES:
        return parse_postgres_address(url)
    if separator and scheme not in _REDIS:
        raise Invalid(
            "store: unknown kind of URL. Use redis://, rediss://, redis+cluster://, rediss+cluster://, unix:// or postgresql://"
        )
    return parse_address(url)
