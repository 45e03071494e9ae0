"""Redrive: moves dead letters back to the queue they came from, filtered and at a limited rate, in slices."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import Caller, DeadLetter
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import check_field
from tenantq.engine import dead_letter, spread_rules
from tenantq.engine.effects import Effects
from tenantq.engine.operation import PART_BYTES, SCAN, Operation
from tenantq.engine.ops.remove import remove_message
from tenantq.engine.queue_state import QueueState
from tenantq.engine.state import ShardState
from tenantq.engine.work_counters import REMOVED
from tenantq.errors import Invalid
from tenantq.runtime.loop_slices import next_slice
from tenantq.runtime.randomness import id_bytes
from tenantq.store.keys import after
from tenantq.store.rows import DeliveryHistory, LeaseRow, pack_history

_SLICE_MS = 100
_PARSED_AT_ONCE = 2_000  # IDs


class RedriveFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to take; every condition given must hold."""

    source: str | None = None  # the queue they came from
    reason: str | None = None  # the reason contains this text
    ids: frozenset[str | bytes] | None = None
    limit: int | None = None  # at most this many
    to: str | None = None  # the queue they go to; None: the one they came from


async def check_filter(wanted: RedriveFilter) -> RedriveFilter:
    """Return ``wanted`` with its IDs parsed, in slices. Raises Invalid if a condition is invalid."""
    if type(wanted) is not RedriveFilter:
        raise Invalid(f"filter: must be a RedriveFilter, not {type(wanted).__name__}")
    for name in (wanted.source, wanted.to):
        if name is not None:
            check_queue_name(name)
    if wanted.reason is not None:
        check_field("filter: reason", wanted.reason, limits.Reason)
    if wanted.limit is not None:
        check_field("filter: limit", wanted.limit, limits.RedriveLimit)
    if wanted.ids is None:
        return wanted
    if not isinstance(wanted.ids, frozenset | set | list | tuple):
        raise Invalid(f"filter: ids must be a set of message ids, not {type(wanted.ids).__name__}")
    if len(wanted.ids) > limits.REDRIVE_IDS_MAX:
        raise too_many_ids(len(wanted.ids))
    given, ids = list(wanted.ids), set[str | bytes]()
    for start in range(0, len(given), _PARSED_AT_ONCE):
        ids.update(map(id_bytes, given[start : start + _PARSED_AT_ONCE]))
        await next_slice()
    return msgspec.structs.replace(wanted, ids=frozenset(ids))


def too_many_ids(count: int) -> Invalid:
    """Return the error for a filter that names too many messages."""
    return Invalid(
        f"filter: {count} ids, allowed are {limits.REDRIVE_IDS_MAX}; redrive them in parts, or by their reason"
    )


class RedriveTask:
    """A redrive. Each message moves atomically, so stopping anywhere leaves nothing half done."""

    def __init__(
        self,
        state: ShardState,
        letters: QueueState,
        caller: Caller,
        filter: RedriveFilter,
        rate: int | None,
        *,
        dry_run: bool,
    ) -> None:
        self.id = f"{state.randomness.getrandbits(64):016x}"
        self._shard = state
        self.letters = letters  # the dead-letter queue
        self.caller = caller
        self.filter = filter
        self.rate = None if dry_run else rate  # messages per second; None: as fast as fair rounds allow
        self.dry_run = dry_run
        self.started_at = state.shard_clock.now_ms() + state.shard_clock.wall_offset_ms()
        self.found = letters.messages  # when it began
        self.state: Literal["running", "done", "cancelled", "failed"] = "running"
        self.moved = 0
        self.skipped = 0
        self.missing: str | None = None  # a queue to which messages should go and that does not exist
        self.cursor = letters.prefix
        self.ended = asyncio.Event()

    @classmethod
    def of_queue(
        cls,
        state: ShardState,
        queue: QueueState,
        caller: Caller,
        filter: RedriveFilter,
        rate: int | None,
        *,
        dry_run: bool,
    ) -> RedriveTask:
        """Return a redrive of a queue's dead letters, or of a dead-letter queue. Raises Suspended if one is suspended."""
        tenant, name_of = queue.tenant, state.catalog.dead_letter_name
        letters = tenant.queues.get(name_of(queue))
        takes_letters = any(name_of(one) == queue.name for one in tenant.queues.values())
        if letters is None or takes_letters:
            letters = queue
        else:
            filter = msgspec.structs.replace(filter, source=queue.name)
        letters.check_takes()
        spread_rules.check_redrive(tenant, letters.name, filter.to)
        for name in (filter.source, filter.to):
            if name in tenant.queues:
                tenant.queues[name].check_takes()
        return cls(state, letters, caller, filter, rate, dry_run=dry_run)

    def start(self) -> None:
        """Put the next slice into the tenant's line."""
        if self.state == "running":
            self._shard.push(RedriveSlice(self))

    def cancel(self) -> None:
        """Stop before the next slice."""
        if self.state == "running":
            self._end("cancelled")

    def fail(self, missing: str) -> None:
        """End because the named target was deleted. Messages that it moved stay moved."""
        self.missing = missing
        self._end("failed")

    def slice_rows(self) -> int:
        """Return how many rows the next slice may move."""
        rows = self._shard.settings.sweep_rows // 2
        if self.filter.limit is not None:
            rows = min(rows, self.filter.limit - self.moved)
        return rows if self.rate is None else min(rows, max(1, self.rate * _SLICE_MS // 1_000))

    def continue_(self, *, more: bool) -> None:
        """After a slice: end, or schedule the next one."""
        if self.state != "running":
            return
        if not more or (self.filter.limit is not None and self.moved >= self.filter.limit):
            self._end("done" if self.missing is None or self.dry_run else "failed")
        elif self.rate is None:
            self.start()
        else:
            self._shard.clock.call_later(max(_SLICE_MS, 1_000 // self.rate), self.start)

    def _end(self, state: Literal["done", "cancelled", "failed"]) -> None:
        self.state = state
        self.ended.set()


class RedriveSlice(Operation[None]):
    """A bounded part of a redrive."""

    journal_op = "redrive"
    phase = SCAN

    def __init__(self, task: RedriveTask) -> None:
        super().__init__(task.letters.tenant, task.caller)
        self.cost = max(1, task.slice_rows())
        self.task = task

    def execute(self, effects: Effects) -> None:
        """Check the next letters in order of their ids, which keeps groups in order, and move those that pass the filter."""
        task = self.task
        letters_queue, store = task.letters, effects.store
        if (
            task.state != "running"
            or letters_queue.status == "draining"
            or letters_queue.suspended
            or letters_queue.damaged
            or letters_queue.prefix in effects.cleared
        ):
            task.continue_(more=False)
            return
        wanted = task.slice_rows()
        # With a named target, messages added to the dead-letter queue itself move too; they may have no lease row.
        family = store.le if task.filter.to is None else store.m
        rows = store.scan(family, task.cursor, after(letters_queue.prefix), wanted)
        if rows and task.filter.to is not None:
            target_queue = letters_queue.tenant.queues.get(task.filter.to)
            if target_queue is None or target_queue.status == "draining":
                task.fail(task.filter.to)
                return
        moved: dict[str, list[tuple[bytes, int]]] = {}  # by the queue they go to
        seen = 0
        for key in rows:
            if effects.moved_bytes >= PART_BYTES:
                break
            seen += 1
            sent_to = self._move(effects, key[-16:])
            if sent_to is not None:
                target, size = sent_to
                moved.setdefault(target, []).append((key[-16:], size))
        count = sum(len(letters) for letters in moved.values())
        task.moved += count
        task.skipped += seen - count
        if seen:
            task.cursor = rows[seen - 1] + b"\0"
        for target, sent in moved.items() if not task.dry_run else ():
            ids, sizes = b"".join(id for id, _ in sent), [size for _, size in sent]
            effects.log("redrive", letters_queue, task.caller, ids=ids, size=sizes, details=f"to {target}")
        task.continue_(more=len(rows) == wanted or seen < len(rows))

    def _move(self, effects: Effects, id: bytes) -> tuple[str, int] | None:
        """Move one letter if it passes the filter, is not in flight and its queue accepts it; return that queue and the size."""
        task = self.task
        letters, wanted = task.letters, task.filter
        if wanted.ids is not None and id not in wanted.ids:
            return None
        found = effects.locate(letters, id)
        if found is None or found.state == "in_flight":
            return None
        message, history = (
            found.message,
            found.lease.unpack_history() if found.lease is not None else DeliveryHistory([]),
        )
        name = _goes_to(wanted, history.dead)
        target = letters.tenant.queues.get(name) if name is not None else None
        encrypted_for = history.dead.source if history.dead is not None else letters.name
        if target is None or target.status == "draining":
            task.missing = name or task.missing
            return None
        if (
            target.suspended
            or target.damaged
            or (message.encrypted and target.name != encrypted_for)  # its encryption is bound to that queue
        ):
            return None
        if task.dry_run:
            return target.name, message.size
        remove_message(effects, letters, id)
        letters.work.totals[REMOVED] += 1
        history.dead = None
        fresh = LeaseRow(
            0, 0, 0, 0, effects.now, 0, message.size, message.priority, message.max_attempts, history=pack_history(history)
        )  # fmt: skip
        effects.batch.delete(target.prefix + id, effects.store.re.handle)
        dead_letter.move_in(effects, target, id, message, fresh, lives_since=effects.now)
        return target.name, message.size


def _goes_to(wanted: RedriveFilter, dead: DeadLetter | None) -> str | None:
    """Return the target queue if a message passes the filter. A message that is not a dead letter needs a named target."""
    if dead is None:
        return wanted.to if wanted.source is None and wanted.reason is None else None
    if (wanted.source is not None and dead.source != wanted.source) or (
        wanted.reason is not None and wanted.reason not in dead.reason
    ):
        return None
    return wanted.to or dead.source
