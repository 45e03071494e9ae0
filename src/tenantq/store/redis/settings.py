"""How a Redis store is used."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from tenantq.domain.message import check_int
from tenantq.errors import Invalid

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set beside the address."""

    name: str = "tenantq"  # whose rows these are, where several share a Redis: part of every key
    replicas: int = 0  # replicas that must have a round before its reply; 0: none is waited for
    fsync: Literal["look", "always", "waitaof"] = (
        "look"  # how a round gets on the disk, where CONFIG GET may not be asked
    )
    patience_ms: int = 10_000  # how long a store that does not answer is tried again before the shard stops
    lease_ms: int = 5_000  # after this without a sign of life of the owner another server takes over


def check_redis(settings: RedisSettings) -> RedisSettings:
    """Return ``settings`` if each is in its range, else raise Invalid."""
    if _NAME.fullmatch(settings.name) is None:
        raise Invalid("redis.name: 1 to 64 letters, digits, '.', '_' and '-', alphanumeric at both ends")
    check_int("redis.replicas", settings.replicas, 0, 100)
    check_int("redis.patience_ms", settings.patience_ms, 100, 3_600_000)
    check_int("redis.lease_ms", settings.lease_ms, 500, 3_600_000)
    return settings
