"""Serving polls: several that wait for one queue are served together, dealt one message each in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tenantq import limits
from tenantq.engine import dead_letter, discard, usage
from tenantq.engine.queue_state import DELIVERED
from tenantq.journal.record import column
from tenantq.message import Delivery
from tenantq.store.keys import SUFFIX_BYTES, be64, from_be64
from tenantq.store.rows import MESSAGE_HEAD, pack_first_lease, pack_lease, unpack_message

if TYPE_CHECKING:
    from collections import deque

    from tenantq.engine.fleet import Lane
    from tenantq.engine.operation import FleetPoll, Poll
    from tenantq.engine.queue_state import Level, QueueState
    from tenantq.engine.round import Round
    from tenantq.store.rows import LeaseRow, MessageRow

_SHARED_TURNS = 4  # while others wait, deliveries in a round are bounded by so many times round_cost_shared
_NO_ATTRIBUTES: dict[str, str] = {}
_P = TypeVar("_P", "Poll", "FleetPoll")


def serve_hot(round: Round) -> None:
    """Serve the queues and lanes that have both messages and waiting polls, tenants furthest behind first."""
    core = round.core
    budget = core.settings.round_cost_alone
    if round.shared or len({queue.tenant for queue in core.hot}) > 1:
        budget = _SHARED_TURNS * core.settings.round_cost_shared
    if core.hot:
        hot, core.hot = core.hot, {}
        order = sorted(hot, key=_tenant_time) if len(hot) > 1 else hot
        for queue in order:
            if budget <= 0:
                core.hot[queue] = None
                continue
            budget -= _serve_queue(round, queue, budget)
    if core.hot_lanes:
        lanes, core.hot_lanes = core.hot_lanes, {}
        for lane in lanes:
            if budget <= 0:
                core.hot_lanes[lane] = None
                continue
            budget -= _serve_lane(round, lane, budget)


def _tenant_time(queue: QueueState) -> float:
    return queue.tenant.line.time


def _serve_queue(round: Round, queue: QueueState, budget: int) -> int:
    """Deal up to ``budget`` of a queue's ready messages to its waiting polls; return how many were dealt."""
    polls = [poll for poll in queue.demands if not poll.done]
    dealt = 0
    if polls and queue.ready > 0 and queue.serving and queue.prefix not in round.cleared:
        dealt = deal(round, queue, _first_of(polls, budget), budget)
    queue.demands.clear()
    more = queue.ready > 0 and queue.serving and queue not in queue.tenant.starved
    for poll in polls:
        _answer_or_wait(round, poll, queue.demands, more=more)
    if queue.demands and more:
        round.core.hot[queue] = None
    return dealt


def _first_of(polls: list[Poll], budget: int) -> list[Poll]:
    """Return the polls whose turn it is: all, or the first that can use up the round's bound; the rest are next."""
    wanted = 0
    for count, poll in enumerate(polls, 1):
        wanted += poll.max
        if wanted >= budget:
            return polls[:count]
    return polls


def _serve_lane(round: Round, lane: Lane, budget: int) -> int:
    """Deal up to ``budget`` messages of many tenants' queues to the fleet polls that wait; return how many were dealt."""
    polls = [poll for poll in lane.demands if not poll.done]
    dealt = 0
    for allowed in dict.fromkeys(poll.allowed for poll in polls):
        takers = [poll for poll in polls if poll.allowed == allowed]
        while dealt < budget:
            wanted = min(budget - dealt, sum(poll.max - len(poll.got) for poll in takers))
            shares = lane.share_out(wanted, allowed) if wanted else {}
            before = sum(queue.ready for queue in shares)
            dealt += _deal_shares(round, lane, takers, shares)
            if sum(queue.ready for queue in shares) == before:
                break  # nothing left, or nothing that this round can see
    lane.demands.clear()
    for poll in polls:
        _answer_or_wait(round, poll, lane.demands, more=dealt >= budget)
    if dealt >= budget and lane.demands:
        round.core.hot_lanes[lane] = None
    return dealt


def _deal_shares(round: Round, lane: Lane, takers: list[FleetPoll], shares: dict[QueueState, int]) -> int:
    """Deal what each queue may give, those that have least first; what it could not give stays in the lane."""
    dealt = 0
    for queue, share in shares.items():
        hungry = sorted(
            (poll for poll in takers if len(poll.got) < poll.max and poll.bytes < limits.REPLY_BYTES_MAX), key=_taken
        )
        if hungry and queue.prefix not in round.cleared:
            dealt += deal(round, queue, hungry, share)
        if queue.ready > 0:
            lane.enter(queue)
    return dealt


def _taken(poll: FleetPoll) -> int:
    return len(poll.got)


def _answer_or_wait(round: Round, poll: _P, demands: deque[_P], *, more: bool) -> None:
    if poll.got or (poll.wait_ms == 0 and not more):
        poll.reply = poll.got
        if poll.timer is not None:
            poll.timer.cancel()
        round.caller_ops.append(poll)
        return
    demands.append(poll)
    if poll.wait_ms and poll.timer is None:
        poll.timer = round.core.clock.call_later(poll.wait_ms, lambda: round.core.finished_waiting(poll))


def deal(round: Round, queue: QueueState, polls: list[Poll] | list[FleetPoll], count: int) -> int:
    """Lease up to ``count`` messages to ``polls``, as many to each as dealing in turns gives; return how many."""
    wanted = min(count, sum(poll.max - len(poll.got) for poll in polls))
    leases_max = queue.tenant.config.quotas.in_flight
    if leases_max is not None:
        wanted = min(wanted, leases_max - queue.tenant.usage.in_flight)
        if wanted <= 0:
            queue.tenant.starved[queue] = None
            return 0
        queue.tenant.starved.pop(queue, None)
    picks = _choose(round, queue, wanted)
    if not picks:
        return 0
    prefix, store = queue.prefix, round.store
    ids = [suffix[8:] for _, suffix, _ in picks]
    bodies = store.get_many(store.m, [prefix + id for id in ids])
    shares = _in_turns([poll.max - len(poll.got) for poll in polls], len(picks))
    hands = iter([_Hand(round, queue, poll, share) for poll, share in zip(polls, shares, strict=True) if share])
    hand: _Hand | None = next(hands)
    delete, vi, skip = round.batch.delete, store.vi.handle, round.skip
    unpack_head, fifo = MESSAGE_HEAD.unpack_from, queue.fifo
    dealt = 0
    for (level, suffix, seen), id, body in zip(picks, ids, bodies, strict=True):
        while hand is not None and hand.full():
            hand.finish()
            hand = next(hands, None)
        if hand is None:
            level.cursor = min(level.cursor, suffix)
            continue
        if level.remove(suffix):
            queue.ready -= 1
        key = level.prefix + suffix
        delete(key, vi)
        skip.add(key)
        if body is None:
            round.heal(queue, id, "index row without a body")
            if seen:
                round.drop_lease(queue, id)
            continue
        flags, priority, max_attempts, added_at, _, expires_at = unpack_head(body)
        if seen or flags or expires_at or fifo:
            message = unpack_message(body)
            before = round.lease(queue, id) if seen else None
            if (seen or expires_at) and _ends_here(round, queue, id, message, before):
                continue
            hand.take(id, message, before, from_be64(suffix))
        else:
            hand.take_plain(id, priority, max_attempts, added_at, body[MESSAGE_HEAD.size :], from_be64(suffix))
        dealt += 1
    if hand is not None:
        hand.finish()
    queue.in_flight += dealt
    queue.totals[DELIVERED] += dealt
    queue.tenant.line.charge(dealt)
    usage.count(queue)
    round.dirty[queue] = None
    return dealt


def _in_turns(wanted: list[int], count: int) -> list[int]:
    """Return what each gets of ``count`` if they take one each in turn until they have what they wanted."""
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


class _Hand:
    """One poll while it is dealt messages of one queue."""

    __slots__ = (
        "attempts", "bits", "deadline_prefix", "ids", "poll", "priorities", "queue", "round", "share", "sizes", "until",
        "until_wall", "waits",
    )  # fmt: skip

    def __init__(self, round: Round, queue: QueueState, poll: Poll | FleetPoll, share: int) -> None:
        self.round = round
        self.share = share
        self.queue = queue
        self.poll = poll
        self.bits = round.core.randomness.getrandbits
        self.until = round.now + (poll.lease_ms if poll.lease_ms is not None else queue.config.lease_ms)
        self.until_wall = self.until + round.wall
        self.deadline_prefix = queue.prefix + be64(self.until)
        self.ids: list[bytes] = []
        self.sizes: list[int] = []
        self.priorities: list[int] = []
        self.attempts: list[int] = []
        self.waits: list[int] = []

    def full(self) -> bool:
        return len(self.ids) >= self.share or self.poll.bytes >= limits.REPLY_BYTES_MAX

    def take_plain(
        self, id: bytes, priority: int, max_attempts: int, added_at: int, body: bytes, visible_at: int
    ) -> None:
        """Lease a message that is nothing but a body, for the first time: the way that most messages go."""
        token = self.bits(64) or 1
        size = len(body)
        lease = pack_first_lease(token, self.until, self.round.now, visible_at, 0, size, priority, max_attempts, b"")
        self._hand_out(id, token, lease, body, 1, priority, size, visible_at, _NO_ATTRIBUTES, None, added_at)

    def take(self, id: bytes, message: MessageRow, before: LeaseRow | None, visible_at: int) -> None:
        """Lease any message."""
        round, queue, until = self.round, self.queue, self.until
        token = self.bits(64) or 1
        size, priority = message.size, message.priority
        if before is None:
            attempt = 1
            group = queue.group_digest(message.group) if queue.fifo or message.group is not None else b""
            lease = pack_first_lease(
                token, until, round.now, visible_at, message.expires_at, size, priority, message.max_attempts, group
            )
        else:
            attempt = before.attempts = before.attempts + 1
            before.token, before.deadline, before.leased_at, before.visible_at = token, until, round.now, visible_at
            lease = pack_lease(before)
        self._hand_out(
            id, token, lease, message.body, attempt, priority, size, visible_at, message.attributes, message.group,
            message.added_at,
        )  # fmt: skip

    def _hand_out(
        self, id: bytes, token: int, lease: bytes, body: bytes, attempt: int, priority: int, size: int,
        visible_at: int, attributes: dict[str, str], group: str | None, added_at: int,
    ) -> None:  # fmt: skip
        """Write the lease and put the message into the poll's reply and the journal's columns."""
        round, queue, poll = self.round, self.queue, self.poll
        put, store = round.batch.put, round.store
        key = queue.prefix + id
        round.overlay[key] = lease
        put(key, lease, store.le.handle)
        put(self.deadline_prefix + id, b"", store.li.handle)
        self.ids.append(id)
        self.sizes.append(size)
        self.priorities.append(priority)
        self.attempts.append(attempt)
        self.waits.append(round.now - visible_at)
        poll.bytes += size
        poll.got.append(
            Delivery(
                id, f"{id.hex()}{token:016x}", body, attempt, priority, attributes, group, added_at + round.wall,
                self.until_wall, queue.tenant.name, queue.name,
            )
        )  # fmt: skip

    def finish(self) -> None:
        """Note the deadline and journal what was dealt."""
        if self.ids:
            self.queue.next_lease = min(self.queue.next_lease, self.until)
            self.round.log(
                "poll", self.queue, self.poll.caller, ids=b"".join(self.ids), size=column(self.sizes),
                priority=column(self.priorities), attempt=column(self.attempts), wait_ms=column(self.waits),
            )  # fmt: skip


def _ends_here(round: Round, queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None) -> bool:
    """Discard a message past its TTL, or bury one whose attempts are used up, instead of delivering it."""
    expires_at = lease.expires_at if lease is not None else message.expires_at
    if expires_at and expires_at <= round.now:
        discard.discard(round, queue, id, message, lease)
        return True
    if lease is not None and lease.attempts and lease.attempts >= dead_letter.attempts_allowed(queue, lease):
        dead_letter.bury(round, queue, id, lease, "MAX_ATTEMPTS", message)
        return True
    return False


# ---- choosing which rows ----

_Pick = tuple["Level", bytes, bool]  # the level, the suffix, whether it was delivered before


def _choose(round: Round, queue: QueueState, count: int) -> list[_Pick]:
    """Return up to ``count`` ready rows: strict priority, with a bounded share for lower ones that wait long."""
    levels = [level for level in queue.levels if level.ready > 0]
    if not levels:
        queue.ready = 0
        round.heal(queue, b"", "ready messages counted, but at no priority")
        return []
    if len(levels) == 1:
        return _scan_level(round, queue, levels[0], count, {})
    picks: list[_Pick] = []
    behind: dict[Level, bytes] = {}  # where a level's next scan goes on
    for level, share in _owed_to_lower(round, queue, levels, count):
        picks += _scan_level(round, queue, level, share, behind)
    for level in levels:
        if len(picks) >= count:
            break
        picks += _scan_level(round, queue, level, count - len(picks), behind)
    picks.sort(key=lambda pick: -pick[0].priority)
    return picks


def _owed_to_lower(round: Round, queue: QueueState, levels: list[Level], count: int) -> list[tuple[Level, int]]:
    """Return what lower priorities get of the next ``count`` deliveries, after enough went past them."""
    if not levels or levels[0].ready < count:
        return []  # the higher priority runs dry in this very batch: nobody is starved
    every = queue.config.low_priority_every
    queue.passed_over += count
    slots = queue.passed_over // every
    if not slots:
        return []
    aged = [level for level in levels[1:] if _waits_long(round, queue, level)]
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


def _waits_long(round: Round, queue: QueueState, level: Level) -> bool:
    heads = round.store.scan(round.store.vi, level.prefix + level.cursor, level.prefix + be64(round.now + 1), 1)
    return bool(heads) and from_be64(heads[0][9:17]) <= round.now - queue.config.low_priority_after_ms


def _scan_level(round: Round, queue: QueueState, level: Level, count: int, behind: dict[Level, bytes]) -> list[_Pick]:
    """Take up to ``count`` rows off the front of a level and move its cursor behind them."""
    picks: list[_Pick] = []
    upper = level.prefix + be64(round.now + 1)
    skip = round.skip
    start = behind.get(level, level.prefix + level.cursor)
    while len(picks) < count:
        wanted = count - len(picks)
        rows = round.store.scan_items(round.store.vi, start, upper, wanted)
        for key, seen in rows:
            if not skip or key not in skip:
                picks.append((level, key[-SUFFIX_BYTES:], bool(seen)))
        if rows:
            start = behind[level] = rows[-1][0] + b"\0"
            cursor = start[-SUFFIX_BYTES - 1 :]
            level.cursor = min(cursor, round.fresh.get(level, cursor))
        if len(rows) < wanted:
            break
    if not picks and level not in behind and level.ready > 0 and not _has_new_rows(round, queue):
        # The counter promises rows that are not there: believe the rows, and tell.
        lost = level.ready
        level.ready = 0
        queue.ready -= lost
        round.heal(queue, b"", f"{lost} ready messages counted but not found at priority {level.priority}")
    return picks


def _has_new_rows(round: Round, queue: QueueState) -> bool:
    return queue in round.dirty
