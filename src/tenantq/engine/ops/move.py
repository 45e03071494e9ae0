"""Moves of tenants between shards: how a tenant leaves its shard, and how its rows arrive at another."""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from tenantq.engine.access_store import KEY_ROW, USE_ROW
from tenantq.engine.catalog import QUEUE_ROW, TENANT_ROW, ArrivingRow, MovedRow, TenantRow
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, LAST, RANGE, Operation
from tenantq.engine.ops.lifecycle import delete_rows, end_polls, forget_queue
from tenantq.engine.queue_state import TenantState
from tenantq.engine.tenant_rows import META_KINDS, RowChange, apply_changes
from tenantq.errors import Conflict, TenantMoved
from tenantq.journal.record import JournalEntry
from tenantq.store.keys import after, tenant_prefix

_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode


def check_movable(tenant: TenantState) -> None:
    """Raise Conflict for a tenant that cannot leave its shard at the moment."""
    if tenant.erasing is not None:
        raise Conflict("the tenant is being deleted", tenant=tenant.name)
    frozen = tenant.suspension is not None and tenant.suspension.mode != "settle"
    if frozen or any(one.suspension is not None and one.suspension.mode != "settle" for one in tenant.queues.values()):
        raise Conflict("the tenant is being moved to or from another server", tenant=tenant.name)
    damaged = next((one.name for one in tenant.queues.values() if one.damaged), None)
    if damaged is not None:
        raise Conflict("rows of the queue cannot be read", tenant=tenant.name, queue=damaged)


class _MoveOperation(Operation[None]):
    """One step of a move, in the journal of the shard that makes it."""

    journal_op = "move_tenant"

    def note(self, effects: Effects, name: str, details: str) -> None:
        """Journal the step."""
        caller = self.caller
        effects.entries.append(JournalEntry("move_tenant", name, "", caller.principal, details=details))


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
        self.note(effects, tenant.name, f"leaves for shard {self.target}")


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
            _serve(effects, moved.id, moved.row, ())
            self.note(effects, self.name, "stays")


@dataclass(eq=False)
class DropMoved(_MoveOperation):
    """Delete the rows of a tenant that another shard serves."""

    name: str
    phase: ClassVar[int] = RANGE

    def execute(self, effects: Effects) -> None:
        """Delete all rows of the tenant. What remains leads callers to the other shard."""
        moved = effects.state.catalog.moved.get(self.name)
        if moved is not None and moved.row:
            _delete_all(effects, moved.id, self.name)
            effects.state.catalog.put_moved(effects.batch, self.name, MovedRow(moved.id, moved.target))
            self.note(effects, self.name, f"is served by shard {moved.target}; its rows here are deleted")


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
        if self.name in catalog.tenants:
            raise Conflict("the target shard has a tenant of this name", tenant=self.name)
        _delete_all(effects, self.id, self.name)
        _delete_staged_keys(effects, catalog.arriving.get(self.id))
        moved = catalog.moved.get(self.name)
        if moved is not None and moved.row:
            if moved.id != self.id:  # of an earlier tenant of this name
                _delete_all(effects, moved.id, self.name)
            catalog.put_moved(effects.batch, self.name, MovedRow(moved.id, self.source))
        catalog.put_arriving(effects.batch, self.id, ArrivingRow(self.name, self.source))
        self.note(effects, self.name, f"arrives from shard {self.source}")


@dataclass(eq=False)
class ReceiveRows(_MoveOperation):
    """Write some of the rows of an arriving tenant; with ``row``, they are the last ones, and it is the tenant's own."""

    id: int
    changes: list[RowChange]
    row: bytes = b""
    key_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.cost = len(self.changes) + sum(len(one.value or b"") for one in self.changes) / BYTES_PER_COST

    def execute(self, effects: Effects) -> None:
        """Write the rows. Raises Conflict if the arrival was cancelled."""
        catalog = effects.state.catalog
        arriving = catalog.arriving.get(self.id)
        if arriving is None:
            raise Conflict("the tenant is not arriving at this shard")
        for one in self.changes:
            if one.value is not None and one.family == "meta" and one.key.startswith(QUEUE_ROW):
                catalog.name_arriving_queue(self.id, one.key, one.value)
        apply_changes(effects.batch, effects.store, self.changes)
        if self.row:
            staged = ArrivingRow(arriving.name, arriving.source, self.row, self.key_ids)
            catalog.put_arriving(effects.batch, self.id, staged)
        self.note(effects, arriving.name, f"{len(self.changes)} rows from shard {arriving.source}")


@dataclass(eq=False)
class CancelArrival(_MoveOperation):
    """Delete the rows of a tenant that stays where it is."""

    id: int
    phase: ClassVar[int] = RANGE

    def execute(self, effects: Effects) -> None:
        """Delete all rows of the tenant, if it was arriving."""
        arriving = effects.state.catalog.arriving.get(self.id)
        if arriving is not None:
            _delete_all(effects, self.id, arriving.name)
            _delete_staged_keys(effects, arriving)
            effects.state.catalog.put_arriving(effects.batch, self.id, None)
            self.note(effects, arriving.name, f"stays on shard {arriving.source}")


@dataclass(eq=False)
class ActivateTenant(_MoveOperation):
    """Serve a tenant whose rows have all arrived."""

    id: int
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Load the tenant from its rows. Does nothing if it is served, and raises Conflict if rows are missing."""
        catalog = effects.state.catalog
        arriving = catalog.arriving.get(self.id)
        if arriving is None:
            return
        if not arriving.row:
            raise Conflict("not all rows of the tenant have arrived", tenant=arriving.name)
        row = _decode_tenant(arriving.row)
        row = msgspec.structs.replace(
            row, since=effects.seq, earlier=(*row.earlier, (arriving.source, row.since))[-_EARLIER_MAX:]
        )
        catalog.put_arriving(effects.batch, self.id, None)
        catalog.put_moved(effects.batch, arriving.name, None)
        _serve(effects, self.id, _encode(row), arriving.key_ids)
        self.note(effects, arriving.name, f"arrived from shard {arriving.source}")


_EARLIER_MAX = 100


def _serve(effects: Effects, id: int, row: bytes, key_ids: tuple[str, ...]) -> None:
    """Load a tenant, and have its queues examined: what became due meanwhile happens now."""
    tenant = effects.state.load_tenant(id, row, key_ids)
    effects.state.catalog.save_tenant(effects.batch, tenant)
    for queue in tenant.queues.values():
        effects.cleared.add(queue.prefix)  # leases that are cached from an earlier stay here
        effects.touch(queue)


def _delete_all(effects: Effects, id: int, name: str) -> None:
    meta, prefix = effects.store.meta.handle, tenant_prefix(id)
    delete_rows(effects, id, name)
    effects.batch.delete(TENANT_ROW + prefix, meta)
    for kind in META_KINDS:
        effects.batch.delete_range(kind + prefix, kind + after(prefix), meta)


def _delete_staged_keys(effects: Effects, arriving: ArrivingRow | None) -> None:
    """Delete the API keys that came with the last rows of an arrival. They are not in memory yet."""
    for id in arriving.key_ids if arriving is not None else ():
        for kind in (KEY_ROW, USE_ROW):
            effects.batch.delete(kind + id.encode(), effects.store.meta.handle)
