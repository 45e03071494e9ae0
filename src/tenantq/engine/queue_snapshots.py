"""Snapshots of queues: everything a queue holds at one moment, read page by page while the queue goes on.

A snapshot lives in memory, for as long as it is read or closed; until then the store cannot give back the space of what was consumed
meanwhile. So there are few of them, and none stays for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import Page
from tenantq.engine import reads
from tenantq.errors import NotFound, QuotaExceeded
from tenantq.runtime.randomness import id_text
from tenantq.store.keys import after
from tenantq.store.rows import unpack_lease, unpack_message

if TYPE_CHECKING:
    from tenantq.domain.message import Facts
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.state import ShardState
    from tenantq.runtime.clock import Timer
    from tenantq.store.interface import Moment

_WALK_ROWS: Final = 2_000  # keys that are passed before others have their turn
_PAGE_BYTES: Final = limits.REPLY_BYTES_MAX // 2


class SnapshotFacts(msgspec.Struct, frozen=True):
    """What is told of a snapshot."""

    id: str
    taken_at: int  # wall clock
    messages: int
    bytes: int
    parts: list[str]  # ids at which to divide it, so that parts have about the same number of messages


class _Open:
    """One snapshot that is kept."""

    def __init__(self, core: ShardState, queue: QueueState, id: str, moment: Moment, keep_ms: int) -> None:
        self.id, self.queue, self.moment, self.keep_ms = id, queue, moment, keep_ms
        self.now, self.wall = core.shard_clock.now_ms(), core.shard_clock.wall_offset_ms()
        self.ends_at = self.now + limits.SNAPSHOT_LIFE_MS_MAX
        self.timer: Timer | None = None

    def facts(self, id: bytes, message: bytes, lease: bytes | None) -> Facts:
        """Return what was known of a message at the snapshot's moment."""
        queue, row = self.queue, unpack_message(message)
        group = queue.group_digest(row.group)
        heads = not group or self.moment.get("gr", queue.prefix + group) == id
        held = unpack_lease(lease) if lease is not None else None
        return reads.facts(queue, id, row, held, self.now, self.wall, is_next=heads)


class Snapshots:
    """The snapshots of a shard."""

    def __init__(self, core: ShardState) -> None:
        self._core = core
        self._open: dict[str, _Open] = {}

    def open(self, queue: QueueState, keep_ms: int) -> SnapshotFacts:
        """Take a snapshot of a queue as it is now; it goes when nobody reads it for ``keep_ms``."""
        of_tenant = sum(1 for one in self._open.values() if one.queue.tenant is queue.tenant)
        if of_tenant >= limits.SNAPSHOTS_OF_TENANT_MAX or len(self._open) >= limits.SNAPSHOTS_MAX:
            raise QuotaExceeded(
                "too many snapshots are open; close those that are not needed, or wait until they go by themselves",
                limit=limits.SNAPSHOTS_OF_TENANT_MAX,
                current=of_tenant,
                tenant=queue.tenant.name,
                queue=queue.name,
            )
        id = f"{self._core.randomness.getrandbits(64):016x}"
        taken = _Open(
            self._core, queue, id, self._core.store.moment(queue.prefix, after(queue.prefix), "m", "le", "gr"), keep_ms
        )
        self._open[id] = taken
        self._keep(taken)
        return SnapshotFacts(id, taken.now + taken.wall, queue.messages, queue.bytes, [])

    async def divided(self, queue: QueueState, taken: SnapshotFacts, part_messages: int) -> SnapshotFacts:
        """Return a snapshot's facts with ids that divide it into parts of ``part_messages``."""
        opened = self._find(queue, taken.id)
        prefix, parts, count = queue.prefix, list[str](), 0
        lower = prefix
        while True:
            keys = opened.moment.keys("m", lower, _WALK_ROWS)
            at = range(-count % part_messages, len(keys), part_messages)
            parts += [id_text(keys[place][len(prefix) :]) for place in at if count + place]
            count += len(keys)
            if len(keys) < _WALK_ROWS:
                return msgspec.structs.replace(taken, parts=parts)
            lower = keys[-1] + b"\0"
            await asyncio.sleep(0)
            self._find(queue, taken.id)

    def read(self, queue: QueueState, id: str, start: bytes | None, end: bytes | None, limit: int) -> Page:
        """Return messages with ids from ``start`` on and before ``end``, by id; the page's cursor is the next one's start."""
        opened = self._find(queue, id)
        self._keep(opened)
        prefix = queue.prefix
        lower = prefix + (start or b"")
        upper = prefix + end if end is not None else after(prefix)
        rows = opened.moment.items("m", lower, upper, limit + 1, _PAGE_BYTES)
        more = rows.pop()[0] if rows.cut or len(rows) > limit else None
        if not rows:
            return Page([])
        leases = dict(opened.moment.items("le", rows[0][0], rows[-1][0] + b"\0", len(rows)))
        found = [opened.facts(key[len(prefix) :], value, leases.get(key)) for key, value in rows]
        return Page(found, id_text(more[len(prefix) :]) if more is not None else None)

    def close(self, queue: QueueState, id: str) -> None:
        """Let a snapshot go."""
        self._drop(self._find(queue, id))

    def close_all(self) -> None:
        """Let all go: the store closes."""
        for opened in list(self._open.values()):
            self._drop(opened)

    def _find(self, queue: QueueState, id: str) -> _Open:
        opened = self._open.get(id) if type(id) is str else None
        if opened is None or opened.queue is not queue:
            raise _gone(queue)
        return opened

    def _keep(self, opened: _Open) -> None:
        """Let a snapshot stay for its time from now on, but not beyond its life."""
        if opened.timer is not None:
            opened.timer.cancel()
        left_ms = opened.ends_at - self._core.shard_clock.now_ms()
        opened.timer = self._core.clock.call_later(max(0, min(opened.keep_ms, left_ms)), lambda: self._drop(opened))

    def _drop(self, opened: _Open) -> None:
        if opened.timer is not None:
            opened.timer.cancel()
        self._open.pop(opened.id, None)
        opened.moment.let_go()


def _gone(queue: QueueState) -> NotFound:
    return NotFound(
        "no such snapshot: it was closed, was not read for too long, or the server was restarted; take a new one",
        tenant=queue.tenant.name,
        queue=queue.name,
    )
