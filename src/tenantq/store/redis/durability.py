"""The durability check of a Redis server, before it is used and regularly afterwards."""

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
    """Checks servers. Afterwards ``waits_for_aof`` says whether a sync has to wait for the disk."""

    def __init__(self, address: RedisAddress, settings: RedisSettings, durability: Literal["fsync", "os"]) -> None:
        self._address, self._settings = address, settings
        self._durability = durability
        self.waits_for_aof = False
        self.server = b""
        self.in_use = False  # once it is open, the settings are valid: what is wrong later is a failure of the store

    def __call__(self, ask: Ask) -> bytes:
        """Return the id of the server, if it is a primary with durable settings.

        Raises ConnectionError for a replica; otherwise Invalid, or StoreFailed once the store is in use.
        """
        info = read_info(ask("INFO"))
        if info.get("role") == "slave":
            raise exceptions.ConnectionError("the server is a replica, not the primary")
        major, minor, *_ = info.get("redis_version", "7.0").split(
            "."
        )  # Valkey reports the Redis version it is compatible with
        version = (int(major), int(minor))
        if version < OLDEST:
            raise self._refusal(
                f"unsupported Redis version ({major}.{minor}). Use {OLDEST[0]}.{OLDEST[1]} or later, or Valkey."
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise self._refusal(f"maxmemory-policy is {policy}, which deletes messages. Set noeviction.")
        self.waits_for_aof = self._durability == "fsync" and self._has_to_wait(ask, info, version)
        return info.get("run_id", "").encode()

    def _has_to_wait(self, ask: Ask, info: dict[str, str], version: tuple[int, int]) -> bool:
        """Return whether writes reach the disk only after waiting for it. Raises Invalid if they may never."""
        unsafe = "so confirmed writes may not be on disk. Set appendonly yes and appendfsync always"
        if info.get("aof_enabled") != "1":
            raise self._refusal(f'appendonly is no, {unsafe}, or set durability = "os".')
        try:
            flat = ask("CONFIG", "GET", *_KNOBS)
        except exceptions.ResponseError as error:
            if self._settings.fsync != "look":
                return self._settings.fsync == "waitaof"
            raise self._refusal(
                'CONFIG GET is forbidden, so durability cannot be checked. Set redis.fsync to "always" or "waitaof",'
                ' or set durability = "os".'
            ) from error
        words = [word.decode() for word in flat]
        found = dict(zip(words[::2], words[1::2], strict=True))
        if found.get("appendfsync") == "always" and found.get("no-appendfsync-on-rewrite") == "no":
            return False
        if version >= _WAITAOF_SINCE:
            return True
        shown = " and ".join(f"{name} is {found.get(name)}" for name in _KNOBS)
        raise self._refusal(f'{shown}, {unsafe} and no-appendfsync-on-rewrite no, or set durability = "os".')

    def _refusal(self, text: str) -> Invalid | StoreFailed:
        return (StoreFailed if self.in_use else Invalid)(f"store {self._address}: {text}")


def read_info(text: bytes) -> dict[str, str]:
    """Return the fields of INFO by name."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
