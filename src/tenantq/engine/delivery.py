"""Delivery: leases the next messages of a queue to its waiting polls. Each message has its own lease."""

from collections.abc import Iterator
from itertools import chain

from tenantq.domain import limits
from tenantq.domain.limits import ENCRYPTION_BYTES
from tenantq.domain.message import Delivery
from tenantq.engine import dead_letter, discard, groups
from tenantq.engine.effects import Effects
from tenantq.engine.level import Level
from tenantq.engine.operation import BYTES_PER_COST
from tenantq.engine.queue_state import QueueState, WaitingPoll
from tenantq.engine.work_counters import DELIVERED, WAITS
from tenantq.journal.record import column
from tenantq.store.keys import ID_BYTES, SUFFIX_BYTES, be64, from_be64
from tenantq.store.rows import ENCRYPTED, HAS_EXTRAS, LEASE_HEAD, MESSAGE_HEAD, LeaseRow, MessageRow, unpack_message

_STEP_BYTES = 512 << 10  # to read at a time once the first messages were larger than expected
_EXPIRES = slice(20, 28)  # the position of a message's expiry time in its stored row
_NEVER = bytes(8)
_Pick = tuple["Level", bytes, bool]  # the level, the key in vi, whether it was delivered before
_Found = tuple[_Pick, bytes, bytes | None]  # with the id and the stored message


def deliver(effects: Effects, queue: QueueState, polls: list[WaitingPoll], count: int) -> int:
    """Lease up to ``count`` messages to ``polls``, shared out in turns; return how many."""
    wanted = min(count, sum(poll.max - len(poll.got) for poll in polls))
    leases_max = queue.tenant.leases_max
    if leases_max is not None:
        wanted = min(wanted, leases_max - queue.tenant.usage.in_flight)
        if wanted <= 0:
            queue.tenant.starved[queue] = None
            return 0
        queue.tenant.starved.pop(queue, None)
    if effects.bytes_left <= 0:
        return 0  # the next round continues
    picks = _choose(effects, queue, wanted)
    if not picks:
        return 0
    for poll in polls:
        effects.polled.setdefault(poll, (len(poll.got), poll.bytes))
    ids = [key[-ID_BYTES:] for _, key, _ in picks]
    stored = _read(effects, queue, ids)
    found = zip(picks, ids, stored, strict=False)
    live = [
        one
        for one in found
        if (one[2] is not None and not one[0][2] and one[2][_EXPIRES] == _NEVER) or _is_deliverable(effects, queue, one)
    ]
    messages = (
        wanted if any(poll.whole_groups for poll in polls) else len(live)
    )  # the head of a group may be followed by others
    shares = _in_turns([poll.max - len(poll.got) for poll in polls], messages)
    rest = iter(live)
    delivered = _deliver_shares(effects, queue, polls, shares, rest)
    unread = picks[len(stored) :]
    for level, key, _ in chain((pick for pick, _, _ in rest), unread):  # no poll, or not this round, had room for these
        level.cursor = min(level.cursor, key[-SUFFIX_BYTES:])
    queue.in_flight += delivered
    queue.work.totals[DELIVERED] += delivered
    queue.tenant.line.charge(delivered)
    queue.count_usage()
    effects.dirty[queue] = None
    return delivered


def _read(effects: Effects, queue: QueueState, ids: list[bytes]) -> list[bytes | None]:
    """Return the stored messages of the first of ``ids``, as many as the round may still read: at least one."""
    store, prefix = effects.store, queue.prefix
    step = max(1, effects.bytes_left // (queue.largest_bytes + 1))
    stored: list[bytes | None] = []
    while len(stored) < len(ids) and effects.bytes_left > 0:
        part = store.get_many(store.m, [prefix + id for id in ids[len(stored) : len(stored) + step]])
        stored += part
        size = sum([len(one) for one in part if one is not None])
        effects.bytes_left -= size
        queue.tenant.line.charge(size / BYTES_PER_COST)
        step = max(1, min(step, _STEP_BYTES // (queue.largest_bytes + 1)))
    return stored


def _is_deliverable(effects: Effects, queue: QueueState, one: _Found) -> bool:
    """Return whether a row can be delivered. If not, remove it: heal, discard or dead-letter the message."""
    (level, key, seen), id, stored = one
    message = unpack_message(stored) if stored is not None else None
    before = effects.lease(queue, id) if seen else None
    if message is not None and not _is_over(effects, queue, message, before):
        return True
    effects.remove_waiting(queue, id, level.priority, from_be64(key[-SUFFIX_BYTES:]))
    if message is None:
        effects.heal(queue, id, "index row without a body")
        if seen:
            effects.drop_lease(queue, id)
    elif _is_past(effects, message, before):
        discard.discard(effects, queue, id, message, before)
    else:
        assert before is not None
        dead_letter.bury(effects, queue, id, before, "MAX_ATTEMPTS", message)
    return False


def _is_past(effects: Effects, message: MessageRow, lease: LeaseRow | None) -> bool:
    expires_at = lease.expires_at if lease is not None else message.expires_at
    return bool(expires_at) and expires_at <= effects.now


def _is_over(effects: Effects, queue: QueueState, message: MessageRow, lease: LeaseRow | None) -> bool:
    """Return whether a message is past its TTL or has no attempts left."""
    if _is_past(effects, message, lease):
        return True
    return lease is not None and lease.attempts > 0 and lease.attempts >= dead_letter.attempts_allowed(queue, lease)


def _in_turns(wanted: list[int], count: int) -> list[int]:
    """Return how ``count`` messages are divided if each poll takes one in turn, up to the number it wants."""
    shares = [0] * len(wanted)
    hungry = list(range(len(wanted)))
    while hungry and count > 0:
        each = max(1, count // len(hungry))
        for one in hungry:
            given = min(each, wanted[one] - shares[one], count)
            shares[one] += given
            count -= given
        hungry = [one for one in hungry if shares[one] < wanted[one]]
    return shares


def _deliver_shares(
    effects: Effects, queue: QueueState, polls: list[WaitingPoll], shares: list[int], found: Iterator[_Found]
) -> int:
    """Lease the next of ``found`` to each poll until it has its share or its reply is full; return how many were leased.

    Most messages have only a body and are delivered for the first time. They take a shorter path.
    """
    now, wall, store, batch = effects.now, effects.wall, effects.store, effects.batch
    put, delete, vi, le, li = batch.put, batch.delete, store.vi.handle, store.le.handle, store.li.handle
    skip, overlay, bits = effects.skip, effects.overlay, effects.state.randomness.getrandbits
    unpack_head, head_bytes, pack_lease_head = MESSAGE_HEAD.unpack_from, MESSAGE_HEAD.size, LEASE_HEAD.pack
    fifo, prefix, tenant_name, queue_name = queue.fifo, queue.prefix, queue.tenant.name, queue.name
    delivered = 0
    for poll, share in zip(polls, shares, strict=True):
        if not share or poll.bytes >= limits.REPLY_BYTES_MAX:
            continue
        leasing = _Leasing(effects, queue, poll)
        until, got, ids, sizes, priorities = leasing.until, poll.got, leasing.ids, leasing.sizes, leasing.priorities
        deadline_prefix = prefix + be64(until)
        for (level, waiting_key, seen), id, stored in found:
            if level.remove(waiting_key[-SUFFIX_BYTES:]):
                queue.ready -= 1
            delete(waiting_key, vi)
            skip.add(waiting_key)
            assert stored is not None
            flags, priority, max_attempts, added_at, visible_at, expires_at = unpack_head(stored)
            if seen or flags & HAS_EXTRAS or expires_at or fifo:
                leasing.add_found(id, stored, waiting_key, share, seen=seen)
            else:
                body = stored[head_bytes:]
                size = len(body) - (ENCRYPTION_BYTES if flags else 0)
                token = bits(64) or 1
                lease = pack_lease_head(1, token, until, now, visible_at, 0, size, priority, max_attempts, 0)
                key = prefix + id
                overlay[key] = lease
                put(key, lease, le)
                put(deadline_prefix + id, b"", li)
                ids.append(id)
                sizes.append(size)
                priorities.append(priority)
                leasing.attempts.append(1)
                leasing.waits.append(now - visible_at)
                poll.bytes += size
                got.append(
                    Delivery(
                        id, (id + be64(token)).hex(), body, 1, priority, {}, None, added_at + wall, until + wall,
                        tenant_name, queue_name, flags >= ENCRYPTED,
                    )
                )  # fmt: skip
            if len(ids) >= share or poll.bytes >= limits.REPLY_BYTES_MAX:
                break
        leasing.journal()
        delivered += len(ids)
    return delivered


class _Leasing:
    """The messages of one queue that are leased to one poll, and their journal entry."""

    __slots__ = ("_effects", "_poll", "_queue", "attempts", "ids", "priorities", "sizes", "until", "waits")

    def __init__(self, effects: Effects, queue: QueueState, poll: WaitingPoll) -> None:
        self._effects, self._queue, self._poll = effects, queue, poll
        self.until = effects.now + (poll.lease_ms if poll.lease_ms is not None else queue.config.lease_ms)
        self.ids: list[bytes] = []
        self.sizes: list[int] = []
        self.priorities: list[int] = []
        self.attempts: list[int] = []
        self.waits: list[int] = []

    def add_found(self, id: bytes, stored: bytes, waiting_key: bytes, share: int, *, seen: bool) -> None:
        """Lease a message that is more than a body or was delivered before; with ``whole_groups`` also its followers."""
        effects, queue, message = self._effects, self._queue, unpack_message(stored)
        self.add(id, message, effects.lease(queue, id) if seen else None, from_be64(waiting_key[-SUFFIX_BYTES:]))
        if self._poll.whole_groups and (queue.fifo or message.group is not None) and len(self.ids) < share:
            self.add_followers(queue.group_digest(message.group), id, share - len(self.ids))

    def add(self, id: bytes, message: MessageRow, before: LeaseRow | None, visible_at: int) -> None:
        """Lease one message."""
        effects, queue, poll, until = self._effects, self._queue, self._poll, self.until
        token = effects.state.randomness.getrandbits(64) or 1
        if before is None:
            group = queue.group_digest(message.group) if queue.fifo or message.group is not None else b""
            before = LeaseRow(
                0, 0, 0, 0, 0, message.expires_at, message.size, message.priority, message.max_attempts, group
            )
        before.attempts += 1
        before.token, before.deadline, before.leased_at, before.visible_at = token, until, effects.now, visible_at
        history = before.unpack_history()
        effects.put_lease(queue, id, before)
        effects.batch.put(queue.prefix + be64(until) + id, b"", effects.store.li.handle)
        self.ids.append(id)
        self.sizes.append(message.size)
        self.priorities.append(message.priority)
        self.attempts.append(before.attempts)
        self.waits.append(effects.now - visible_at)
        poll.bytes += message.size
        poll.got.append(
            Delivery(
                id, (id + be64(token)).hex(), message.body, before.attempts, message.priority, message.attributes,
                message.group, message.added_at + effects.wall, until + effects.wall, queue.tenant.name, queue.name,
                message.encrypted, message.encrypted_attributes,
                history.dead.source if history.dead is not None else "",
                history.first_at,
                history.dead.attempts if history.dead is not None else 0,
            )
        )  # fmt: skip

    def add_followers(self, group: bytes, head: bytes, room: int) -> None:
        """Lease up to ``room`` followers of a group's head to the same poll.

        The first follower that is in flight, not visible yet or not deliverable ends it, since nothing may overtake it.
        """
        effects, queue, store = self._effects, self._queue, self._effects.store
        for id in groups.behind(effects, queue, group, head, room):
            stored = store.get(store.m, queue.prefix + id)
            if stored is None:
                return  # it is healed when it becomes the head
            message, before = unpack_message(stored), effects.lease(queue, id)
            visible_at = before.visible_at if before is not None else message.visible_at
            is_leased = before is not None and before.token
            if is_leased or visible_at > effects.now or self._poll.bytes >= limits.REPLY_BYTES_MAX:
                return
            if _is_over(effects, queue, message, before):
                return  # removed when it becomes the head: a dead letter that cannot move yet must not be overtaken
            queue.blocked -= 1
            self.add(id, message, before, visible_at)

    def journal(self) -> None:
        """Add the journal entry."""
        if self.ids:
            self._queue.note_lease(self.until)
            self._queue.work.count_times(WAITS, self.waits)
            self._effects.log(
                "poll", self._queue, self._poll.caller, ids=b"".join(self.ids), size=column(self.sizes),
                priority=column(self.priorities), attempt=column(self.attempts), wait_ms=column(self.waits),
            )  # fmt: skip


# ---- choosing which rows ----


def _choose(effects: Effects, queue: QueueState, count: int) -> list[_Pick]:
    """Return up to ``count`` ready rows by strict priority, with a bounded share for lower priorities that waited long."""
    levels = [level for level in queue.levels if level.ready > 0]
    if not levels:
        queue.ready = 0
        effects.heal(queue, b"", "ready messages counted, but at no priority")
        return []
    if len(levels) == 1:
        return _scan_level(effects, queue, levels[0], count, {})
    picks: list[_Pick] = []
    behind: dict[Level, bytes] = {}  # where a level's next scan continues
    for level, share in _owed_to_lower(effects, queue, levels, count):
        picks += _scan_level(effects, queue, level, share, behind)
    for level in levels:
        if len(picks) >= count:
            break
        picks += _scan_level(effects, queue, level, count - len(picks), behind)
    picks.sort(key=lambda pick: -pick[0].priority)
    return picks


def _owed_to_lower(effects: Effects, queue: QueueState, levels: list[Level], count: int) -> list[tuple[Level, int]]:
    """Return what lower priorities get of the next ``count`` deliveries, once enough others were preferred to them."""
    if not levels or levels[0].ready < count:
        return []  # the highest priority runs empty in this batch: no other starves
    every = queue.config.low_priority_every
    queue.passed_over += count
    slots = queue.passed_over // every
    if not slots:
        return []
    aged = [level for level in levels[1:] if _waits_long(effects, queue, level)]
    if not aged:
        queue.passed_over = every - 1
        return []
    queue.passed_over %= every
    slots = min(slots, count)
    shares = [slots // len(aged)] * len(aged)
    for _ in range(slots % len(aged)):
        shares[queue.low_turn % len(aged)] += 1
        queue.low_turn += 1
    return [(level, share) for level, share in zip(aged, shares, strict=True) if share]


def _waits_long(effects: Effects, queue: QueueState, level: Level) -> bool:
    heads = effects.store.scan(effects.store.vi, level.prefix + level.cursor, level.prefix + be64(effects.now + 1), 1)
    return bool(heads) and from_be64(heads[0][9:17]) <= effects.now - queue.config.low_priority_after_ms


def _scan_level(
    effects: Effects, queue: QueueState, level: Level, count: int, behind: dict[Level, bytes]
) -> list[_Pick]:
    """Take up to ``count`` rows off the front of a level and move its cursor behind them."""
    picks: list[_Pick] = []
    upper = level.prefix + be64(effects.now + 1)
    skip = effects.skip
    start = behind.get(level, level.prefix + level.cursor)
    while len(picks) < count:
        wanted = count - len(picks)
        rows = effects.store.scan_items(effects.store.vi, start, upper, wanted)
        for key, seen in rows:
            if not skip or key not in skip:
                picks.append((level, key, bool(seen)))
        if rows:
            start = behind[level] = rows[-1][0] + b"\0"
            cursor = start[-SUFFIX_BYTES - 1 :]
            level.cursor = min(cursor, effects.fresh.get(level, cursor))
        if len(rows) < wanted:
            break
    if not picks and level not in behind and level.ready > 0 and queue not in effects.dirty:
        # The counter promises rows that are missing: trust the rows, and report it.
        lost = level.ready
        level.ready = 0
        queue.ready -= lost
        effects.heal(queue, b"", f"{lost} ready messages counted but not found at priority {level.priority}")
    return picks
