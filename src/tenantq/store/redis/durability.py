"""Whether a Redis server keeps what it confirms: asked of every server before it is used, and again while it is."""

from __future__ import annotations

from typing import Final, Literal

from redis import exceptions

from tenantq.errors import Invalid, StoreFailed
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.link import Ask
from tenantq.store.redis.settings import RedisSettings

OLDEST: Final = (7, 0)
_WAITAOF_SINCE: Final = (7, 2)
_KNOBS: Final = ("appendfsync", "no-appendfsync-on-rewrite")


class DurabilityCheck:
    """Looks at servers; afterwards ``waits_for_aof`` tells whether a sync has to ask for the disk."""

    def __init__(self, address: RedisAddress, settings: RedisSettings, durability: Literal["fsync", "os"]) -> None:
        self._address, self._settings = address, settings
        self._durability = durability
        self.waits_for_aof = False
        self.server = b""
        self.in_use = False  # from the opening on nothing is wrong with what a caller has given

    def __call__(self, ask: Ask) -> bytes:
        """Return which server answers, if it is a primary that keeps what it confirms.

        Raise ConnectionError for a replica, else Invalid, or StoreFailed where the store is in use.
        """
        info = read_info(ask("INFO"))
        if info.get("role") == "slave":
            raise exceptions.ConnectionError("it is a replica, and the primary is wanted")
        major, minor, *_ = info.get("redis_version", "7.0").split(".")  # Valkey says here with which Redis it goes
        version = (int(major), int(minor))
        if version < OLDEST:
            raise self._refusal(f"Redis {major}.{minor} is too old; {OLDEST[0]}.{OLDEST[1]} or later, or Valkey")
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise self._refusal(f"maxmemory-policy is {policy}, which throws messages away; set noeviction")
        self.waits_for_aof = self._durability == "fsync" and self._has_to_wait(ask, info, version)
        return info.get("run_id", "").encode()

    def _has_to_wait(self, ask: Ask, info: dict[str, str], version: tuple[int, int]) -> bool:
        """Tell whether what is written is on the disk only after it was asked for; raise Invalid if it may never be."""
        unsafe = "so that what is confirmed may not be on the disk; set appendonly yes and appendfsync always"
        if info.get("aof_enabled") != "1":
            raise self._refusal(f'appendonly is no, {unsafe}, or let durability be "os"')
        try:
            flat = ask("CONFIG", "GET", *_KNOBS)
        except exceptions.ResponseError as error:
            if self._settings.fsync != "look":
                return self._settings.fsync == "waitaof"
            raise self._refusal(
                "CONFIG GET is refused, so it cannot be told whether what is confirmed is on the disk; say it with redis.fsync"
                ' ("always" or "waitaof"), or let durability be "os"'
            ) from error
        words = [word.decode() for word in flat]
        found = dict(zip(words[::2], words[1::2], strict=True))
        if found.get("appendfsync") == "always" and found.get("no-appendfsync-on-rewrite") == "no":
            return False
        if version >= _WAITAOF_SINCE:
            return True
        told = " and ".join(f"{name} is {found.get(name)}" for name in _KNOBS)
        raise self._refusal(f'{told}, {unsafe} and no-appendfsync-on-rewrite no, or let durability be "os"')

    def _refusal(self, text: str) -> Invalid | StoreFailed:
        return (StoreFailed if self.in_use else Invalid)(f"store {self._address}: {text}")


def read_info(text: bytes) -> dict[str, str]:
    """Return what INFO tells, by name."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
