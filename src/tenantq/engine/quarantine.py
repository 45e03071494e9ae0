"""Quarantine: takes a queue whose rows cannot be read out of service, and undoes the round that read them.

Nothing of the round was written. So its operations run again in the next round, where those of the damaged queue are refused. Only a
round that changed more than messages and redrives cannot be undone in memory. The shard stops then, as after any other failure of
the store.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from tenantq.engine.catalog import USAGE_ROW
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.engine.ops.access import NoteEntries
from tenantq.engine.ops.add import Add
from tenantq.engine.ops.redrive import CancelRedrive, RedriveSlice, StartRedrive
from tenantq.engine.ops.remove import Remove
from tenantq.engine.ops.repair import Repair
from tenantq.engine.ops.settle import SettleOperation
from tenantq.engine.ops.sweep import Advance, Sweep
from tenantq.engine.polls import Poll
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.state import ShardState
from tenantq.engine.usage import Window
from tenantq.errors import QueueDamaged, RowsDamaged
from tenantq.store.keys import split_prefix, tenant_prefix
from tenantq.store.rows import unpack_counters

log = logging.getLogger("tenantq")

_OF_QUEUES: Final = (Advance, Sweep, Repair)  # their queue's timer brings them again
_OF_REDRIVES: Final = (StartRedrive, RedriveSlice, CancelRedrive)
_UNDOABLE: Final = (Add, NoteEntries, Poll, Remove, SettleOperation, *_OF_REDRIVES, *_OF_QUEUES)


def quarantine(state: ShardState, error: RowsDamaged) -> QueueState | None:
    """Take the queue of damaged rows out of service, end its waiting polls and return it. None if no queue has the rows."""
    tenant_id, queue_id = split_prefix(error.prefix)
    queues = [one for one in state.catalog.queues() if (one.tenant.id, one.id) == (tenant_id, queue_id)]
    if not queues:
        return None
    (queue,) = queues
    if not queue.damaged:
        log.critical(
            "queue %s/%s is quarantined, other queues work: %s. Restore the store from a backup",
            queue.tenant.name, queue.name, error,
        )  # fmt: skip
    queue.damaged = True
    state.damaged[queue] = None
    if queue.timer is not None:
        queue.timer.cancel()
        queue.timer = None
    state.queues_to_match.pop(queue, None)
    for poll in queue.demands:
        poll.reply = poll.got  # of earlier rounds
        poll.error = None if poll.got else QueueDamaged(tenant=queue.tenant.name, queue=queue.name)
        if poll.timer is not None:
            poll.timer.cancel()
        poll.resolve()
    queue.demands.clear()
    return queue


def undo_round(effects: Effects, operations: Sequence[Operation[Any]], error: RowsDamaged) -> bool:
    """Quarantine the queue of damaged rows and undo the round that read them. Returns False if that is not possible."""
    state, answered = effects.state, dict.fromkeys(effects.answered)
    if any(one.error is None and not isinstance(one, _UNDOABLE) for one in answered):
        return False
    if any(entry.op == "create_queue" for entry in effects.entries):
        return False
    for poll, (count, size) in effects.polled.items():
        del poll.got[count:]
        poll.bytes = size
    queue = quarantine(state, error)
    if queue is None:
        return False
    for one in {**effects.dirty, queue: None}:
        _reload_counters(state, one)
    for tenant in effects.tenants_with_adds:
        _reload_windows(state, tenant)
    state.redrives.undo()
    for operation in dict.fromkeys((*operations, *answered)):
        if isinstance(operation, Advance):
            operation.queue.advancing = False
        elif isinstance(operation, Sweep):
            operation.queue.sweeping = False
        elif isinstance(operation, Repair):
            operation.queue.suspect = True
        elif isinstance(operation, Poll):
            if operation in answered:  # else it waits already
                operation.undo(effects.seq)
                _wait_again(state, operation)
        else:
            operation.undo(effects.seq)
            state.push(operation)
    state.lanes_to_match |= {lane: None for lane in state.lanes.values() if lane.demands}
    return True


def _wait_again(state: ShardState, poll: Poll) -> None:
    """Put a poll that the round had answered among those that wait."""
    poll.timer = None
    queue = poll.tenant.queues.get(poll.queue_name)
    if poll.is_fleet:
        state.lane(poll.queue_name).demands.append(poll)
    elif queue is not None and not queue.damaged:
        queue.demands.append(poll)
    else:
        state.push(poll)


def _reload_counters(state: ShardState, queue: QueueState) -> None:
    stored = state.store.get(state.store.qc, queue.prefix)
    queue.reset()
    if stored is not None:
        queue.load(unpack_counters(stored))
    queue.count_usage()


def _reload_windows(state: ShardState, tenant: TenantState) -> None:
    stored = state.store.get(state.store.meta, USAGE_ROW + tenant_prefix(tenant.id))
    tenant.usage.hour, tenant.usage.day = Window(), Window()
    if stored is not None:
        tenant.usage.load(stored)
