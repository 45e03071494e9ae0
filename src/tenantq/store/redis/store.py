"""The open store of one shard in Redis. One server-side function applies each round."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing
from pathlib import Path
from secrets import token_bytes
from typing import Final, Literal

from tenantq.errors import StoreFailed, StoreFormat, StoreLocked
from tenantq.store.change_batch import ChangeBatch, remote_families
from tenantq.store.connection_figures import connection_figures
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.interface import Beat, Family, Store, StoreFigure
from tenantq.store.keys import FAMILIES, PREFIX_BYTES, after
from tenantq.store.local_identity import check_identity
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.batch import Steps, groups_with_rows
from tenantq.store.redis.durability import DurabilityCheck
from tenantq.store.redis.files import RedisFiles
from tenantq.store.redis.layout import GROUPED, JOURNAL, Layout, covers
from tenantq.store.redis.link import ANSWER_S_MAX, RedisCommand, Script, SlotLink
from tenantq.store.redis.ownership import FORMAT, Ownership
from tenantq.store.redis.row_reader import RedisRowReader
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.snapshot import RedisSnapshot, RedisSnapshots
from tenantq.store.shard_lease import ReleaseSignal, claim_when_free

log = logging.getLogger("tenantq")

MARK: Final = "redis_store"
"""The file of a data directory with the id of the Redis store that its local files belong to."""
_COMMIT: Final = Script("commit")
_FORGET: Final = Script("forget")
_SILENCE_S_MIN: Final = 0.1
_PREFIXES_PAGE: Final = 10_000


def check_format(address: object, layout: Layout, format: bytes | None, *, must_exist: bool) -> None:
    """Raise StoreFormat if a store has another format, or does not exist although it must."""
    if format is None and must_exist:
        name = layout.state.decode().partition("{")[2].partition("}")[0]
        raise StoreFormat(f"store {address}: no tenantq store with name and shard {name}")
    if format is not None and format != FORMAT:
        raise StoreFormat(
            f"store {address}: unsupported format {format.decode(errors='replace')}; this program reads format"
            f" {FORMAT.decode()}. Stores of development versions are not converted: export the tenants with the version"
            " that created it."
        )


class RedisStore(Store):
    """The store of a shard in Redis, owned by this process."""

    def __init__(
        self,
        path: Path,
        address: RedisAddress,
        settings: RedisSettings,
        shard: str,
        *,
        durability: Literal["fsync", "os"] = "fsync",
        read_only: bool = False,
        wait_ms: int = 0,
        released: ReleaseSignal | None = None,
    ) -> None:
        """Claim the shard and open it; its local files are in ``path``. Blocks until Redis answers.

        Waits up to ``wait_ms`` for another owner to release the shard, which ``released`` can report.

        Raises ShardHeld while another process owns it, StoreLocked, StoreFormat, Invalid if the server is not durable, StoreFailed
        if it does not respond.
        """
        super().__init__(remote_families())
        self.path = path
        self._address, self._settings = address, settings
        self._layout = layout = Layout(settings.name, shard)
        self._read_only = read_only
        self._durability = DurabilityCheck(address, settings, "os" if read_only else durability)
        if not read_only:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ExitStack() as opened:
            if path.is_dir():
                opened.enter_context(closing(DirectoryLock(path)))
            silence_s = max(_SILENCE_S_MIN, settings.lease_ms / 6_000)  # a dead connection must not cost the lease
            self._links = tuple(
                opened.enter_context(
                    closing(SlotLink(address, layout.state, settings.patience_ms, self._durability, answer_s))
                )
                for answer_s in (ANSWER_S_MAX, ANSWER_S_MAX, silence_s)
            )
            self._link, self._side, keeper = self._links
            self._check_exists()
            self._owner = owner = claim_when_free(
                lambda: Ownership(keeper, layout.state, settings.lease_ms, settings.patience_ms), wait_ms, released
            )
            opened.callback(owner.give_up)
            check_identity(path, MARK, address, owner.id, read_only=read_only)
            self._prefixes: set[bytes] = set()
            self._reader = RedisRowReader(self._link, layout, self._prefixes, owner)
            self._load()
            self._closing = opened.pop_all()
        self._durability.in_use = True
        self.found_is_durable = not settings.replicas and not self._durability.waits_for_aof
        self._side_reader = RedisRowReader(self._side, layout, self._prefixes, owner)
        self._snapshots = RedisSnapshots(self._side_reader, layout.kept + b":" + owner.epoch, self._unlink)
        self.files = RedisFiles(address, self._side)
        self.ownership = owner.lease
        self.sync_marker = None if read_only else owner.lease

    # ---- opening and closing ----

    def _check_exists(self) -> None:
        """Raise StoreFormat, before anything is written, if the store has another format, or is missing although it must exist."""
        for link in (self._side, self._link):  # both connect before the claim: from then on callers wait
            format, id = link.call("HMGET", self._layout.state, "format", "id")
        check_format(self._address, self._layout, format, must_exist=self._read_only)
        if not self._read_only:
            self._durability.check_replicas()
        if id is not None:
            check_identity(self.path, MARK, self._address, id.decode(), read_only=self._read_only)

    def _load(self) -> None:
        """Read what opening needs, in one request if it is small, and delete keys that snapshots of a killed process kept."""
        page, kept = self._reader.read_ahead(self._prefixes_from(b"-"), ("SMEMBERS", self._layout.kept))
        while page:
            for member in page:
                self._prefixes.add(member[:PREFIX_BYTES])
                self._layout.register(member[:PREFIX_BYTES], member[PREFIX_BYTES:])
            page = len(page) == _PREFIXES_PAGE and self._link.call(*self._prefixes_from(b"(" + page[-1]))
        if kept and not self._read_only:
            self._unlink(list(kept))

    def _prefixes_from(self, low: bytes) -> RedisCommand:
        return ("ZRANGE", self._layout.prefixes, low, "+", "BYLEX", "LIMIT", 0, _PREFIXES_PAGE)

    def _unlink(self, names: list[bytes]) -> None:
        layout = self._layout
        try:
            owner = self._owner
            owner.check(self._side.run(_FORGET, [layout.state, layout.kept, *names], [owner.epoch]))
        except StoreFailed as error:
            log.warning("keys of a closed snapshot are deleted at the next start: %s", error)

    def last_beat(self) -> Beat | None:
        return self._owner.lease.last

    def close(self) -> None:
        """Give the shard up, so that another server can own it at once, and close all connections."""
        self._drop_families()
        self._closing.close()

    # ---- reading ----

    def _reader_of(self, family: Family) -> RedisRowReader:
        """Return what reads a family. Exports and audits read long parts of the journal, and commits must not wait for them."""
        return self._side_reader if family.name == JOURNAL else self._reader

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        return self._reader_of(family).get_many(family.name, keys)

    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int, *, deleted_max: int = 0) -> list[bytes]:  # noqa: ARG002  # Redis keeps no deleted rows
        return self._reader_of(family).scan(family.name, lower, upper, limit)

    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self._reader_of(family).scan_items(family.name, lower, upper, limit)

    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        return self._reader.last_item(family.name, lower, upper)

    def snapshot(self, lower: bytes, upper: bytes, *families: str) -> RedisSnapshot:
        return self._snapshots.take(lower, upper, families)

    # ---- writing ----

    def name_queue(self, prefix: bytes, name: str | None) -> None:
        """Use this name in the keys of a queue's rows, if it has none yet."""
        self._layout.name_queue(prefix, name)

    def new_batch(self) -> ChangeBatch:
        return ChangeBatch()

    def write(self, batch: ChangeBatch) -> None:
        """Apply a batch atomically, by one server-side function.

        With ``appendfsync always`` it is on that server's disk afterwards; ``sync`` waits for everything else in the settings.
        """
        if self._read_only:
            raise StoreLocked(f"store {self._address}: the store was opened read-only")
        if batch.is_empty():
            return
        if not self._snapshots.open:
            self._commit(batch, {})
            return
        with self._snapshots.lock:
            self._snapshots.keep_old(batch)
            names = self._snapshots.names_to_keep(batch)
            self._commit(batch, names)
            self._snapshots.kept_as(names)

    def _commit(self, batch: ChangeBatch, kept: dict[tuple[str, bytes], tuple[bytes, bytes]]) -> None:
        owner, layout = self._owner, self._layout
        self._reader.forget_ahead()
        used = groups_with_rows(batch)
        steps = Steps(layout)
        new, gone = used - self._prefixes, self._emptied(batch, used)
        steps.take(batch, self._prefixes, kept)
        if new:
            steps.add(b"enter", layout.prefixes, layout.prefixes, [group + layout.queue(group) for group in new])
        if gone:
            steps.add(b"leave", layout.prefixes, layout.prefixes, [group + layout.queue(group) for group in gone])
        number = owner.commit + 1
        beat, age_ms = owner.beat_arguments()
        numbers = [b"%d" % one for one in (owner.commit, number, owner.lease.lease_ms)]
        head = [owner.epoch, *numbers, beat, token_bytes(8), age_ms]
        sent = time.monotonic()
        owner.check(self._link.run(_COMMIT, steps.keys, head + steps.arguments))
        owner.commit = number
        owner.lease.renewed(sent)
        for group in new:
            layout.register(group, layout.queue(group))
        for group in gone:
            layout.forget(group)
        self._prefixes |= new
        self._prefixes -= gone

    def _emptied(self, batch: ChangeBatch, used: set[bytes]) -> set[bytes]:
        """Return the prefixes of queues that a batch empties."""
        if not batch.ranges:
            return set()
        cleared: dict[bytes, set[int]] = {}
        for number, lower, upper in batch.ranges:
            if FAMILIES[number] not in GROUPED:
                continue
            first = lower[:8]
            one_queue = len(first) == 8 and upper <= after(first)
            for group in (self._prefixes & {first}) if one_queue else self._prefixes:
                if covers(lower, upper, group):
                    cleared.setdefault(group, set()).add(number)
        return {group for group, families in cleared.items() if len(families) == len(GROUPED) and group not in used}

    def sync(self) -> None:
        """Make everything written so far durable: on the disk and replicas that the settings require. Safe from any thread."""
        patience_ms, owner = self._settings.patience_ms, self._owner
        answer_ms = min(1_000, patience_ms // 4, owner.longest_wait_ms)
        self._durability.wait(owner.hold_and, "this round", patience_ms=patience_ms, answer_ms=answer_ms)

    def figures(self) -> list[StoreFigure]:
        """Return the health of the connections to Redis, from memory."""
        return connection_figures("redis", "Redis", self._links, is_up=not self.ownership.is_doubtful)
