"""Settle leases: ack, nack, release, extend. Only the current receipt counts, and only until its deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.domain import limits
from tenantq.domain.message import HistoryEntry, Outcome
from tenantq.engine import dead_letter, discard, groups
from tenantq.engine.operation import Operation
from tenantq.engine.ops.add import unsealed
from tenantq.engine.queue_state import ACKED, NACKED, REMOVED
from tenantq.errors import Invalid, LeaseLost, NotFound, TenantqError
from tenantq.journal.record import column
from tenantq.runtime.backoff import Backoff
from tenantq.store.keys import EXPIRES_TTL, be64, expiry_key
from tenantq.store.rows import pack_past, unpack_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.domain.message import Caller, Result
    from tenantq.engine.queue_state import QueueState, TenantState
    from tenantq.engine.round import Round
    from tenantq.store.rows import LeaseRow

OK = Outcome(True)
_RECEIPT_CHARS = 48


def parse_receipt(receipt: object) -> tuple[bytes, int] | None:
    """Return (message id, lease token), or None for what never was a receipt."""
    if not isinstance(receipt, str) or len(receipt) != _RECEIPT_CHARS:
        return None
    try:
        raw = bytes.fromhex(receipt)
    except ValueError:
        return None
    token = int.from_bytes(raw[16:])
    return (raw[:16], token) if len(raw) == 24 and token else None


class _Settle(Operation):
    """Work on the current leases of a batch of receipts."""

    __slots__ = ("any_receipt", "queue_name", "receipts")
    ends_lease = True

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue_name: str,
        receipts: Sequence[object],
        *,
        any_receipt: bool = False,
    ) -> None:
        super().__init__(tenant, caller, max(1, len(receipts)))
        self.queue_name = queue_name
        self.receipts = [parse_receipt(receipt) for receipt in receipts]
        self.any_receipt = any_receipt  # of a message that is leased, an earlier one counts too

    def execute(self, round: Round) -> None:
        """Settle each receipt that is current; answer each in its place."""
        queue = round.core.catalog.queue(self.tenant, self.queue_name)
        current, lost = self._current(round, queue)
        reply: list[Outcome] = []
        if current:
            leases = current.values()
            ids = b"".join(current)
            sizes, priorities = column([one.size for one in leases]), column([one.priority for one in leases])
            attempts = column([one.attempts for one in leases])
            held = column([round.now - one.leased_at for one in leases])
            outcomes = self.settle_all(round, queue, current)
            round.dirty[queue] = None
            round.log(
                self.journal_op, queue, self.caller, ids=ids, size=sizes, priority=priorities, attempt=attempts,
                process_ms=held, details=self.details(),
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
            round.log(self.journal_op, queue, self.caller, ids=b"".join(them), outcome="refused", error_code=code)

    def _current(self, round: Round, queue: QueueState) -> tuple[dict[bytes, LeaseRow], dict[int, bytes]]:
        """Return the leases that the receipts hold, by id, and the ids of receipts that hold none, by position.

        A receipt that comes twice in one batch holds its lease only the first time, unless the lease outlives it.
        """
        if queue.frozen is not None:  # whoever has the messages now delivers them again
            return {}, {index: parsed[0] if parsed else bytes(16) for index, parsed in enumerate(self.receipts)}
        known = [parsed[0] for parsed in self.receipts if parsed is not None]
        leases = iter(round.leases(queue, known)) if known else iter(())
        now = round.now
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
        """Return what is told of a receipt that was not settled."""
        return LeaseLost(tenant=self.tenant.name, queue=self.queue_name)

    def settle_all(self, round: Round, queue: QueueState, current: dict[bytes, LeaseRow]) -> dict[bytes, Outcome]:
        """Do the work for all current leases."""
        return {id: self.settle(round, queue, id, lease) for id, lease in current.items()}

    def settle(self, round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Do the work for one current lease."""
        raise NotImplementedError

    def details(self) -> str:
        """Return what the journal notes beside the columns."""
        return ""


class Ack(_Settle):
    """Finish messages, with or without results."""

    __slots__ = ("results", "unsealed")
    journal_op = "ack"

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue_name: str,
        receipts: Sequence[object],
        results: Sequence[Result | None] | None,
    ) -> None:
        super().__init__(tenant, caller, queue_name, receipts)
        self.unsealed = results is not None and any(one is not None and not one.sealed for one in results)
        self.results: dict[tuple[bytes, int], Result | None] = {}
        for parsed, result in zip(self.receipts, results or (), strict=False):
            if parsed is not None:
                self.results.setdefault(parsed, result)  # of a receipt that comes twice, the first counts

    def execute(self, round: Round) -> None:
        """Settle each receipt that is current; a result in plain is refused where the tenant's are encrypted."""
        if self.unsealed and self.tenant.config.encryption.enabled:
            raise unsealed(self.tenant.name, self.queue_name)
        super().execute(round)

    def settle_all(self, round: Round, queue: QueueState, current: dict[bytes, LeaseRow]) -> dict[bytes, Outcome]:
        """Finish plain messages in one go; what needs more has its own way."""
        if self.results or queue.lane is not None or queue.result_waiters:
            return super().settle_all(round, queue, current)
        store, delete, prefix, forget = round.store, round.batch.delete, queue.prefix, round.forget
        m, le, li = store.m.handle, store.le.handle, store.li.handle
        size = count = 0
        for id, lease in current.items():
            if lease.expires_at or lease.group:
                self.settle(round, queue, id, lease)
                continue
            key = prefix + id
            delete(key, m)
            delete(key, le)
            delete(prefix + be64(lease.deadline) + id, li)
            forget(key)
            size += lease.size
            count += 1
        queue.in_flight -= count
        queue.bytes -= size
        queue.totals[ACKED] += count
        return dict.fromkeys(current, OK)

    def settle(self, round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Delete the message; keep its result if there is one."""
        store, delete, prefix = round.store, round.batch.delete, queue.prefix
        key = prefix + id
        delete(key, store.m.handle)
        delete(key, store.le.handle)
        delete(prefix + be64(lease.deadline) + id, store.li.handle)
        round.forget(key)
        queue.in_flight -= 1
        queue.bytes -= lease.size
        queue.totals[ACKED] += 1
        if lease.expires_at:
            delete(expiry_key(queue.prefix, lease.expires_at, EXPIRES_TTL, id), store.ex.handle)
        if lease.group:
            groups.leave(round, queue, lease.group, id, blocked=False)
        if queue.lane is not None:
            queue.lane.settle(queue, round.now - lease.leased_at)
        result = self.results.get((id, lease.token)) if self.results else None
        if result is not None:
            dead_letter.write_result(round, queue, id, result, round.now + queue.config.result_ttl_ms)
        elif queue.result_waiters:
            round.results_ready.append((queue, id))
        return OK


class Nack(_Settle):
    """Give messages back as failed: later again, or to the dead letters once their attempts are used up."""

    __slots__ = ("delay_ms", "reason")
    journal_op = "nack"

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue_name: str,
        receipts: Sequence[object],
        delay_ms: int | None,
        reason: str,
        *,
        any_receipt: bool = False,
    ) -> None:
        super().__init__(tenant, caller, queue_name, receipts, any_receipt=any_receipt)
        self.delay_ms = delay_ms
        self.reason = reason

    def settle(self, round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Put the message back, hidden for the delay or a random part of the backoff."""
        delay_ms = self.delay_ms
        if delay_ms is None:
            config = queue.config
            backoff = Backoff(config.backoff_base_ms, config.backoff_max_ms)
            delay_ms = backoff.full_jitter_ms(lease.attempts, round.core.randomness)
        queue.totals[NACKED] += 1
        if queue.lane is not None:
            queue.lane.settle(queue, round.now - lease.leased_at)
        give_back(round, queue, id, lease, "nacked", self.reason, self.reason or "MAX_ATTEMPTS", delay_ms)
        return OK

    def details(self) -> str:
        """Return the reason."""
        return self.reason


def give_back(
    round: Round,
    queue: QueueState,
    id: bytes,
    lease: LeaseRow,
    outcome: str,
    reason: str,
    dead_reason: str,
    delay_ms: int,
) -> None:
    """End a failed delivery: to the dead letters after the last allowed one, discarded past its TTL, else back in line."""
    round.end_lease(queue, id, lease)
    _write_down(round, lease, HistoryEntry(lease.attempts, round.now + round.wall, outcome, reason))  # type: ignore[arg-type]
    lease.token = lease.deadline = 0
    if lease.attempts >= dead_letter.attempts_allowed(queue, lease) and not queue.config.dead_on_poll:
        dead_letter.bury(round, queue, id, lease, dead_reason)
    else:
        lease.visible_at = round.now + delay_ms
        put_back(round, queue, id, lease)


def _write_down(round: Round, lease: LeaseRow, ended: HistoryEntry) -> None:
    """Note how a delivery ended, and when the first one began."""
    past = lease.unpack_past()
    past.first_at = past.first_at or lease.leased_at + round.wall
    past.history.append(ended)
    del past.history[: -limits.HISTORY_ENTRIES_MAX]
    lease.past = pack_past(past)


def put_back(round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> None:
    """Put a message out of flight back in line, unless its TTL has passed meanwhile."""
    if lease.expires_at and lease.expires_at <= round.now:
        value = round.store.get(round.store.m, queue.prefix + id)
        if value is not None:
            discard.discard(round, queue, id, unpack_message(value), lease, blocked=False)
            return
    groups.line_up(round, queue, id, lease)


class Release(_Settle):
    """Give messages back untouched: at once, in their old place, without using up an attempt."""

    __slots__ = ()
    journal_op = "release"

    def settle(self, round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Undo the delivery."""
        round.end_lease(queue, id, lease)
        _write_down(round, lease, HistoryEntry(lease.attempts, round.now + round.wall, "released"))
        lease.token = lease.deadline = 0
        lease.attempts -= 1
        put_back(round, queue, id, lease)
        return OK


class Extend(_Settle):
    """Set leases to end ``lease_ms`` from now."""

    __slots__ = ("_too_long", "held_ms_max", "lease_ms")
    journal_op = "extend"
    ends_lease = False

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue_name: str,
        receipts: Sequence[object],
        lease_ms: int,
        *,
        any_receipt: bool = False,
        held_ms_max: int | None = None,
    ) -> None:
        super().__init__(tenant, caller, queue_name, receipts, any_receipt=any_receipt)
        self.lease_ms = lease_ms
        self.held_ms_max = held_ms_max  # from the delivery on; None: any time
        self._too_long: set[bytes] = set()

    def _current(self, round: Round, queue: QueueState) -> tuple[dict[bytes, LeaseRow], dict[int, bytes]]:
        current, lost = super()._current(round, queue)
        if self.held_ms_max is not None:
            begun = round.now + self.lease_ms - self.held_ms_max
            self._too_long = {id for id, lease in current.items() if lease.leased_at < begun}
            for index, parsed in enumerate(self.receipts):
                if parsed is not None and parsed[0] in self._too_long:
                    lost[index] = parsed[0]
                    current.pop(parsed[0], None)
        return current, lost

    def _refusal(self, id: bytes | None) -> TenantqError:
        if id not in self._too_long:
            return super()._refusal(id)
        return Invalid(
            f"lease_ms: the message would be leased for longer than {self.held_ms_max} ms since its delivery",
            tenant=self.tenant.name,
            queue=self.queue_name,
        )

    def settle(self, round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> Outcome:
        """Move the deadline row, so that there is exactly one."""
        li = round.store.li.handle
        round.batch.delete(queue.prefix + be64(lease.deadline) + id, li)
        lease.deadline = round.now + self.lease_ms
        round.batch.put(queue.prefix + be64(lease.deadline) + id, b"", li)
        round.put_lease(queue, id, lease)
        queue.next_lease = min(queue.next_lease, lease.deadline)
        return Outcome(True, lease_until=lease.deadline + round.wall)


class Remove(Operation):
    """Delete messages by id, whatever their state; a lease on one is lost."""

    __slots__ = ("ids", "queue_name")
    journal_op = "remove"

    def __init__(
        self, tenant: TenantState, caller: Caller, queue_name: str, ids: Sequence[bytes | TenantqError]
    ) -> None:
        super().__init__(tenant, caller, max(1, len(ids)))
        self.queue_name = queue_name
        self.ids = ids

    def execute(self, round: Round) -> None:
        """Remove each id that is there; answer each in its place."""
        queue = round.core.catalog.queue(self.tenant, self.queue_name)
        self.tenant.check_hold(queue.name)
        queue.check_thawed()
        reply: list[Outcome] = []
        removed: list[bytes] = []
        sizes: list[int] = []
        for id in self.ids:
            if isinstance(id, TenantqError):
                reply.append(Outcome(False, id))
                continue
            size = remove_message(round, queue, id)
            if size is None:
                reply.append(Outcome(False, NotFound("no such message", tenant=self.tenant.name, queue=queue.name)))
                continue
            queue.totals[REMOVED] += 1
            removed.append(id)
            sizes.append(size)
            reply.append(OK)
        self.reply = reply
        if len(removed) < len(reply):
            details = f"{len(reply) - len(removed)} ids"
            round.log("remove", queue, self.caller, outcome="refused", error_code=NotFound.code, details=details)
        if removed:
            round.log("remove", queue, self.caller, ids=b"".join(removed), size=sizes)


def remove_message(round: Round, queue: QueueState, id: bytes) -> int | None:
    """Take a message out of the queue wherever it stands; return its size, or None if it is not there."""
    found = round.locate(queue, id)
    if found is None:
        return None
    message, lease = found.message, found.lease
    if found.state == "waiting":
        round.remove_waiting(queue, id, message.priority, found.visible_at)
    elif lease is not None and found.state == "in_flight":
        round.end_lease(queue, id, lease)
    expires_at = lease.expires_at if lease is not None else message.expires_at
    discard.take_out(round, queue, id, size=message.size, expires_at=expires_at, leased=lease is not None)
    if found.group:
        groups.leave(round, queue, found.group, id, blocked=found.state == "blocked")
    if queue.result_waiters:
        round.results_ready.append((queue, id))
    return message.size
