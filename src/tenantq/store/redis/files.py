"""The files of a Redis store: rewritten without deleted rows, and limited by maxmemory."""

import time
from typing import Final

from tenantq.errors import StoreFailed
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.durability import read_info
from tenantq.store.redis.link import SlotLink
from tenantq.store.server_files import UNBOUNDED, ServerFiles

_REWRITE_S: Final = 600.0
_LOOK_S: Final = 0.05


class RedisFiles(ServerFiles):
    """The files of the server that has the shard."""

    own_backups = (
        "a Redis store is backed up by Redis: copy its RDB or AOF files, or use the service's own backups"
        " (docs/how-to/run-a-cluster.md)"
    )

    def __init__(self, address: RedisAddress, link: SlotLink) -> None:
        self._address, self._link = address, link
        self._has_limit = True  # whether the server has a maxmemory
        self._ask_again_at = 0.0

    def rewrite(self) -> bool:
        """Have Redis rewrite the append-only file without deleted rows, and the snapshot file if it has one.

        Snapshots hold only rows of their own queue. Replicas and managed services rewrite their files by their own rules: see
        docs/internals/stores.md.
        """
        before = self._info()
        ends = time.monotonic() + _REWRITE_S
        for command, outcome in (("BGREWRITEAOF", "aof_last_bgrewrite_status"), ("BGSAVE", "rdb_last_bgsave_status")):
            if not (before["aof_enabled"] == "1" if command == "BGREWRITEAOF" else self._saves(before)):
                continue
            self._until_idle(ends)  # a rewrite that began before this deletion does not count
            try:
                self._link.call(command)
            except StoreFailed as error:
                raise StoreFailed(f"{error.message} Deleted rows are still in the store's files.") from error
            after = self._until_idle(ends)
            if after.get(outcome) != "ok" or after["run_id"] != before["run_id"]:
                raise StoreFailed(
                    f"store {self._address}: {command} failed, or another server is primary now. Deleted rows are still in"
                    " the store's files."
                )
        return True

    def _saves(self, info: dict[str, str]) -> bool:
        """Return whether the server writes a snapshot file, or has written one since its start."""
        if info.get("rdb_saves", "0") != "0":
            return True
        try:
            return any(self._link.call("CONFIG", "GET", "save")[1::2])
        except StoreFailed as error:
            if error.__cause__ is not None:
                raise
            return False  # the setting is not readable, and no file was written

    def _until_idle(self, ends: float) -> dict[str, str]:
        busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")
        while True:
            info = self._info()
            if not any(info.get(name) == "1" for name in busy):
                return info
            if time.monotonic() >= ends:
                raise StoreFailed(f"store {self._address}: Redis has not rewritten its files after {_REWRITE_S:.0f} s")
            time.sleep(_LOOK_S)

    def _info(self, *sections: str) -> dict[str, str]:
        return read_info(self._link.call("INFO", *sections))

    def location(self) -> str:
        """Return the address of the store, the primary that has the shard, and its replicas."""
        info = self._info("replication")
        replicas = (
            dict(pair.split("=", 1) for pair in value.split(","))
            for name, value in info.items()
            if name.startswith("slave") and name[5:].isdigit()
        )
        others = ", ".join(f"{one['ip']}:{one['port']}" for one in replicas)
        return f"{self._address}, on {self._link.server_address}{f' and its replicas {others}' if others else ''}"

    def free_bytes(self) -> int:
        """Return the rest of the server's maxmemory; without one, more than any reserve."""
        now = time.monotonic()
        if not self._has_limit and now < self._ask_again_at:
            return UNBOUNDED
        info = self._info("memory")
        most = int(info.get("maxmemory", "0"))
        self._has_limit, self._ask_again_at = most > 0, now + 1
        return most - int(info.get("used_memory", "0")) if most else UNBOUNDED
