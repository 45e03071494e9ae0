"""Settle leases: ack, nack, release, extend. Only the current receipt is valid, and only until its deadline."""

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Self

from tenantq.domain import limits
from tenantq.domain.message import Caller, HistoryEntry, Outcome, Result, check_batch, check_result
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import check_field
from tenantq.engine import dead_letter, discard, groups
from tenantq.engine.arguments import check_reason
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, PART_BYTES, Operation, split
from tenantq.engine.ops.add import not_encrypted
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.work_counters import ACKED, NACKED, PROCESSING
from tenantq.errors import Invalid, LeaseLost, NotFound, TenantqError
from tenantq.journal.record import column
from tenantq.runtime.backoff import Backoff
from tenantq.store.keys import EXPIRES_TTL, be64, expiry_key
from tenantq.store.rows import LeaseRow, pack_history, unpack_message

OK = Outcome(True)
_RECEIPT_CHARS = 48
_LeaseColumn = list[int] | int
_unpack_receipt = struct.Struct(">16sQ").unpack


def parse_receipt(receipt: object) -> tuple[bytes, int] | None:
    """Return the message id and the lease token of a receipt, or None if it is malformed."""
    if not isinstance(receipt, str) or len(receipt) != _RECEIPT_CHARS:
        return None
    try:
        id, token = _unpack_receipt(bytes.fromhex(receipt))
    except (ValueError, struct.error):  # fromhex() allows spaces, so there may be fewer bytes
        return None
    return (id, token) if token else None


class SettleOperation(Operation[list[Outcome]]):
    """Work on the current leases of a batch of receipts. Replies one outcome per receipt, in order.

    With ``any_receipt``, an earlier receipt of a leased message counts too.
    """

    ends_lease = True
    ends_processing = False

    def __init__(
        self, tenant: TenantState, caller: Caller, queue: str, receipts: Sequence[object], *, any_receipt: bool = False
    ) -> None:
        check_queue_name(queue)
        check_batch("receipts", receipts)
        super().__init__(tenant, caller)
        self.cost = len(receipts)
        self.queue_name = queue
        self.receipts = [parse_receipt(receipt) for receipt in receipts]
        self.any_receipt = any_receipt

    def parts(self) -> list[tuple[Self, int]]:
        """Return the operations in which this one runs, and the number of receipts of each."""
        return split(self, "receipts", [0] * len(self.receipts))

    def execute(self, effects: Effects) -> None:
        """Settle each receipt that is current; answer each in its place."""
        queue = effects.state.catalog.queue(self.tenant, self.queue_name)
        queue.check_undamaged()
        current, lost = self._current(effects, queue)
        reply: list[Outcome] = []
        if current:
            ids = b"".join(current)
            sizes, priorities, attempts, held = _columns(current, effects.now)
            if self.ends_processing:
                queue.work.count_times(PROCESSING, held)
            outcomes = self.settle_all(effects, queue, current)
            effects.dirty[queue] = None
            effects.log(
                self.journal_op, queue, self.caller, ids=ids, size=sizes, priority=priorities, attempt=attempts,
                process_ms=column(held), details=self.details(),
            )  # fmt: skip
            if len(outcomes) == len(self.receipts):
                self.reply = list(outcomes.values())
                return
            reply = [
                self._lost(lost.get(index)) if index in lost or parsed is None else outcomes[parsed[0]]
                for index, parsed in enumerate(self.receipts)
            ]
        else:
            reply = [self._lost(lost.get(index)) for index in range(len(self.receipts))]
        self.reply = reply
        refused: dict[str, list[bytes]] = {}
        for id in lost.values():
            refused.setdefault(self._refusal(id).code, []).append(id)
        for code, them in refused.items():
            effects.log(self.journal_op, queue, self.caller, ids=b"".join(them), outcome="refused", error_code=code)

    def _current(self, effects: Effects, queue: QueueState) -> tuple[dict[bytes, LeaseRow], dict[int, bytes]]:
        """Return the leases that the receipts hold, by id, and the ids of receipts that hold none, by position.

        A receipt that comes twice in one batch holds its lease only the first time, unless the lease outlives it.
        """
        if queue.frozen is not None:  # the messages are delivered again where they moved to
            return {}, {index: parsed[0] if parsed else bytes(16) for index, parsed in enumerate(self.receipts)}
        known = [parsed[0] for parsed in self.receipts if parsed is not None]
        leases = iter(effects.leases(queue, known)) if known else iter(())
        now = effects.now
        current: dict[bytes, LeaseRow] = {}
        lost: dict[int, bytes] = {}
        for index, parsed in enumerate(self.receipts):
            if parsed is None:
                lost[index] = bytes(16)
                continue
            id, token = parsed
            lease = next(leases)
            if (
                lease is None
                or (lease.token != token and not self.any_receipt)
                or lease.deadline <= now
                or (self.ends_lease and id in current)
            ):
                lost[index] = id
            else:
                current[id] = lease
        return current, lost

    def _lost(self, id: bytes | None) -> Outcome:
        return Outcome(False, self._refusal(id))

    def _refusal(self, _: bytes | None) -> TenantqError:
        """Return why a receipt was not settled. All such receipts of an operation share one error."""
        return self._lease_lost

    @cached_property
    def _lease_lost(self) -> LeaseLost:
        return LeaseLost(tenant=self.tenant.name, queue=self.queue_name)

    def settle_all(self, effects: Effects, queue: QueueState, current: dict[bytes, LeaseRow]) -> dict[bytes, Outcome]:
        """Do the work for all current leases."""
        return {id: self.settle(effects, queue, id, lease) for id, lease in current.items()}

    def settle(self, effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Do the work for one current lease."""
        raise NotImplementedError

    def details(self) -> str:
        """Return the details of the journal entry."""
        return ""


def _columns(current: dict[bytes, LeaseRow], now: int) -> tuple[_LeaseColumn, _LeaseColumn, _LeaseColumn, list[int]]:
    """Return sizes, priorities, attempts and processing times of leases, for the journal."""
    leases = list(current.values())
    if len(leases) == 1:  # as in most calls
        (one,) = leases
        return one.size, one.priority, one.attempts, [now - one.leased_at]
    return (
        column([one.size for one in leases]),
        column([one.priority for one in leases]),
        column([one.attempts for one in leases]),
        [now - one.leased_at for one in leases],
    )


def check_results(receipts: Sequence[object], results: Sequence[Result | None] | None) -> None:
    """Raise Invalid unless ``results`` is None or has a valid result, or None, for each receipt."""
    if results is None:
        return
    check_batch("results", results)
    if len(results) != len(receipts):
        raise Invalid(f"results: {len(results)} for {len(receipts)} receipts; give one for each, or None")
    for result in results:
        if result is not None:
            check_result(result)


class Ack(SettleOperation):
    """Finish messages, with or without results."""

    journal_op = "ack"
    ends_processing = True

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue: str,
        receipts: Sequence[object],
        results: Sequence[Result | None] | None = None,
    ) -> None:
        super().__init__(tenant, caller, queue, receipts)
        check_results(receipts, results)
        self._has_plaintext = results is not None and any(one is not None and not one.encrypted for one in results)
        self.results: dict[tuple[bytes, int], Result | None] = {}
        for parsed, result in zip(self.receipts, results or (), strict=False):
            if parsed is not None:
                self.results.setdefault(parsed, result)  # of a receipt that comes twice, the first counts
        if self.results:
            self.cost += sum(self._result_sizes()) / BYTES_PER_COST

    def _result_sizes(self) -> list[int]:
        values = (self.results.get(parsed) if parsed is not None else None for parsed in self.receipts)
        return [len(one.value or b"") + len(one.error or "") if one is not None else 0 for one in values]

    def parts(self) -> list[tuple[Self, int]]:
        """Return the operations in which this one runs, and the number of receipts of each."""
        return split(self, "receipts", self._result_sizes()) if self.results else super().parts()

    def execute(self, effects: Effects) -> None:
        """Settle each receipt that is current; a plaintext result is refused if the tenant is encrypted."""
        if self._has_plaintext and self.tenant.config.encryption.enabled:
            raise not_encrypted(self.tenant.name, self.queue_name)
        super().execute(effects)

    def settle_all(self, effects: Effects, queue: QueueState, current: dict[bytes, LeaseRow]) -> dict[bytes, Outcome]:
        """Finish plain messages together, and others one by one."""
        if self.results or queue.has_lane or queue.result_waiters:
            return super().settle_all(effects, queue, current)
        store, delete, prefix = effects.store, effects.batch.delete, queue.prefix
        m, le, li = store.m.handle, store.le.handle, store.li.handle
        keys: list[bytes] = []
        size = 0
        for id, lease in current.items():
            if lease.expires_at or lease.group:
                self.settle(effects, queue, id, lease)
                continue
            key = prefix + id
            delete(key, m)
            delete(key, le)
            delete(prefix + be64(lease.deadline) + id, li)
            keys.append(key)
            size += lease.size
        effects.forget(keys)
        effects.state.recent_acks.note(keys, effects.now)
        queue.in_flight -= len(keys)
        queue.bytes -= size
        queue.work.totals[ACKED] += len(keys)
        return dict.fromkeys(current, OK)

    def settle(self, effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Delete the message and store its result, if any."""
        store, delete, prefix = effects.store, effects.batch.delete, queue.prefix
        key = prefix + id
        delete(key, store.m.handle)
        delete(key, store.le.handle)
        delete(prefix + be64(lease.deadline) + id, store.li.handle)
        effects.forget([key])
        effects.state.recent_acks.note([key], effects.now)
        queue.in_flight -= 1
        queue.bytes -= lease.size
        queue.work.totals[ACKED] += 1
        if lease.expires_at:
            delete(expiry_key(queue.prefix, lease.expires_at, EXPIRES_TTL, id), store.ex.handle)
        if lease.group:
            groups.leave(effects, queue, lease.group, id, blocked=False)
        if queue.has_lane:
            effects.state.lanes[queue.name].settle(queue, effects.now - lease.leased_at)
        result = self.results.get((id, lease.token)) if self.results else None
        if result is not None:
            dead_letter.write_result(effects, queue, id, result, effects.now + queue.config.result_ttl_ms)
        elif queue.result_waiters:
            effects.results_ready.append((queue, id))
        return OK


class Nack(SettleOperation):
    """Report messages as failed. Each is retried after ``delay_ms`` or the queue's backoff, or becomes a dead letter."""

    journal_op = "nack"
    ends_processing = True

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue: str,
        receipts: Sequence[object],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        any_receipt: bool = False,
    ) -> None:
        super().__init__(tenant, caller, queue, receipts, any_receipt=any_receipt)
        if delay_ms is not None:
            check_field("delay_ms", delay_ms, limits.DelayMs)
        check_reason(reason)
        self.delay_ms = delay_ms
        self.reason = reason
        self._done: list[Outcome] = []  # of receipts that earlier rounds settled
        self._rest: list[tuple[bytes, int] | None] = []  # receipts for later rounds
        self._before = -1, self.receipts, self._done  # the last round, and what was open and done before it

    def execute(self, effects: Effects) -> None:
        """Settle receipts. If that moves many bytes to a dead-letter queue, a later round settles the rest."""
        self._rest, self._before = [], (effects.seq, self.receipts, self._done)
        try:
            super().execute(effects)
        except NotFound as error:
            if not self._done:
                raise
            self.reply = [Outcome(False, error)] * len(self.receipts)
        self._done = self.reply = [*self._done, *self.reply]
        self.receipts = self._rest
        self.unfinished, self.cost = bool(self._rest), len(self._rest)

    def undo(self, seq: int) -> None:
        """Take back the receipts that the round settled."""
        super().undo(seq)
        if self._before[0] == seq:
            _, self.receipts, self._done = self._before

    def _current(self, effects: Effects, queue: QueueState) -> tuple[dict[bytes, LeaseRow], dict[int, bytes]]:
        current, lost = super()._current(effects, queue)
        if sum(lease.size for lease in current.values()) < PART_BYTES:
            return current, lost
        moved = 0
        for index, parsed in enumerate(self.receipts):
            lease = current.get(parsed[0]) if parsed is not None else None
            if lease is not None and lease.attempts >= dead_letter.attempts_allowed(queue, lease):
                moved += lease.size
            if moved >= PART_BYTES:
                self.receipts, self._rest = self.receipts[: index + 1], self.receipts[index + 1 :]
                break
        now = {parsed[0] for parsed in self.receipts if parsed is not None}
        return (
            {id: lease for id, lease in current.items() if id in now},
            {index: id for index, id in lost.items() if index < len(self.receipts)},
        )

    def settle(self, effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Put the message back, hidden for the delay or a random part of the backoff."""
        delay_ms = self.delay_ms
        if delay_ms is None:
            config = queue.config
            backoff = Backoff(config.backoff_base_ms, config.backoff_max_ms)
            delay_ms = backoff.full_jitter_ms(lease.attempts, effects.state.randomness)
        queue.work.totals[NACKED] += 1
        if queue.has_lane:
            effects.state.lanes[queue.name].settle(queue, effects.now - lease.leased_at)
        end_delivery(effects, queue, id, lease, "nacked", self.reason, self.reason or "MAX_ATTEMPTS", delay_ms)
        return OK

    def details(self) -> str:
        return self.reason


def end_delivery(
    effects: Effects,
    queue: QueueState,
    id: bytes,
    lease: LeaseRow,
    outcome: str,
    reason: str,
    dead_reason: str,
    delay_ms: int,
) -> None:
    """End a failed delivery: dead-letter the message after its last attempt, discard it past its TTL, else make it available again."""
    effects.end_lease(queue, id, lease)
    _add_history(effects, lease, HistoryEntry(lease.attempts, effects.now + effects.wall, outcome, reason))  # type: ignore[arg-type]
    lease.token = lease.deadline = 0
    if lease.attempts >= dead_letter.attempts_allowed(queue, lease) and not queue.config.dead_on_poll:
        dead_letter.bury(effects, queue, id, lease, dead_reason)
    else:
        lease.visible_at = effects.now + delay_ms
        put_back(effects, queue, id, lease)


def _add_history(effects: Effects, lease: LeaseRow, ended: HistoryEntry) -> None:
    """Record how a delivery ended, and when the first one began."""
    history = lease.unpack_history()
    history.first_at = history.first_at or lease.leased_at + effects.wall
    history.entries.append(ended)
    del history.entries[: -limits.HISTORY_ENTRIES_MAX]
    lease.history = pack_history(history)


def put_back(effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> None:
    """Make a message whose lease ended available again, unless its TTL has passed."""
    if lease.expires_at and lease.expires_at <= effects.now:
        value = effects.store.get(effects.store.m, queue.prefix + id)
        if value is not None:
            discard.discard(effects, queue, id, unpack_message(value), lease, blocked=False)
            return
    groups.line_up(effects, queue, id, lease)


class Release(SettleOperation):
    """Return messages immediately, to their old place, without using an attempt."""

    journal_op = "release"

    def settle(self, effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Undo the delivery."""
        effects.end_lease(queue, id, lease)
        _add_history(effects, lease, HistoryEntry(lease.attempts, effects.now + effects.wall, "released"))
        lease.token = lease.deadline = 0
        lease.attempts -= 1
        put_back(effects, queue, id, lease)
        return OK


class Extend(SettleOperation):
    """Set leases to end ``lease_ms`` from now. Refuses those that would last longer than ``held_ms_max`` since delivery."""

    journal_op = "extend"
    ends_lease = False

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue: str,
        receipts: Sequence[object],
        *,
        lease_ms: int,
        any_receipt: bool = False,
        held_ms_max: int | None = None,
    ) -> None:
        super().__init__(tenant, caller, queue, receipts, any_receipt=any_receipt)
        check_field("lease_ms", lease_ms, limits.LeaseMs)
        self.lease_ms = lease_ms
        self.held_ms_max = held_ms_max
        self._too_long: set[bytes] = set()

    def _current(self, effects: Effects, queue: QueueState) -> tuple[dict[bytes, LeaseRow], dict[int, bytes]]:
        current, lost = super()._current(effects, queue)
        if self.held_ms_max is not None:
            earliest = effects.now + self.lease_ms - self.held_ms_max
            self._too_long = {id for id, lease in current.items() if lease.leased_at < earliest}
            for index, parsed in enumerate(self.receipts):
                if parsed is not None and parsed[0] in self._too_long:
                    lost[index] = parsed[0]
                    current.pop(parsed[0], None)
        return current, lost

    def _refusal(self, id: bytes | None) -> TenantqError:
        return self._held_too_long if id in self._too_long else super()._refusal(id)

    @cached_property
    def _held_too_long(self) -> Invalid:
        return Invalid(
            f"lease_ms: the message would be leased for longer than {self.held_ms_max} ms since its delivery",
            tenant=self.tenant.name,
            queue=self.queue_name,
        )

    def settle(self, effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Replace the deadline row."""
        li = effects.store.li.handle
        effects.batch.delete(queue.prefix + be64(lease.deadline) + id, li)
        lease.deadline = effects.now + self.lease_ms
        effects.batch.put(queue.prefix + be64(lease.deadline) + id, b"", li)
        effects.put_lease(queue, id, lease)
        queue.note_lease(lease.deadline)
        return Outcome(True, lease_until=lease.deadline + effects.wall)
