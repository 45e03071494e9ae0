"""Groups: messages that are delivered one at a time, in order. Only a group's head stands in the delivery order.

A poll that asks for it gets the head and those behind it, as many as it has room for. Until all of them have left, or stand in line again, nothing behind
them is delivered: whoever is the head by then is in flight, or comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.store.keys import ID_BYTES
from tenantq.store.rows import unpack_message

if TYPE_CHECKING:
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.round import Round
    from tenantq.store.rows import LeaseRow


def head_of(round: Round, queue: QueueState, group: bytes) -> bytes | None:
    """Return the message at the head of a group, or None if the group is empty."""
    key = queue.prefix + group
    if key in round.heads:
        return round.heads[key]
    if queue.prefix in round.cleared:
        return None
    return round.store.get(round.store.gr, key)


def join(
    round: Round,
    queue: QueueState,
    group: bytes,
    id: bytes,
    priority: int,
    visible_at: int,
    *,
    delivered_before: bool = False,
) -> bool:
    """Put a message into its group; return whether it is the head and so may be delivered."""
    key = queue.prefix + group
    gr = round.store.gr.handle
    round.batch.put(key + id, b"", gr)
    head = head_of(round, queue, group)
    if head is not None and key not in round.heads and round.store.get(round.store.m, queue.prefix + head) is None:
        round.heal(queue, head, "group head without a body")
        leave(round, queue, group, head)
        head = head_of(round, queue, group)
    if head is None:
        round.heads[key] = id
        round.batch.put(key, id, gr)
        return True
    round.new_members.setdefault(key, {})[id] = (priority, visible_at, delivered_before)
    queue.blocked += 1
    return False


def leave(round: Round, queue: QueueState, group: bytes, id: bytes, *, blocked: bool = True) -> None:
    """Take a message out of its group; if it was the head, the next one that has a body may be delivered.

    ``blocked``: where it is not the head, it counts as one that waits for an earlier one. In flight, or just out of it, it does not.
    """
    key = queue.prefix + group
    gr, store = round.store.gr.handle, round.store
    fresh = round.new_members.get(key, {})
    was_head = head_of(round, queue, group) == id
    _strike(round, key, id)
    fresh.pop(id, None)
    if not was_head:
        if blocked:
            queue.blocked -= 1
        return
    while True:
        following = _next_member(round, queue, key, fresh)
        round.heads[key] = following
        if following is None:
            round.batch.delete(key, gr)
            return
        if following in fresh:
            queue.blocked -= 1
            priority, visible_at, delivered_before = fresh.pop(following)
            break
        lease = round.lease(queue, following)
        if lease is not None and lease.token:  # it went out with the one that leaves
            round.batch.put(key, following, gr)
            return
        queue.blocked -= 1
        found = store.get(store.m, queue.prefix + following)
        if found is not None:
            message = unpack_message(found)
            priority, delivered_before = message.priority, lease is not None
            visible_at = lease.visible_at if lease is not None else message.visible_at
            break
        round.heal(queue, following, "group member without a body")
        _strike(round, key, following)
    round.batch.put(key, following, gr)
    round.insert_waiting(queue, following, priority, visible_at, delivered_before=delivered_before)


def line_up(round: Round, queue: QueueState, id: bytes, lease: LeaseRow) -> None:
    """Put a message out of flight back in line: into the delivery order, or behind an earlier one of its group."""
    round.put_lease(queue, id, lease)
    if lease.group and head_of(round, queue, lease.group) != id:
        queue.blocked += 1
        round.touch(queue)
        return
    round.insert_waiting(queue, id, lease.priority, lease.visible_at, delivered_before=True)


def behind(round: Round, queue: QueueState, group: bytes, id: bytes, limit: int) -> list[bytes]:
    """Return up to ``limit`` members that follow ``id`` in a group, of those that earlier rounds have written."""
    key = queue.prefix + group
    page = round.store.scan(round.store.gr, key + id + b"\0", key + b"\xff" * (ID_BYTES + 1), limit)
    return [one[-ID_BYTES:] for one in page if one not in round.members_gone]


def _strike(round: Round, key: bytes, id: bytes) -> None:
    """Delete a member's row."""
    round.batch.delete(key + id, round.store.gr.handle)
    round.members_gone.add(key + id)


def _next_member(
    round: Round, queue: QueueState, key: bytes, fresh: dict[bytes, tuple[int, int, bool]]
) -> bytes | None:
    candidates = list(fresh)
    lower = key + b"\0"
    while queue.prefix not in round.cleared:
        page = round.store.scan(round.store.gr, lower, key + b"\xff" * (ID_BYTES + 1), 16)
        alive = [one for one in page if one not in round.members_gone]
        if alive:
            candidates.append(alive[0][-ID_BYTES:])
            break
        if len(page) < 16:
            break
        lower = page[-1] + b"\0"
    return min(candidates, default=None)
