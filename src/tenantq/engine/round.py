"""A round: runs operations together, writes their effects with one journal record, and answers their callers."""

import logging
from operator import attrgetter
from typing import Any

from tenantq.domain.quotas import NO_QUOTAS
from tenantq.engine import poll_matching
from tenantq.engine.effects import Effects
from tenantq.engine.operation import POINT, REGISTER, Operation
from tenantq.engine.polls import Poll
from tenantq.engine.queue_state import TenantState
from tenantq.engine.state import ShardState
from tenantq.errors import StoreFailed, TenantMoved, TenantqError
from tenantq.journal import checkpoint
from tenantq.journal.record import JournalEntry, Record, encode_record
from tenantq.runtime.futures import wake
from tenantq.store.keys import be64

log = logging.getLogger("tenantq")

_BYTES_MAX = 1 << 20  # of bodies to write; a write of more would take the event loop milliseconds
_COST_UNTIMED = 8  # of operations between two looks at the clock
_PHASE = attrgetter("phase")


class Round:
    """One round: its effects, and what happens to them after the write and after the sync."""

    __slots__ = ("_state", "covers", "effects", "is_large", "syncs_here", "unfinished")

    def __init__(self, state: ShardState, seq: int, *, shared: bool = False) -> None:
        self._state = state
        self.effects = Effects(state, seq, shared=shared)
        self.unfinished: list[Operation[Any]] = []  # continue in a later round
        self.is_large = False  # it runs one operation that is more than a round that tenants share
        self.syncs_here = False  # on the event loop, at the end of the round
        self.covers = 0  # the last record written when the round was handed over for the sync

    def run(self, operations: list[Operation[Any]], end_ms: int) -> list[Operation[Any]]:
        """Execute ``operations`` in the order of their phases. Polls get their messages between scans and points.

        Return the operations that were not started, because the clock passed ``end_ms`` or there are enough bytes to write.
        """
        if len(operations) > 1:
            operations = sorted(operations, key=_PHASE)
        effects, answered = self.effects, self.effects.answered
        matched, untimed = False, 0.0
        clock = self._state.clock
        for position, operation in enumerate(operations):
            if operation.phase == POINT:
                if not matched:
                    matched = True
                    poll_matching.match_polls(effects)
                elif effects.moved_bytes >= _BYTES_MAX:
                    return operations[position:]
                elif untimed >= _COST_UNTIMED:
                    untimed = 0.0
                    if clock.monotonic_ms() > end_ms:
                        return operations[position:]
                untimed += operation.cost
            try:
                if operation.tenant.gone:
                    if operation.future is None:
                        continue  # background work that has lost its object
                    raise self._state.catalog.missing(operation.tenant.name)
                operation.execute(effects)
            except StoreFailed:
                raise
            except TenantqError as error:
                operation.error = error
                if not isinstance(error, TenantMoved):  # the caller tries again at the other shard
                    op, subject = operation.journal_op, operation.subject
                    effects.log_refusal(op, operation.tenant, operation.caller, error, subject)
            if operation.unfinished and operation.error is None:
                self.unfinished.append(operation)
            elif operation.phase != REGISTER or operation.error is not None:
                answered.append(operation)
        if not matched:
            poll_matching.match_polls(effects)
        return []

    def finish(self) -> bool:
        """Complete the batch with counters; return whether the round changed anything."""
        effects = self.effects
        if not effects.entries:
            if effects.batch.is_empty():
                return False
            log.error("internal error: a round changed rows without a journal entry. Please report this.")
            principal = self._state.system.principal
            effects.entries.append(JournalEntry("unexplained", "", "", principal, details="no entry was given"))
        for queue in effects.dirty:
            if min(queue.ready, queue.blocked, queue.in_flight, queue.bytes) < 0:
                queue.ready, queue.blocked = max(0, queue.ready), max(0, queue.blocked)
                queue.in_flight, queue.bytes = max(0, queue.in_flight), max(0, queue.bytes)
                queue.suspect = True
        qc = self._state.store.qc.handle
        put = effects.batch.put
        for queue in effects.dirty:
            queue.count_usage()
            if queue.prefix not in effects.cleared or queue.tenant.queues.get(queue.name) is queue:
                put(queue.prefix, queue.pack(), qc)
        for tenant in effects.tenants_with_adds:
            self._state.catalog.save_usage(effects.batch, tenant)
        self._report_quotas()
        return True

    def _report_quotas(self) -> None:
        """Journal each quota that this round brought to its soft limit, or used up, once. Parts leave that to their home."""
        for tenant in {queue.tenant: None for queue in self.effects.dirty}:
            if tenant.config.quotas != NO_QUOTAS and not tenant.gone and tenant.part is None:
                self.effects.report_quotas(tenant)

    def add_record(self, previous: bytes, last_id: bytes) -> tuple[bytes, int]:
        """Add the journal record to the batch; return its hash and its size."""
        effects, store = self.effects, self._state.store
        wall_ms = effects.now + effects.wall
        record = Record(self._state.shard, effects.seq, wall_ms, effects.now, last_id, effects.entries)
        link, value = encode_record(previous, record)
        effects.batch.put(be64(effects.seq), value, store.jn.handle)
        if effects.signing_key is not None:
            row = checkpoint.sign(effects.signing_key, record.shard, record.seq, link, record.ts)
            effects.batch.put(checkpoint.CHECKPOINT_ROW + be64(effects.seq), row, store.meta.handle)
        return link, len(value)

    def freed_tenants(self) -> list[TenantState]:
        """Return the tenants whose queues waited for the quota of leases and that have room in it now."""
        changed = [queue.tenant for queue in self.effects.dirty if queue.tenant.starved]
        if not changed and not self.effects.eased:
            return []
        return [
            tenant
            for tenant in {**self.effects.eased, **dict.fromkeys(changed)}
            if (most := tenant.leases_max) is None or tenant.usage.in_flight < most
        ]

    def announce(self) -> list[Poll]:
        """After the sync: answer callers, wake callers that wait for results, and call the listeners.

        Return the polls whose callers have gone without their messages.
        """
        effects = self.effects
        undelivered: list[Poll] = []
        for operation in effects.answered:
            future = operation.future
            if future is None:
                continue
            if not future.done():
                operation.resolve()
            elif operation.phase == REGISTER and future.cancelled():
                undelivered.append(operation)
        effects.answered.clear()
        for queue, id in effects.results_ready:
            for future in queue.result_waiters.pop(id, ()):
                wake(future)
        events, effects.events = effects.events, []
        for event in events:
            for listener in self._state.listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed; the other listeners and the queue continue")
        return undelivered

    def fail(self, error: StoreFailed) -> None:
        """Give the error to every caller whose operation was in this round."""
        for operation in self.effects.answered:
            operation.error = error
            operation.resolve()
