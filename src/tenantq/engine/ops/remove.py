"""Remove messages by id, in any state."""

from __future__ import annotations

from collections.abc import Sequence

from tenantq.domain.message import Caller, Outcome, check_batch
from tenantq.domain.names import check_queue_name
from tenantq.engine import discard, groups
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation, split
from tenantq.engine.ops.settle import OK
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.work_counters import REMOVED
from tenantq.errors import Invalid, NotFound, TenantqError
from tenantq.runtime.randomness import id_bytes


class Remove(Operation[list[Outcome]]):
    """Delete messages by id, in any state. Their leases are lost."""

    journal_op = "remove"

    def __init__(self, tenant: TenantState, caller: Caller, queue: str, ids: Sequence[str | bytes]) -> None:
        check_queue_name(queue)
        check_batch("ids", ids)
        super().__init__(tenant, caller)
        self.cost = len(ids)
        self.queue_name = queue
        self.ids = [_parse_id(id) for id in ids]

    def parts(self) -> list[tuple[Remove, int]]:
        """Return the operations in which this one runs, and the number of IDs of each."""
        return split(self, "ids", [0] * len(self.ids))

    def execute(self, effects: Effects) -> None:
        """Remove the messages that exist; answer each id in its place."""
        queue = effects.state.catalog.queue(self.tenant, self.queue_name)
        queue.check_undamaged()
        self.tenant.check_hold(queue.name)
        queue.check_thawed()
        reply: list[Outcome] = []
        removed: list[bytes] = []
        sizes: list[int] = []
        for id in self.ids:
            if isinstance(id, TenantqError):
                reply.append(Outcome(False, id))
                continue
            size = remove_message(effects, queue, id)
            if size is None:
                reply.append(Outcome(False, effects.state.missing_message(queue, id)))
                continue
            queue.work.totals[REMOVED] += 1
            removed.append(id)
            sizes.append(size)
            reply.append(OK)
        self.reply = reply
        if len(removed) < len(reply):
            details = f"{len(reply) - len(removed)} ids"
            effects.log("remove", queue, self.caller, outcome="refused", error_code=NotFound.code, details=details)
        if removed:
            effects.log("remove", queue, self.caller, ids=b"".join(removed), size=sizes)


def _parse_id(id: str | bytes) -> bytes | Invalid:
    try:
        return id_bytes(id)
    except Invalid as error:
        return error


def remove_message(effects: Effects, queue: QueueState, id: bytes) -> int | None:
    """Remove a message in any state; return its size, or None if it does not exist."""
    found = effects.locate(queue, id)
    if found is None:
        return None
    message, lease = found.message, found.lease
    if found.state == "waiting":
        effects.remove_waiting(queue, id, message.priority, found.visible_at)
    elif lease is not None and found.state == "in_flight":
        effects.end_lease(queue, id, lease)
    expires_at = lease.expires_at if lease is not None else message.expires_at
    discard.take_out(effects, queue, id, size=message.size, expires_at=expires_at, leased=lease is not None)
    if found.group:
        groups.leave(effects, queue, found.group, id, blocked=found.state == "blocked")
    if queue.result_waiters:
        effects.results_ready.append((queue, id))
    return message.size
