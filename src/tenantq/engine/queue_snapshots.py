"""Snapshots of queues: everything a queue holds at one time, read page by page while the queue keeps working.

While a snapshot is open, the store cannot reclaim the space of messages that are consumed since. So their number and
their lifetime are limited.
"""

import asyncio
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import Facts, MessagePage
from tenantq.domain.validation import check_field
from tenantq.engine import reads
from tenantq.engine.queue_state import QueueState
from tenantq.engine.round_loop import RoundLoop
from tenantq.engine.state import ShardState
from tenantq.engine.tenant_snapshot import TenantSnapshot
from tenantq.errors import NotFound, QuotaExceeded
from tenantq.runtime.clock import Timer
from tenantq.runtime.loop_slices import SLICE_BYTES, SLICE_ITEMS, next_slice
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.store.interface import StoreSnapshot
from tenantq.store.keys import after
from tenantq.store.rows import unpack_lease, unpack_message

_WALK_ROWS: Final = 2_000  # keys to walk before other tasks get their turn


class SnapshotFacts(msgspec.Struct, frozen=True):
    """What a caller learns about a snapshot."""

    id: str
    taken_at: int  # wall clock
    messages: int
    bytes: int
    parts: list[str]  # ids that divide it into parts of about equal size


class _OpenSnapshot:
    """One open snapshot."""

    def __init__(self, state: ShardState, queue: QueueState, id: str, snapshot: StoreSnapshot, keep_ms: int) -> None:
        self.id, self.queue, self.snapshot, self.keep_ms = id, queue, snapshot, keep_ms
        self.now, self.wall = state.shard_clock.now_ms(), state.shard_clock.wall_offset_ms()
        self.ends_at = self.now + limits.SNAPSHOT_LIFE_MS_MAX
        self.timer: Timer | None = None

    def facts(self, id: bytes, message: bytes, lease: bytes | None) -> Facts:
        """Return a message as of the snapshot."""
        queue, row = self.queue, unpack_message(message)
        group = queue.group_digest(row.group)
        heads = not group or self.snapshot.get("gr", queue.prefix + group) == id
        held = unpack_lease(lease) if lease is not None else None
        return reads.facts(queue, id, row, held, self.now, self.wall, is_next=heads)


class QueueSnapshots:
    """The open snapshots of a shard."""

    def __init__(self, loop: RoundLoop) -> None:
        self._loop, self._state = loop, loop.state
        self._open: dict[str, _OpenSnapshot] = {}

    async def open(
        self, tenant: str, queue: str, *, keep_ms: int = 60_000, part_messages: int | None = None
    ) -> SnapshotFacts:
        """Take a snapshot of a queue as it is now, to be read in pages; with ``part_messages`` also divide it.

        It is closed when it was not read for ``keep_ms``.
        """
        check_field("keep_ms", keep_ms, limits.SnapshotKeepMs)
        if part_messages is not None:
            check_field("part_messages", part_messages, limits.SnapshotPartMessages)
        self._loop.check_open()
        found = self._state.queue(tenant, queue)
        taken = self._take(found, keep_ms)
        await self._loop.synced()
        return taken if part_messages is None else await self._divide(found, taken, part_messages)

    async def of_tenant(self, tenant: str, queue: str | None = None) -> TenantSnapshot:
        """Return a tenant as it is now, or one queue of it, once all of it is durable."""
        self._loop.check_open()
        owner = self._state.catalog.tenant(tenant)
        one = self._state.catalog.queue(owner, queue) if queue is not None else None
        taken = TenantSnapshot(self._state, owner, self._state.journal.seq, one)
        try:
            await self._loop.synced()
        except BaseException:
            taken.close()
            raise
        return taken

    def _take(self, queue: QueueState, keep_ms: int) -> SnapshotFacts:
        of_tenant = sum(1 for one in self._open.values() if one.queue.tenant is queue.tenant)
        if of_tenant >= limits.SNAPSHOTS_OF_TENANT_MAX or len(self._open) >= limits.SNAPSHOTS_MAX:
            raise QuotaExceeded(
                "too many snapshots are open; close those that are not needed, or wait until they expire",
                limit=limits.SNAPSHOTS_OF_TENANT_MAX,
                current=of_tenant,
                tenant=queue.tenant.name,
                queue=queue.name,
            )
        id = f"{self._state.randomness.getrandbits(64):016x}"
        taken = _OpenSnapshot(
            self._state,
            queue,
            id,
            self._state.store.snapshot(queue.prefix, after(queue.prefix), "m", "le", "gr"),
            keep_ms,
        )
        self._open[id] = taken
        self._keep(taken)
        return SnapshotFacts(id, taken.now + taken.wall, queue.messages, queue.bytes, [])

    async def _divide(self, queue: QueueState, taken: SnapshotFacts, part_messages: int) -> SnapshotFacts:
        """Return a snapshot's facts with ids that divide it into parts of ``part_messages``."""
        opened = self._find(queue, taken.id)
        prefix, parts, count = queue.prefix, list[str](), 0
        lower = prefix
        while True:
            keys = opened.snapshot.keys("m", lower, _WALK_ROWS)
            at = range(-count % part_messages, len(keys), part_messages)
            parts += [id_text(keys[place][len(prefix) :]) for place in at if count + place]
            count += len(keys)
            if len(keys) < _WALK_ROWS:
                return msgspec.structs.replace(taken, parts=parts)
            lower = keys[-1] + b"\0"
            await asyncio.sleep(0)
            self._find(queue, taken.id)

    async def read(
        self, tenant: str, queue: str, id: str, *, start: str | None = None, end: str | None = None, limit: int = 100
    ) -> MessagePage:
        """Return messages of a snapshot by id, from ``start`` on and before ``end``; ``cursor`` is the next page's start.

        A page ends at PAGE_BYTES_MAX. It is read in slices.
        """
        check_field("limit", limit, limits.PeekSize)
        first, last = id_bytes(start) if start is not None else b"", id_bytes(end) if end is not None else None
        found: list[Facts] = []
        size = 0
        while True:
            self._loop.check_open()
            opened = self._find(self._state.queue(tenant, queue), id)
            self._keep(opened)
            prefix = opened.queue.prefix
            upper = prefix + last if last is not None else after(prefix)
            count = min(SLICE_ITEMS, limit - len(found))
            rows = opened.snapshot.items("m", prefix + first, upper, count + 1, SLICE_BYTES)
            more = rows.pop()[0] if rows.cut or len(rows) > count else None
            if rows:
                leases = dict(opened.snapshot.items("le", rows[0][0], rows[-1][0] + b"\0", len(rows)))
                found += [opened.facts(key[len(prefix) :], value, leases.get(key)) for key, value in rows]
                size += sum([len(value) for _, value in rows])
            if more is None:
                return MessagePage(found)
            first = more[len(prefix) :]
            if len(found) >= limit or size >= limits.PAGE_BYTES_MAX:
                return MessagePage(found, id_text(first))
            await next_slice()

    def close(self, tenant: str, queue: str, id: str) -> None:
        """Close a snapshot before its time."""
        self._loop.check_open()
        self._drop(self._find(self._state.queue(tenant, queue), id))

    def close_tenant(self, tenant_id: int) -> None:
        """Close the snapshots of a deleted tenant, which hold its rows in the store's files."""
        for opened in [one for one in self._open.values() if one.queue.tenant.id == tenant_id]:
            self._drop(opened)

    def close_all(self) -> None:
        """Close all snapshots, before the store closes."""
        for opened in list(self._open.values()):
            self._drop(opened)

    def _find(self, queue: QueueState, id: str) -> _OpenSnapshot:
        opened = self._open.get(id) if type(id) is str else None
        if opened is None or opened.queue is not queue:
            raise _gone(queue)
        return opened

    def _keep(self, opened: _OpenSnapshot) -> None:
        """Keep a snapshot for its time from now on, but not beyond its maximum life."""
        if opened.timer is not None:
            opened.timer.cancel()
        left_ms = opened.ends_at - self._state.shard_clock.now_ms()
        opened.timer = self._state.clock.call_later(max(0, min(opened.keep_ms, left_ms)), lambda: self._drop(opened))

    def _drop(self, opened: _OpenSnapshot) -> None:
        if opened.timer is not None:
            opened.timer.cancel()
        self._open.pop(opened.id, None)
        opened.snapshot.close()


def _gone(queue: QueueState) -> NotFound:
    return NotFound(
        "no such snapshot: it was closed, was not read for too long, or the server was restarted; take a new one",
        tenant=queue.tenant.name,
        queue=queue.name,
    )
