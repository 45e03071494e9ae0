"""The durability check of a Redis server, before it is used and regularly afterwards."""

import time
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
    """Checks servers. Afterwards ``waits_for_aof`` says whether a sync must wait for the disk."""

    def __init__(self, address: RedisAddress, settings: RedisSettings, durability: Literal["fsync", "os"]) -> None:
        self._address, self._settings = address, settings
        self._durability = durability
        self.waits_for_aof = False
        self.server = b""
        self._replicas: int | None = None  # that follow the server; None: it does not say
        self.in_use = False  # once the store is open, its settings are valid: a later problem is a failure of the store

    def __call__(self, ask: Ask) -> bytes:
        """Return the id of the server, if it is a primary with durable settings.

        Raises ConnectionError for a replica, and once the store is in use for a server without AOF: a replica that was promoted
        during a full resync starts it later. Raises Invalid for other settings, or StoreFailed once the store is in use.
        """
        info = read_info(ask("INFO"))
        if info.get("role") == "slave":
            raise exceptions.ConnectionError("the server is a replica, not the primary")
        # Valkey reports the Redis version it is compatible with.
        major, minor, *_ = info.get("redis_version", "7.0").split(".")
        version = (int(major), int(minor))
        if version < OLDEST:
            raise self._refusal(
                f"unsupported Redis version ({major}.{minor}). Use {OLDEST[0]}.{OLDEST[1]} or later, or Valkey."
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise self._refusal(f"maxmemory-policy is {policy}, which deletes messages. Set noeviction.")
        self._replicas = _following(info, self._settings.patience_ms)
        self.waits_for_aof = self._durability == "fsync" and self._must_wait(ask, info, version)
        return info.get("run_id", "").encode()

    def check_replicas(self) -> None:
        """Raise StoreFailed if too few replicas follow the server: writes cannot be acknowledged."""
        wanted = self._settings.replicas
        if self._replicas is not None and self._replicas < wanted:
            raise StoreFailed(
                f"store {self._address}: {self._replicas} replicas follow the primary of this shard and redis.replicas is {wanted},"
                " so writes cannot be acknowledged. The shard opens when the replicas are back."
            )

    def wait(self, ask: Ask, what: str, *, patience_ms: int, answer_ms: int) -> None:
        """Return when what the connection of ``ask`` wrote is on the disk and replicas that the settings require.

        ``answer_ms`` limits each wait of the server. Raises StoreFailed, which names ``what`` is not confirmed.
        """
        replicas = self._settings.replicas
        if not replicas and not self.waits_for_aof:
            return
        ends = time.monotonic() + patience_ms / 1_000
        while True:
            if self.waits_for_aof:
                on_disk, answered = ask("WAITAOF", 1, replicas, answer_ms)
            else:
                on_disk, answered = 1, ask("WAIT", replicas, answer_ms)
            if on_disk and answered >= replicas:
                return
            if time.monotonic() >= ends:
                raise StoreFailed(
                    f"store {self._address}: {answered} of {replicas} replicas confirmed {what} (redis.replicas)"
                    f"{'' if on_disk else ', and it is not on disk'}. Nothing of it is confirmed. Try again."
                )

    def _must_wait(self, ask: Ask, info: dict[str, str], version: tuple[int, int]) -> bool:
        """Return whether a sync must wait until writes are on disk. Raises Invalid if they may never be."""
        unsafe = "so confirmed writes may not be on disk. Set appendonly yes and appendfsync always"
        if info.get("aof_enabled") != "1":
            text = f'appendonly is no, {unsafe}, or set durability = "os".'
            if not self.in_use:
                raise self._refusal(text)
            self.server = b""  # links that were connected before check it too, and confirm nothing meanwhile
            raise exceptions.ConnectionError(text)
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


def _following(info: dict[str, str], patience_ms: int) -> int | None:
    """Return how many replicas follow a server, without those that have been silent for half the patience; None: unknown."""
    if "connected_slaves" not in info:
        return None
    count, lines = int(info["connected_slaves"]), [info.get(f"slave{number}") for number in range(64)]
    known = [dict(field.partition("=")[::2] for field in line.split(",")) for line in lines if line is not None]
    silent_s_max = max(1, patience_ms // 2_000)
    failing = sum(one.get("state", "online") != "online" or int(one.get("lag", 0)) > silent_s_max for one in known)
    return count - failing


def read_info(text: bytes) -> dict[str, str]:
    """Return the fields of INFO by name."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
