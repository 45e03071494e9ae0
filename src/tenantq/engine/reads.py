"""Reads that need no round: messages, pages, results, figures and traces."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from tenantq.domain import limits
from tenantq.domain.message import Facts, MessagePage, QueueStats, Result
from tenantq.domain.validation import check_field
from tenantq.engine.queue_state import QueueState
from tenantq.engine.round_loop import RoundLoop
from tenantq.engine.work_counters import TOTALS
from tenantq.errors import Invalid, NotFound, RowsDamaged
from tenantq.journal.record import JournalRow, decode_record, rows
from tenantq.runtime.futures import wake
from tenantq.runtime.loop_slices import SLICE_BYTES, SLICE_ITEMS, next_slice
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.store.keys import SUFFIX_BYTES, after, be64, from_be64
from tenantq.store.rows import QUEUE_DEFAULT_ATTEMPTS, LeaseRow, MessageRow, unpack_lease, unpack_message, unpack_result

_TRACE_SLICE = 64
_ADD_RECORDS_MAX = 256  # a message is added at most this many records after its ID was created
_GROUP_HEAD_BYTES = 24


class Reads:
    """Reads of an open shard. What they return is durable, except for ``stats``, which shows the counters as they are."""

    def __init__(self, loop: RoundLoop) -> None:
        self._loop, self._state = loop, loop.state

    def stats(self, tenant: str, queue_name: str) -> QueueStats:
        """Return a queue's figures."""
        self._loop.check_open()
        queue = self._state.queue(tenant, queue_name)
        letters = queue.tenant.queues.get(self._state.catalog.dead_letter_name(queue))
        now = self._state.shard_clock.now_ms()
        ready, delayed, age_ms = queue.ready, queue.delayed, 0
        try:
            for level in queue.levels if not queue.damaged else ():  # rows that fell due since the last advance
                if level.delayed and level.next_due <= now:
                    due = self._count_due(level.prefix, level.horizon, now)
                    ready += due
                    delayed -= due
            age_ms = self._oldest_age_ms(queue, now) if not queue.damaged else 0
        except RowsDamaged as error:
            self._loop.quarantine(error)
        return QueueStats(
            ready + queue.blocked,
            delayed,
            queue.in_flight,
            queue.blocked,
            letters.messages if letters is not None and letters is not queue else 0,
            queue.bytes,
            age_ms,
            queue.status,
            *queue.work.totals[: len(TOTALS)],
        )

    def oldest_age_ms(self, queue: QueueState) -> int:
        """Return how long the oldest message of a queue that could be delivered has been waiting; 0 if there is none."""
        if queue.damaged:
            return 0
        try:
            return self._oldest_age_ms(queue, self._state.shard_clock.now_ms())
        except RowsDamaged as error:
            self._loop.quarantine(error)
            return 0

    def _count_due(self, prefix: bytes, horizon: bytes, now: int) -> int:
        store = self._state.store
        lower = prefix + horizon + b"\0" if horizon else prefix
        return len(store.scan(store.vi, lower, prefix + be64(now + 1), limits.BATCH_MESSAGES_MAX * 10))

    def _oldest_age_ms(self, queue: QueueState, now: int) -> int:
        store, oldest = self._state.store, now
        for level in queue.levels:
            if level.ready or (level.delayed and level.next_due <= now):
                head = store.scan(store.vi, level.prefix + level.cursor, level.prefix + be64(now + 1), 1)
                if head:
                    oldest = min(oldest, from_be64(head[0][9:17]))
        return now - oldest

    async def get(self, tenant: str, queue: str, id: str | bytes) -> Facts:
        """Return everything known about a stored message. Raises NotFound."""
        await self._loop.synced()
        with self._undamaged(tenant, queue) as found:
            raw = id_bytes(id)
            store, key = self._state.store, found.prefix + raw
            value = store.get(store.m, key)
            if value is None:
                raise self._state.missing_message(found, raw)
            stored = store.get(store.le, key)
            return self._facts(found, raw, unpack_message(value), unpack_lease(stored) if stored is not None else None)

    @contextmanager
    def _undamaged(self, tenant: str, queue: str) -> Iterator[QueueState]:
        """Yield a queue. Raises QueueDamaged if it is quarantined, or if the block reads damaged rows."""
        found = self._state.queue(tenant, queue)
        found.check_undamaged()
        try:
            yield found
        except RowsDamaged as error:
            raise self._loop.quarantine(error) from error

    def _facts(self, queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None) -> Facts:
        group = queue.group_digest(message.group)
        is_next = not group or self._state.store.get(self._state.store.gr, queue.prefix + group) == id
        now, wall = self._state.shard_clock.now_ms(), self._state.shard_clock.wall_offset_ms()
        return facts(queue, id, message, lease, now, wall, is_next=is_next)

    async def peek(self, tenant: str, queue_name: str, *, limit: int = 10, cursor: str | None = None) -> MessagePage:
        """Return waiting messages without leasing them: in order of delivery, then those blocked by their group."""
        check_field("limit", limit, limits.PeekSize)
        await self._loop.synced()
        with self._undamaged(tenant, queue_name) as queue:
            return await self._peek(queue, limit, cursor)

    async def _peek(self, queue: QueueState, limit: int, cursor: str | None) -> MessagePage:
        lower, blocked_lower = _parse_cursor(queue, cursor)
        store = self._state.store
        keys: list[bytes] = []
        if lower is not None:
            keys = store.scan(store.vi, lower, after(queue.prefix), limit)
            if len(keys) == limit:
                return await self._page(queue, keys, keys[-1])
        if not queue.blocked and blocked_lower == queue.prefix:
            return await self._page(queue, keys, b"")
        members = store.scan_items(store.gr, blocked_lower, after(queue.prefix), 2 * (limit - len(keys)) + 1)
        heads = {key: value for key, value in members if len(key) == _GROUP_HEAD_BYTES}
        for key, _ in members:
            if len(key) != _GROUP_HEAD_BYTES and len(keys) < limit:
                group = key[:_GROUP_HEAD_BYTES]
                blocked_lower = key + b"\0"
                if (heads.get(group) or store.get(store.gr, group)) != key[-16:]:
                    keys.append(key)
        more = bool(members) and bool(store.scan(store.gr, blocked_lower, after(queue.prefix), 1))
        return await self._page(queue, keys, blocked_lower[:-1] if more else b"")

    async def _page(self, queue: QueueState, keys: list[bytes], last: bytes) -> MessagePage:
        """Return the waiting messages whose ids end ``keys``, up to PAGE_BYTES_MAX.

        The cursor is the last key read, or ``last`` if all were. The messages are read in slices.
        """
        found: list[Facts] = []
        at, size = 0, 0
        step = max(1, min(SLICE_ITEMS, SLICE_BYTES // (queue.largest_bytes + 1)))
        while at < len(keys) and size < limits.PAGE_BYTES_MAX:
            if at:
                await next_slice()
                await self._loop.synced()
                queue = self._state.queue(queue.tenant.name, queue.name)
            part = self._many_facts(queue, keys[at : at + step])
            at = min(at + step, len(keys))
            found += [one for one in part if one.state != "in_flight"]
            size += sum(_stored_bytes(one) for one in part)
        if at < len(keys):
            last = keys[at - 1]
        return MessagePage(found, last[len(queue.prefix) :].hex() or None)

    def _many_facts(self, queue: QueueState, keys: list[bytes]) -> list[Facts]:
        """Return the facts of the messages whose ids end ``keys``."""
        store = self._state.store
        message_keys = [queue.prefix + key[-16:] for key in keys]
        bodies, leases = store.get_many(store.m, message_keys), store.get_many(store.le, message_keys)
        return [
            self._facts(queue, key[-16:], unpack_message(body), unpack_lease(lease) if lease is not None else None)
            for key, body, lease in zip(keys, bodies, leases, strict=True)
            if body is not None
        ]

    async def result(self, tenant: str, queue: str, id: str | bytes, *, wait_ms: int = 0) -> Result:
        """Return a message's result; while it is pending, wait for it up to ``wait_ms``.

        A message that was acked without a result is completed, without a value, for ``result_ttl_ms``. Raises NotFound.
        """
        check_field("wait_ms", wait_ms, limits.WaitMs)
        self._loop.check_open()
        found, raw = self._state.queue(tenant, queue), id_bytes(id)
        await self._loop.synced()
        with self._undamaged(tenant, queue):
            result = self._result(found, raw)
        if result is None:
            return await self._acked_result(found, raw)
        if result.status != "pending" or wait_ms == 0:
            return result
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        found.result_waiters.setdefault(raw, []).append(future)
        timer = self._state.clock.call_later(wait_ms, lambda: wake(future))
        try:
            await future
        finally:
            timer.cancel()
            waiting = found.result_waiters.get(raw)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del found.result_waiters[raw]
        await self._loop.synced()
        return self._result(found, raw) or await self._acked_result(found, raw)

    def _result(self, queue: QueueState, id: bytes) -> Result | None:
        """Return a message's result, 'pending' while it is in the queue, or None if neither is stored."""
        store, key = self._state.store, queue.prefix + id
        stored = store.get(store.re, key)
        if stored is not None:
            row = unpack_result(stored)
            if row.expires_at > self._state.shard_clock.now_ms():
                return row.result
        if store.get(store.m, key) is not None:
            return Result("pending")
        return None

    async def _acked_result(self, queue: QueueState, id: bytes) -> Result:
        """Return 'completed' for a message acked within ``result_ttl_ms``. Raises NotFound.

        Messages that are not among the recent acks are looked up in the journal. A stored row per ack would double the
        writes of an ack.
        """
        ttl_ms = queue.config.result_ttl_ms
        acked_at = self._state.recent_acks.acked_at(queue.prefix, id)
        if acked_at is not None:
            is_known = acked_at + ttl_ms > self._state.shard_clock.now_ms()
        else:
            is_known = await self._acked_since(queue, id, self._state.clock.wall_ms() - ttl_ms)
        if is_known:
            return Result("completed")
        raise NotFound("no such message or result", tenant=queue.tenant.name, queue=queue.name, id=id_text(id))

    async def _acked_since(self, queue: QueueState, id: bytes, oldest: int) -> bool:
        """Return whether the journal in the store has an ack of a message after ``oldest``.

        An unknown ID costs only the records in which the message would have been added.
        """
        seq, end = self._trace_range(queue, id)
        added = min(end, seq + _ADD_RECORDS_MAX)
        history = await self._search(queue.tenant.name, id, seq, added)
        if history and not any(row.op == "ack" for row in history):
            history += await self._search(queue.tenant.name, id, added + 1, end)
        return any(
            row.op == "ack" and row.outcome == "ok" and row.ts > oldest and row.queue == queue.name for row in history
        )

    async def trace(self, tenant: str, queue: str, id: str | bytes) -> list[JournalRow]:
        """Return the journal's rows about one message of this queue or its dead letters, oldest first.

        The journal is searched from the message's creation on, at most TRACE_RECORDS_MAX records of it.
        """
        self._loop.check_open()
        named, raw = self._state.queue(tenant, queue), id_bytes(id)
        await self._loop.synced()
        found = await self._search(tenant, raw, *self._trace_range(named, raw))
        if not any(row.queue == queue for row in found):
            raise NotFound("no such message in the journal", tenant=tenant, queue=queue, id=id_text(raw))
        return found

    def _trace_range(self, queue: QueueState, id: bytes) -> tuple[int, int]:
        """Return the first and last journal record to search for a message."""
        journal = self._state.journal
        seq = self._seq_at(int.from_bytes(id[:6]), max(journal.first, queue.tenant.since), journal.seq)
        return seq, min(journal.seq, seq + limits.TRACE_RECORDS_MAX)

    async def _search(self, tenant: str, raw: bytes, seq: int, end: int) -> list[JournalRow]:
        """Return the rows about a message in the records from ``seq`` to ``end``."""
        wanted, store, found = id_text(raw), self._state.store, list[JournalRow]()
        while seq <= end:
            page = store.scan_items(store.jn, be64(seq), be64(end + 1), _TRACE_SLICE)
            if not page:
                break
            for _, value in page:
                if raw in value:
                    _, record = decode_record(value)
                    found += [row for row in rows(record) if row.message_id == wanted and row.tenant == tenant]
            seq = from_be64(page[-1][0]) + 1
            await asyncio.sleep(0)
        return found

    def _seq_at(self, engine_ms: int, first_seq: int, last_seq: int) -> int:
        """Return the first journal record at or after a time, by bisection."""
        store = self._state.store
        low, high = first_seq, last_seq
        while low < high:
            middle = (low + high) // 2
            value = store.get(store.jn, be64(middle))
            if value is None or decode_record(value)[1].engine_ms < engine_ms:
                low = middle + 1
            else:
                high = middle
        return low


def _stored_bytes(facts: Facts) -> int:
    attributes = sum(len(name) + len(value) for name, value in facts.attributes.items())
    return len(facts.body) + len(facts.encrypted_attributes) + attributes


def facts(
    queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None, now: int, wall: int, *, is_next: bool
) -> Facts:
    """Return what stored rows say about a message at a time; ``is_next``: nothing of its group comes before it."""
    visible_at = lease.visible_at if lease is not None else message.visible_at
    in_flight = lease is not None and lease.token != 0 and lease.deadline > now
    state: Literal["ready", "delayed", "blocked", "in_flight"] = "ready"
    if in_flight:
        state = "in_flight"
    elif not is_next:
        state = "blocked"
    elif visible_at > now:
        state = "delayed"
    history = lease.unpack_history() if lease is not None else None
    allowed = message.max_attempts if message.max_attempts != QUEUE_DEFAULT_ATTEMPTS else queue.config.max_attempts
    expires_at = lease.expires_at if lease is not None else message.expires_at
    return Facts(
        id,
        queue.tenant.name,
        queue.name,
        state,
        message.body,
        message.priority,
        message.attributes,
        message.group,
        lease.attempts if lease is not None else 0,
        allowed,
        message.added_at + wall,
        visible_at + wall,
        expires_at + wall if expires_at else None,
        lease.deadline + wall if lease is not None and in_flight else None,
        tuple(history.entries) if history is not None else (),
        history.dead if history is not None else None,
        message.size,
        encrypted=message.encrypted,
        encrypted_attributes=message.encrypted_attributes,
    )


def _parse_cursor(queue: QueueState, cursor: str | None) -> tuple[bytes | None, bytes]:
    """Return where to continue in vi (None: all of it was read) and in gr."""
    if cursor is None:
        first = next((level for level in queue.levels if level.ready or level.delayed), None)
        return first.prefix + first.cursor if first is not None else queue.prefix, queue.prefix
    try:
        raw = bytes.fromhex(cursor)
    except (ValueError, TypeError):
        raw = b""
    if len(raw) == 1 + SUFFIX_BYTES:
        return queue.prefix + raw + b"\0", queue.prefix
    if len(raw) == 32:
        return None, queue.prefix + raw + b"\0"
    raise Invalid("cursor: not a cursor of peek")
