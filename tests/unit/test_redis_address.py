"""Redis addresses: which are accepted, which are refused, and that a password is never shown."""

from __future__ import annotations

import pytest

from tenantq.errors import Invalid
from tenantq.settings import ServerSettings
from tenantq.store.redis.address import RedisAddress, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", RedisAddress(nodes=(("host", 6379),))),
        ("redis://host:1/3", RedisAddress(nodes=(("host", 1),), db=3)),
        ("redis://:p%40ss@host:1", RedisAddress(nodes=(("host", 1),), password="p@ss")),  # noqa: S106  # of this test only
        ("rediss://u:p@host:1?ca_file=/x", RedisAddress(nodes=(("host", 1),), username="u", password="p", tls=True, ca_file="/x")),  # noqa: S106  # as above
        ("redis+cluster://a:1,b:2,[::1]:3", RedisAddress(nodes=(("a", 1), ("b", 2), ("::1", 3)), cluster=True)),
        ("rediss+cluster://a", RedisAddress(nodes=(("a", 6379),), cluster=True, tls=True)),
        ("unix:///run/redis.sock", RedisAddress(socket="/run/redis.sock")),
    ],
)  # fmt: skip
def test_addresses_are_parsed(url: str, address: RedisAddress) -> None:
    """Nodes, user, database and TLS."""
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "", "rocks", "http://host", "redis://", "redis://:s3cret@", "redis://host:0", "redis://host:x", "redis://host:99999", "redis://a,b", "unix://",
        "redis://host/x", "redis+cluster://a/1", "redis://:s3cret@host?what=1", "redis://:s3cret@host?x", "redis+cluster://a,,b", "redis://:s3cret@[::1",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_showing_it(url: str) -> None:
    """It may contain a password."""
    with pytest.raises(Invalid, match=r"^store: ") as refused:
        parse_address(url)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None  # the chained error would show it


def test_a_password_is_never_shown() -> None:
    """Neither by str nor by repr."""
    address = parse_address("rediss+cluster://user:s3cret@a:1,[::1]:2")
    assert str(address) == repr(address) == "rediss+cluster://a:1,[::1]:2"
    assert "s3cret" not in repr(ServerSettings(store="redis://user:s3cret@a:1"))
    assert f"{[address]}" == "[rediss+cluster://a:1,[::1]:2]"
