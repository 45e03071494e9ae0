"""Discarding: deletes a message from its queue for good."""

from tenantq.engine import groups
from tenantq.engine.effects import Effects
from tenantq.engine.queue_state import QueueState
from tenantq.engine.work_counters import EXPIRED
from tenantq.store.keys import EXPIRES_TTL, expiry_key
from tenantq.store.rows import LeaseRow, MessageRow


def discard(
    effects: Effects, queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None, *, blocked: bool = True
) -> None:
    """Delete a message past its TTL that is neither in the delivery order nor in flight; ``blocked`` as for ``groups.leave``."""
    take_out(effects, queue, id, size=message.size, expires_at=message.expires_at, leased=lease is not None)
    group = queue.group_digest(message.group)
    if group:
        groups.leave(effects, queue, group, id, blocked=blocked)
    if queue.result_waiters:
        effects.results_ready.append((queue, id))
    queue.work.totals[EXPIRED] += 1
    effects.log(
        "expire", queue, effects.state.system, ids=id, size=message.size, priority=message.priority,
        attempt=lease.attempts if lease is not None else 0, outcome="expired",
    )  # fmt: skip


def take_out(effects: Effects, queue: QueueState, id: bytes, *, size: int, expires_at: int, leased: bool) -> None:
    """Delete a message's body, lease row and TTL entry."""
    effects.forget_message(queue, id, size)
    if leased:
        effects.drop_lease(queue, id)
    if expires_at:
        effects.batch.delete(expiry_key(queue.prefix, expires_at, EXPIRES_TTL, id), effects.store.ex.handle)
