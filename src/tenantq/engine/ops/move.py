"""Moves between shards: how a tenant, or a group of queues of one, leaves its shard, and how its rows arrive at another.

The name of a group is ``tenant/group``; see ``placement.placement_group``. Its tenant has a part on both shards.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from tenantq.domain.placement import split_unit
from tenantq.engine.access_store import KEY_ROW, USE_ROW
from tenantq.engine.catalog import QUEUE_ROW, TENANT_ROW, ArrivingRow, GroupRow, MovedRow, decode_tenant
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, LAST, RANGE, Operation
from tenantq.engine.ops.import_part import forget_imports
from tenantq.engine.ops.lifecycle import delete_range, delete_rows, end_polls, forget_queue
from tenantq.engine.part_state import LEVELS, PartState
from tenantq.engine.queue_groups import (
    group_of,
    load_group,
    name_arriving_queue,
    save_part,
    stored_group,
    take_out_group,
)
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.tenant_rows import META_KINDS, RowChange, apply_changes
from tenantq.errors import Conflict, TenantMoved
from tenantq.journal.record import JournalEntry
from tenantq.store.keys import after, tenant_prefix

_encode = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(GroupRow).decode


def check_movable(tenant: TenantState) -> None:
    """Raise Conflict for a tenant that cannot leave its shard at the moment."""
    if tenant.part is not None:
        raise Conflict("its queues are spread over several shards", tenant=tenant.name)
    tenant.check_not_erasing()
    frozen = tenant.suspension is not None and tenant.suspension.mode != "settle"
    if frozen or any(one.suspension is not None and one.suspension.mode != "settle" for one in tenant.queues.values()):
        raise Conflict("the tenant is being moved to or from another server", tenant=tenant.name)
    damaged = next((one.name for one in tenant.queues.values() if one.damaged), None)
    if damaged is not None:
        raise Conflict("rows of the queue cannot be read", tenant=tenant.name, queue=damaged)


def check_group_movable(tenant: TenantState, queues: list[QueueState]) -> None:
    """Raise Conflict for queues that cannot leave their shard at the moment."""
    tenant.check_not_erasing()
    for queue in queues:
        if queue.damaged:
            raise Conflict("rows of the queue cannot be read", tenant=tenant.name, queue=queue.name)
        if queue.status == "draining":
            raise Conflict("the queue is being deleted", tenant=tenant.name, queue=queue.name)


def log_step(effects: Effects, step: Operation[Any], unit: str, details: str) -> None:
    """Journal a step of a tenant, which may have left this shard, or of a group of its queues."""
    tenant, group = split_unit(unit)
    text = f"queue {group} {details}" if group else details
    effects.entries.append(JournalEntry(step.journal_op, tenant, "", step.caller.principal, details=text))


class _MoveOperation(Operation[None]):
    """One step of a move, in the journal of the shard that makes it."""

    journal_op = "move_tenant"


# ---- at the source ----


@dataclass(eq=False)
class FenceTenant(_MoveOperation):
    """Stop serving a tenant, so that the rest of its rows can be copied. Its keys stay valid."""

    target: int
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Take the tenant out of the catalog. Raises Conflict if it cannot move now."""
        tenant, state = self.tenant, effects.state
        check_movable(tenant)
        error = TenantMoved(tenant=tenant.name)
        qc = effects.store.qc.handle
        for queue in tenant.queues.values():
            if queue in effects.dirty:
                effects.batch.put(queue.prefix, queue.pack(), qc)
            forget_queue(effects, queue, error)
        end_polls(effects, state.early_polls.pop(tenant, deque()), error)
        tenant.gone = True
        state.catalog.take_out(effects.batch, tenant, self.target)
        log_step(effects, self, tenant.name, f"leaves for shard {self.target}")


@dataclass(eq=False)
class FenceQueues(_MoveOperation):
    """Stop serving a group of queues, so that the rest of its rows can be copied. The rights that it uses go with it."""

    unit: str
    target: int
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Take the queues out of the catalog. Raises Conflict if they cannot move now."""
        tenant, catalog = self.tenant, effects.state.catalog
        part, queues = tenant.part, group_of(tenant, self.unit)
        check_group_movable(tenant, queues)
        if part is None:
            raise Conflict("its queues are on one shard", tenant=tenant.name)
        qc = effects.store.qc.handle
        rights = dict.fromkeys(LEVELS, 0)
        for queue in queues:
            used = (queue.messages, queue.bytes, queue.in_flight, not queue.system_made)
            rights = {name: rights[name] + amount for name, amount in zip(LEVELS, used, strict=True)}
            effects.batch.put(queue.prefix, queue.pack(), qc)
            forget_queue(effects, queue, TenantMoved(tenant=tenant.name, queue=queue.name))
        part.take(rights)
        row = GroupRow(tuple(queue.prefix for queue in queues), rights)
        take_out_group(catalog, effects.batch, tenant, self.unit, self.target, row)
        save_part(effects.batch, effects.store, tenant)
        catalog.save_tenant(effects.batch, tenant)
        redirect_early_polls(effects, tenant)
        log_step(effects, self, self.unit, f"leaves for shard {self.target}")


def redirect_early_polls(effects: Effects, tenant: TenantState) -> None:
    """Send polls that wait for a queue that does not exist to the shard that would create it."""
    for poll in effects.state.early_polls.pop(tenant, deque()):
        end_polls(effects, deque([poll]), TenantMoved(tenant=tenant.name, queue=poll.queue_name))


@dataclass(eq=False)
class ReturnTenant(_MoveOperation):
    """Serve a tenant again that was fenced and did not move."""

    name: str
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Load the tenant from its rows. Does nothing if it is served."""
        moved = effects.state.catalog.moved.get(self.name)
        if moved is not None and moved.row:
            effects.state.catalog.put_moved(effects.batch, self.name, None)
            serve = _serve_group if _is_group(self.name) else _serve
            serve(effects, moved.id, moved.row)
            log_step(effects, self, self.name, "stays")


@dataclass(eq=False)
class DropMoved(_MoveOperation):
    """Delete the rows of a tenant that another shard serves."""

    name: str
    phase: ClassVar[int] = RANGE

    def execute(self, effects: Effects) -> None:
        """Delete all rows of the tenant. What remains leads callers to the other shard."""
        moved = effects.state.catalog.moved.get(self.name)
        if moved is not None and moved.row:
            if _is_group(self.name):
                _delete_group(effects, _decode_group(moved.row).prefixes)
            else:
                _delete_all(effects, moved.id, self.name)
            effects.state.catalog.put_moved(effects.batch, self.name, MovedRow(moved.id, moved.target))
            log_step(effects, self, self.name, f"is served by shard {moved.target}; its rows here are deleted")


# ---- at the target ----


@dataclass(eq=False)
class BeginArrival(_MoveOperation):
    """Prepare to receive a tenant's rows. Deletes those of an earlier attempt."""

    id: int
    name: str
    source: int
    phase: ClassVar[int] = RANGE

    def execute(self, effects: Effects) -> None:
        """Write the tenant's note. Raises Conflict if this shard has a tenant of this name."""
        catalog = effects.state.catalog
        if _is_group(self.name):
            self._begin_group(effects)
            return
        if self.name in catalog.tenants:
            raise Conflict("the target shard has a tenant of this name", tenant=self.name)
        _delete_all(effects, self.id, self.name)
        _delete_staged_keys(effects, catalog.arriving.get(self.name))
        moved = catalog.moved.get(self.name)
        if moved is not None and moved.row:
            if moved.id != self.id:  # of an earlier tenant of this name
                _delete_all(effects, moved.id, self.name)
            catalog.put_moved(effects.batch, self.name, MovedRow(moved.id, self.source))
        catalog.put_arriving(effects.batch, self.id, self.name, ArrivingRow(self.name, self.source))
        log_step(effects, self, self.name, f"arrives from shard {self.source}")

    def _begin_group(self, effects: Effects) -> None:
        catalog, (tenant, _) = effects.state.catalog, part_of(effects, self.id)
        if group_of(tenant, self.name):
            raise Conflict("the target shard has a queue of this name", tenant=tenant.name)
        moved = catalog.moved.get(self.name)
        if moved is not None and moved.row:
            raise Conflict("the queue is leaving the target shard", tenant=tenant.name)
        _delete_group(effects, stored_group(effects.store, self.id, self.name))
        catalog.put_arriving(effects.batch, self.id, self.name, ArrivingRow(self.name, self.source))
        log_step(effects, self, self.name, f"arrives from shard {self.source}")


@dataclass(eq=False)
class ReceiveRows(_MoveOperation):
    """Write some of the rows of an arriving tenant; with ``row``, they are the last ones, and it is the tenant's own."""

    id: int
    name: str
    changes: list[RowChange]
    row: bytes = b""
    key_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.cost = len(self.changes) + sum(len(one.value or b"") for one in self.changes) / BYTES_PER_COST

    def execute(self, effects: Effects) -> None:
        """Write the rows. Raises Conflict if the arrival was cancelled."""
        catalog = effects.state.catalog
        _, arriving = catalog.arriving.get(self.name, (0, None))
        if arriving is None:
            raise Conflict("the tenant is not arriving at this shard")
        for one in self.changes:
            if one.value is not None and one.family == "meta" and one.key.startswith(QUEUE_ROW):
                name_arriving_queue(effects.store, self.name, one.key, one.value)
        apply_changes(effects.batch, effects.store, self.changes)
        if self.row:
            staged = ArrivingRow(arriving.name, arriving.source, self.row, self.key_ids)
            catalog.put_arriving(effects.batch, self.id, self.name, staged)
        log_step(effects, self, self.name, f"{len(self.changes)} rows from shard {arriving.source}")


@dataclass(eq=False)
class CancelArrival(_MoveOperation):
    """Delete the rows of a tenant that stays where it is."""

    name: str
    phase: ClassVar[int] = RANGE

    def execute(self, effects: Effects) -> None:
        """Delete all rows of the tenant, if it was arriving."""
        catalog = effects.state.catalog
        id, arriving = catalog.arriving.get(self.name, (0, None))
        if arriving is not None:
            if _is_group(self.name):
                _delete_group(effects, stored_group(effects.store, id, self.name))
            else:
                _delete_all(effects, id, self.name)
                _delete_staged_keys(effects, (id, arriving))
            catalog.put_arriving(effects.batch, id, self.name, None)
            log_step(effects, self, self.name, f"stays on shard {arriving.source}")


@dataclass(eq=False)
class ActivateTenant(_MoveOperation):
    """Serve a tenant whose rows have all arrived."""

    name: str
    is_lost: bool = field(default=False, init=False)  # this shard has no rows of it
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Load the tenant from its rows. Does nothing if it is served, and raises Conflict if rows are missing."""
        catalog = effects.state.catalog
        id, arriving = catalog.arriving.get(self.name, (0, None))
        if arriving is None:
            self.is_lost = not _is_here(effects, self.name)
            if self.is_lost:  # the source acts on it, so only the owner of this shard may say it: it commits a row
                log_step(effects, self, self.name, "has no rows here")
            return
        if not arriving.row:
            raise Conflict("not all rows of the tenant have arrived", tenant=split_unit(self.name)[0])
        catalog.put_arriving(effects.batch, id, self.name, None)
        catalog.put_moved(effects.batch, self.name, None)
        if _is_group(self.name):
            _serve_group(effects, id, arriving.row)
            log_step(effects, self, self.name, f"arrived from shard {arriving.source}")
            return
        row = decode_tenant(arriving.row)
        row = msgspec.structs.replace(
            row, since=effects.seq, earlier=(*row.earlier, (arriving.source, row.since))[-_EARLIER_MAX:]
        )
        _serve(effects, id, _encode(row), arriving.key_ids)
        log_step(effects, self, arriving.name, f"arrived from shard {arriving.source}")


_EARLIER_MAX = 100


def _is_here(effects: Effects, name: str) -> bool:
    """Return whether a tenant, or a group of its queues, is served here or is leaving."""
    catalog = effects.state.catalog
    moved = catalog.moved.get(name)
    tenant = catalog.tenants.get(split_unit(name)[0])
    is_served = tenant is not None and (not _is_group(name) or bool(group_of(tenant, name)))
    return is_served or (moved is not None and bool(moved.row))


def _serve(effects: Effects, id: int, row: bytes, key_ids: tuple[str, ...] = ()) -> None:
    """Load a tenant with its redrives, and have its queues examined: what became due meanwhile happens now."""
    state = effects.state
    tenant = state.load_tenant(id, row, key_ids)
    state.redrives.load(tenant.queues.values(), tenant_prefix(id))
    state.catalog.save_tenant(effects.batch, tenant)
    for queue in tenant.queues.values():
        effects.cleared.add(queue.prefix)  # leases that are cached from an earlier stay here
        effects.touch(queue)


def _is_group(name: str) -> bool:
    return bool(split_unit(name)[1])


def part_of(effects: Effects, id: int) -> tuple[TenantState, PartState]:
    """Return a tenant and its part on this shard. Raises Conflict if it has none, or the part is leaving."""
    tenant = effects.state.catalog.tenants_by_id.get(id)
    if tenant is None or tenant.part is None or tenant.part.has_left:
        raise Conflict("the tenant has no part on this shard")
    return tenant, tenant.part


def _serve_group(effects: Effects, id: int, row: bytes) -> None:
    """Load queues of a tenant, with the rights that they use and their redrives, and have them examined."""
    (tenant, part), group = part_of(effects, id), _decode_group(row)
    part.give(group.rights)
    save_part(effects.batch, effects.store, tenant)
    for queue in load_group(effects.state.catalog, tenant, group.prefixes):
        queue.has_lane = queue.name in effects.state.lanes
        effects.state.redrives.load([queue], queue.prefix)
        effects.cleared.add(queue.prefix)
        effects.touch(queue)


def _delete_group(effects: Effects, prefixes: Iterable[bytes]) -> None:
    for prefix in prefixes:
        delete_range(effects, prefix)
        forget_imports(effects, prefix)
        effects.state.redrives.delete_rows(effects.batch, prefix)
        effects.batch.delete(QUEUE_ROW + prefix, effects.store.meta.handle)
        effects.store.name_queue(prefix, None)


def _delete_all(effects: Effects, id: int, name: str) -> None:
    meta, prefix = effects.store.meta.handle, tenant_prefix(id)
    delete_rows(effects, id, name)
    effects.batch.delete(TENANT_ROW + prefix, meta)
    for kind in META_KINDS:
        effects.batch.delete_range(kind + prefix, kind + after(prefix), meta)


def _delete_staged_keys(effects: Effects, arriving: tuple[int, ArrivingRow] | None) -> None:
    """Delete the API keys that came with the last rows of an arrival. They are not in memory yet."""
    for id in arriving[1].key_ids if arriving is not None else ():
        for kind in (KEY_ROW, USE_ROW):
            effects.batch.delete(kind + id.encode(), effects.store.meta.handle)
