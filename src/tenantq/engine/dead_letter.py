"""Dead letters: the atomic move of a message that has no attempts left, with reason and history."""

from tenantq.domain.message import DeadLetter, Result
from tenantq.engine import discard, groups
from tenantq.engine.effects import Effects
from tenantq.engine.queue_state import QueueState
from tenantq.engine.state import DeadLetterEvent
from tenantq.engine.work_counters import DEAD
from tenantq.store.keys import EXPIRES_RESULT, EXPIRES_TTL, expiry_key
from tenantq.store.rows import (
    ENCRYPTED,
    QUEUE_DEFAULT_ATTEMPTS,
    LeaseRow,
    MessageRow,
    ResultRow,
    pack_extras,
    pack_history,
    pack_message,
    pack_result,
    unpack_message,
)

_NO_BOUND = 1 << 30
_RETRY_MS = 1_000


def attempts_allowed(queue: QueueState, lease: LeaseRow) -> int:
    """Return how many deliveries a message may have. A dead letter may have any number, unless its queue passes it on."""
    config = queue.config
    if lease.history and not (config.dead_on_poll and config.dead_letter) and lease.unpack_history().dead is not None:
        return _NO_BOUND
    allowed = queue.config.max_attempts if lease.max_attempts == QUEUE_DEFAULT_ATTEMPTS else lease.max_attempts
    return allowed or _NO_BOUND


def bury(
    effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow, reason: str, message: MessageRow | None = None
) -> None:
    """Move a message to the dead-letter queue in this round. It is not in vi, in flight or counted as blocked."""
    if message is None:
        value = effects.store.get(effects.store.m, queue.prefix + id)
        if value is None:
            effects.heal(queue, id, "lease without a body")
            effects.drop_lease(queue, id)
            return
        message = unpack_message(value)
    name = effects.state.catalog.dead_letter_name(queue)
    target = queue.tenant.queues.get(name)
    # Where polls move dead letters, a user named their queue: once deleted, it is not created again.
    gone = target is None and queue.config.dead_on_poll and queue.config.dead_letter is not None
    if gone or not (target.takes_letters if target is not None else queue.tenant.takes_letters):
        if lease.expires_at and lease.expires_at <= effects.now:
            discard.discard(effects, queue, id, message, lease, blocked=False)
            return
        # The queue is being deleted. The message stays, undeliverable, until the queue is created again.
        lease.token, lease.deadline, lease.visible_at = 0, 0, effects.now + _RETRY_MS
        groups.line_up(effects, queue, id, lease)
        effects.log(
            "dead_letter", queue, effects.state.system, ids=id, size=lease.size, priority=lease.priority,
            attempt=lease.attempts, outcome="deferred", details="the dead-letter queue is gone" if gone else "the dead-letter queue takes none",
        )  # fmt: skip
        return
    target = target or effects.create_queue(queue.tenant, name, queue.tenant.config.defaults, effects.state.system)
    history = lease.unpack_history()
    history.dead = DeadLetter(reason, queue.name, lease.attempts, effects.now + effects.wall)
    discard.take_out(effects, queue, id, size=lease.size, expires_at=lease.expires_at, leased=True)
    if lease.group:
        groups.leave(effects, queue, lease.group, id, blocked=False)
    moved = LeaseRow(
        0, 0, 0, 0, effects.now, 0, lease.size, lease.priority, lease.max_attempts, history=pack_history(history)
    )  # fmt: skip
    # Dead letters stay, unless a user named a queue with a TTL: it counts from before, in a FIFO queue from now.
    keeps = queue.config.dead_on_poll and queue.config.dead_letter is not None
    since = effects.now if target.fifo else message.visible_at
    move_in(effects, target, id, message, moved, lives_since=since if keeps else None)
    queue.work.totals[DEAD] += 1
    _fail_result(effects, queue, id, reason)
    effects.log(
        "dead_letter", queue, effects.state.system, ids=id, size=lease.size, priority=lease.priority,
        attempt=lease.attempts, outcome="dead", details=f"to {name}: {reason}",
    )  # fmt: skip
    effects.events.append(DeadLetterEvent(id, queue.tenant.name, queue.name, name, reason, lease.attempts))


def move_in(
    effects: Effects, target: QueueState, id: bytes, message: MessageRow, lease: LeaseRow, *, lives_since: int | None
) -> None:
    """Put a message that left another queue into ``target``, to be delivered now.

    Its TTL is that of ``target``, counted from ``lives_since``; None: it has none.
    """
    ttl_ms = target.config.ttl_ms
    visible_at = message.visible_at if lives_since is None else lives_since
    lease.expires_at = visible_at + ttl_ms if ttl_ms and lives_since is not None else 0
    extras = pack_extras(message.group, message.attributes, message.encrypted_attributes)
    value = pack_message(
        message.priority, message.max_attempts, message.added_at, visible_at, lease.expires_at, extras, message.body,
        ENCRYPTED if message.encrypted else 0,
    )  # fmt: skip
    effects.batch.put(target.prefix + id, value, effects.store.m.handle)
    if lease.expires_at:
        effects.batch.put(expiry_key(target.prefix, lease.expires_at, EXPIRES_TTL, id), b"", effects.store.ex.handle)
        target.note_expiry(lease.expires_at)
    lease.group = target.group_digest(message.group)
    effects.put_lease(target, id, lease)
    target.grow(lease.size, lease.size)
    effects.moved_bytes += len(value)
    if not lease.group or groups.join(
        effects, target, lease.group, id, lease.priority, lease.visible_at, delivered_before=True
    ):
        effects.insert_waiting(target, id, lease.priority, lease.visible_at, delivered_before=True)
    effects.touch(target)


def _fail_result(effects: Effects, queue: QueueState, id: bytes, reason: str) -> None:
    """Store a failed result for callers that wait for the message's result."""
    expires_at = effects.now + queue.config.result_ttl_ms
    write_result(effects, queue, id, Result("failed", None, f"dead letter: {reason}"), expires_at)


def write_result(effects: Effects, queue: QueueState, id: bytes, result: Result, expires_at: int) -> None:
    """Store a result until ``expires_at`` and wake its waiters after the sync."""
    effects.batch.put(queue.prefix + id, pack_result(ResultRow(result, expires_at)), effects.store.re.handle)
    effects.batch.put(expiry_key(queue.prefix, expires_at, EXPIRES_RESULT, id), b"", effects.store.ex.handle)
    queue.note_expiry(expires_at)
    effects.results_ready.append((queue, id))
