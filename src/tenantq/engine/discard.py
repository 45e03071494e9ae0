"""Taking a message out of its queue for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine import groups
from tenantq.engine.queue_state import EXPIRED
from tenantq.store.keys import EXPIRES_TTL, expiry_key

if TYPE_CHECKING:
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.round import Round
    from tenantq.store.rows import LeaseRow, MessageRow


def discard(
    round: Round, queue: QueueState, id: bytes, message: MessageRow, lease: LeaseRow | None, *, blocked: bool = True
) -> None:
    """Drop a message past its TTL that is neither waiting in vi any more nor in flight; ``blocked`` as for ``groups.leave``."""
    take_out(round, queue, id, size=message.size, expires_at=message.expires_at, leased=lease is not None)
    group = queue.group_digest(message.group)
    if group:
        groups.leave(round, queue, group, id, blocked=blocked)
    if queue.result_waiters:
        round.results_ready.append((queue, id))
    queue.totals[EXPIRED] += 1
    round.log(
        "expire", queue, round.core.system, ids=id, size=message.size, priority=message.priority,
        attempt=lease.attempts if lease is not None else 0, outcome="expired",
    )  # fmt: skip


def take_out(round: Round, queue: QueueState, id: bytes, *, size: int, expires_at: int, leased: bool) -> None:
    """Delete a message's body, lease row and TTL entry."""
    round.forget_message(queue, id, size)
    if leased:
        round.drop_lease(queue, id)
    if expires_at:
        round.batch.delete(expiry_key(queue.prefix, expires_at, EXPIRES_TTL, id), round.store.ex.handle)
