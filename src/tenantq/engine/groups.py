"""Groups: messages that are delivered one at a time, in order. Only the head of a group is in the delivery order.

A poll for whole groups gets the head and as many followers as it has room for. Until all of them are settled or
available again, nothing behind them is delivered: the head is then either in flight or first in order.
"""

from tenantq.engine.effects import Effects
from tenantq.engine.queue_state import QueueState
from tenantq.store.keys import ID_BYTES
from tenantq.store.rows import LeaseRow, unpack_message


def join(
    effects: Effects,
    queue: QueueState,
    group: bytes,
    id: bytes,
    priority: int,
    visible_at: int,
    *,
    delivered_before: bool = False,
) -> bool:
    """Add a message to its group; return whether it is the head and so may be delivered."""
    key = queue.prefix + group
    gr = effects.store.gr.handle
    effects.batch.put(key + id, b"", gr)
    head = effects.group_head(queue, group)
    if (
        head is not None
        and key not in effects.heads
        and effects.store.get(effects.store.m, queue.prefix + head) is None
    ):
        effects.heal(queue, head, "group head without a body")
        leave(effects, queue, group, head)
        head = effects.group_head(queue, group)
    if head is None:
        effects.heads[key] = id
        effects.batch.put(key, id, gr)
        return True
    effects.new_members.setdefault(key, {})[id] = (priority, visible_at, delivered_before)
    queue.blocked += 1
    return False


def leave(effects: Effects, queue: QueueState, group: bytes, id: bytes, *, blocked: bool = True) -> None:
    """Remove a message from its group. If it was the head, the next one that has a body may be delivered.

    ``blocked``: if it is not the head, it was counted as blocked. A message in flight, or just out of it, is not.
    """
    key = queue.prefix + group
    gr, store = effects.store.gr.handle, effects.store
    fresh = effects.new_members.get(key, {})
    was_head = effects.group_head(queue, group) == id
    _strike(effects, key, id)
    fresh.pop(id, None)
    if not was_head:
        if blocked:
            queue.blocked -= 1
        return
    while True:
        following = _next_member(effects, queue, key, fresh)
        effects.heads[key] = following
        if following is None:
            effects.batch.delete(key, gr)
            return
        if following in fresh:
            queue.blocked -= 1
            priority, visible_at, delivered_before = fresh.pop(following)
            break
        lease = effects.lease(queue, following)
        if lease is not None and lease.token:  # it was delivered together with the one that leaves
            effects.batch.put(key, following, gr)
            return
        queue.blocked -= 1
        found = store.get(store.m, queue.prefix + following)
        if found is not None:
            message = unpack_message(found)
            priority, delivered_before = message.priority, lease is not None
            visible_at = lease.visible_at if lease is not None else message.visible_at
            break
        effects.heal(queue, following, "group member without a body")
        _strike(effects, key, following)
    effects.batch.put(key, following, gr)
    effects.insert_waiting(queue, following, priority, visible_at, delivered_before=delivered_before)


def line_up(effects: Effects, queue: QueueState, id: bytes, lease: LeaseRow) -> None:
    """Make a message whose lease ended available again: in the delivery order, or behind the head of its group."""
    effects.put_lease(queue, id, lease)
    if lease.group and effects.group_head(queue, lease.group) != id:
        queue.blocked += 1
        effects.touch(queue)
        return
    effects.insert_waiting(queue, id, lease.priority, lease.visible_at, delivered_before=True)


def behind(effects: Effects, queue: QueueState, group: bytes, id: bytes, limit: int) -> list[bytes]:
    """Return up to ``limit`` members that follow ``id`` in a group and were written by earlier rounds."""
    key = queue.prefix + group
    page = effects.store.scan(effects.store.gr, key + id + b"\0", key + b"\xff" * (ID_BYTES + 1), limit)
    return [one[-ID_BYTES:] for one in page if one not in effects.members_gone]


def _strike(effects: Effects, key: bytes, id: bytes) -> None:
    """Delete a member's row."""
    effects.batch.delete(key + id, effects.store.gr.handle)
    effects.members_gone.add(key + id)


def _next_member(
    effects: Effects, queue: QueueState, key: bytes, fresh: dict[bytes, tuple[int, int, bool]]
) -> bytes | None:
    candidates = list(fresh)
    lower = key + b"\0"
    while queue.prefix not in effects.cleared:
        page = effects.store.scan(effects.store.gr, lower, key + b"\xff" * (ID_BYTES + 1), 16)
        alive = [one for one in page if one not in effects.members_gone]
        if alive:
            candidates.append(alive[0][-ID_BYTES:])
            break
        if len(page) < 16:
            break
        lower = page[-1] + b"\0"
    return min(candidates, default=None)
