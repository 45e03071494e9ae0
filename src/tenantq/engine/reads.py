"""Reads that need no round: single messages, pages, results, figures, traces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from tenantq.domain import limits
from tenantq.domain.message import Facts, Page, QueueStats, Result
from tenantq.engine.queue_state import TOTALS
from tenantq.errors import Invalid, NotFound, StoreDamaged
from tenantq.journal.checkpoint import CHECKPOINT_ROW
from tenantq.journal.record import ANCHOR_KEY, GENESIS, JournalRow, decode_record, rows
from tenantq.runtime.randomness import id_text
from tenantq.store.keys import SUFFIX_BYTES, after, be64, from_be64
from tenantq.store.rows import QUEUE_DEFAULT_ATTEMPTS, unpack_lease, unpack_message, unpack_result

if TYPE_CHECKING:
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.state import ShardState
    from tenantq.store.rows import LeaseRow, MessageRow

_TRACE_SLICE = 64
_GROUP_HEAD_BYTES = 24
CHECKPOINTS_MAX = 100_000


def stats(core: ShardState, queue: QueueState) -> QueueStats:
    """Return a queue's figures."""
    letters = queue.tenant.queues.get(core.catalog.dead_letter_name(queue))
    now = core.shard_clock.now_ms()
    ready, delayed = queue.ready, queue.delayed
    for level in queue.levels:  # rows that fell due since the last advance
        if level.delayed and level.next_due <= now:
            due = _count_due(core, level.prefix, level.horizon, now)
            ready += due
            delayed -= due
    return QueueStats(
        ready + queue.blocked,
        delayed,
        queue.in_flight,
        queue.blocked,
        letters.messages if letters is not None and letters is not queue else 0,
        queue.bytes,
        _oldest_age_ms(core, queue, now),
        queue.status,
        *queue.totals[: len(TOTALS)],
    )


def _count_due(core: ShardState, prefix: bytes, horizon: bytes, now: int) -> int:
    store = core.store
    lower = prefix + horizon + b"\0" if horizon else prefix
    return len(store.scan(store.vi, lower, prefix + be64(now + 1), limits.BATCH_MESSAGES_MAX * 10))


def _oldest_age_ms(core: ShardState, queue: QueueState, now: int) -> int:
    store, oldest = core.store, now
    for level in queue.levels:
        if level.ready or (level.delayed and level.next_due <= now):
            head = store.scan(store.vi, level.prefix + level.cursor, level.prefix + be64(now + 1), 1)
            if head:
                oldest = min(oldest, from_be64(head[0][9:17]))
    return now - oldest


def get(core: ShardState, queue: QueueState, id: bytes) -> Facts:
    """Return everything known of a stored message, or raise NotFound."""
    store, key = core.store, queue.prefix + id
    value = store.get(store.m, key)
    if value is None:
        raise NotFound("no such message", tenant=queue.tenant.name, queue=queue.name, id=id_text(id))
    stored = store.get(store.le, key)
    return _facts(core, queue, id, unpack_message(value), unpack_lease(stored) if stored is not None else None)


def _facts(core: ShardState, queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None) -> Facts:
    group = queue.group_digest(message.group)
    is_next = not group or core.store.get(core.store.gr, queue.prefix + group) == id
    now, wall = core.shard_clock.now_ms(), core.shard_clock.wall_offset_ms()
    return facts(queue, id, message, lease, now, wall, is_next=is_next)


def facts(
    queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None, now: int, wall: int, *, is_next: bool
) -> Facts:
    """Return what stored rows tell of a message at a time; ``is_next``: nothing of its group comes before it."""
    visible_at = lease.visible_at if lease is not None else message.visible_at
    in_flight = lease is not None and lease.token != 0 and lease.deadline > now
    state: Literal["ready", "delayed", "blocked", "in_flight"] = "ready"
    if in_flight:
        state = "in_flight"
    elif not is_next:
        state = "blocked"
    elif visible_at > now:
        state = "delayed"
    past = lease.unpack_past() if lease is not None else None
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
        tuple(past.history) if past is not None else (),
        past.dead if past is not None else None,
        message.size,
        sealed=message.sealed,
        sealed_attributes=message.sealed_attributes,
    )


def peek(core: ShardState, queue: QueueState, limit: int, cursor: str | None) -> Page:
    """Return waiting messages without leasing them: in order of delivery, then those that wait for their group."""
    lower, blocked_lower = _parse_cursor(queue, cursor)
    store = core.store
    keys: list[bytes] = []
    if lower is not None:
        keys = store.scan(store.vi, lower, after(queue.prefix), limit)
        if len(keys) == limit:
            return Page(_many_facts(core, queue, keys), keys[-1][len(queue.prefix) :].hex())
    if not queue.blocked and blocked_lower == queue.prefix:
        return Page(_many_facts(core, queue, keys))
    members = store.scan_items(store.gr, blocked_lower, after(queue.prefix), 2 * (limit - len(keys)) + 1)
    heads = {key: value for key, value in members if len(key) == _GROUP_HEAD_BYTES}
    for key, _ in members:
        if len(key) != _GROUP_HEAD_BYTES and len(keys) < limit:
            group = key[:_GROUP_HEAD_BYTES]
            blocked_lower = key + b"\0"
            if (heads.get(group) or store.get(store.gr, group)) != key[-16:]:
                keys.append(key)
    more = bool(members) and bool(store.scan(store.gr, blocked_lower, after(queue.prefix), 1))
    place = blocked_lower[len(queue.prefix) : -1]
    waiting = [one for one in _many_facts(core, queue, keys) if one.state != "in_flight"]
    return Page(waiting, place.hex() if more and place else None)


def _parse_cursor(queue: QueueState, cursor: str | None) -> tuple[bytes | None, bytes]:
    """Return where to go on in vi (None: through with it) and in gr."""
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
    raise Invalid("cursor: not one that peek returned")


def _many_facts(core: ShardState, queue: QueueState, keys: list[bytes]) -> list[Facts]:
    """Return the facts of the messages whose ids end ``keys``."""
    if not keys:
        return []
    store = core.store
    message_keys = [queue.prefix + key[-16:] for key in keys]
    bodies, leases = store.get_many(store.m, message_keys), store.get_many(store.le, message_keys)
    return [
        _facts(core, queue, key[-16:], unpack_message(body), unpack_lease(lease) if lease is not None else None)
        for key, body, lease in zip(keys, bodies, leases, strict=True)
        if body is not None
    ]


def result(core: ShardState, queue: QueueState, id: bytes) -> Result:
    """Return a message's result, or 'pending' while it is in the queue, or raise NotFound."""
    store, key = core.store, queue.prefix + id
    stored = store.get(store.re, key)
    if stored is not None:
        row = unpack_result(stored)
        if row.expires_at > core.shard_clock.now_ms():
            return row.result
    if store.get(store.m, key) is not None:
        return Result("pending")
    raise NotFound("no such message or result", tenant=queue.tenant.name, queue=queue.name, id=id_text(id))


async def trace(
    core: ShardState, tenant: str, queue: str, id: bytes, first_seq: int, last_seq: int
) -> list[JournalRow]:
    """Return the journal's rows about one message of this queue or its dead letters, oldest first.

    The journal is searched from the message's birth on, at most TRACE_RECORDS_MAX records of it.
    """
    store = core.store
    seq = _seq_at(core, int.from_bytes(id[:6]), first_seq, last_seq)
    end = min(last_seq, seq + limits.TRACE_RECORDS_MAX)
    wanted = id_text(id)
    found: list[JournalRow] = []
    while seq <= end:
        page = store.scan_items(store.jn, be64(seq), be64(end + 1), _TRACE_SLICE)
        if not page:
            break
        for _, value in page:
            if id in value:
                _, record = decode_record(value)
                found += [row for row in rows(record) if row.message_id == wanted and row.tenant == tenant]
        seq = from_be64(page[-1][0]) + 1
        await asyncio.sleep(0)
    if not any(row.queue == queue for row in found):
        raise NotFound("no such message in the journal", tenant=tenant, queue=queue, id=wanted)
    return found


def _seq_at(core: ShardState, engine_ms: int, first_seq: int, last_seq: int) -> int:
    """Return the first journal record at or after a time, by bisection."""
    store = core.store
    low, high = first_seq, last_seq
    while low < high:
        middle = (low + high) // 2
        value = store.get(store.jn, be64(middle))
        if value is None or decode_record(value)[1].engine_ms < engine_ms:
            low = middle + 1
        else:
            high = middle
    return low


def scan_journal(core: ShardState, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
    """Return up to ``limit`` records that are there, in order, as they are stored."""
    page = core.store.scan_items(core.store.jn, be64(first_seq), be64(last_seq + 1), limit)
    return [(from_be64(key), value) for key, value in page]


def last_checkpoint(core: ShardState) -> int:
    """Return the record that was signed last, or 0."""
    store = core.store
    found = store.last_item(store.meta, CHECKPOINT_ROW, after(CHECKPOINT_ROW))
    return from_be64(found[0][len(CHECKPOINT_ROW) :]) if found is not None else 0


def checkpoints(core: ShardState, first_seq: int) -> list[tuple[int, bytes]]:
    """Return checkpoints from a record on, at most CHECKPOINTS_MAX of them."""
    store = core.store
    page = store.scan_items(store.meta, CHECKPOINT_ROW + be64(first_seq), after(CHECKPOINT_ROW), CHECKPOINTS_MAX)
    return [(from_be64(key[len(CHECKPOINT_ROW) :]), value) for key, value in page]


def journal_link(core: ShardState, seq: int) -> bytes:
    """Return the hash of a record that is kept, or that was the last one trimmed."""
    if seq == 0:
        return GENESIS
    store = core.store
    value = store.get(store.jn, be64(seq))
    if value is not None:
        return value[: len(GENESIS)]
    anchor = store.get(store.meta, ANCHOR_KEY)
    if anchor is None or from_be64(anchor) != seq:
        raise StoreDamaged(f"journal: record {seq} is missing")
    return anchor[8 : 8 + len(GENESIS)]
