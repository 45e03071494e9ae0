"""Parts of a tenant whose queues are spread over shards: how they begin and end, share settings, and pass rights on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from tenantq.domain import limits
from tenantq.engine import spread_rules
from tenantq.engine.access_store import CONTAINED_ROW, GRANT_ROW, REVIEW_ROW, REVOKED_ROW
from tenantq.engine.catalog import MovedRow, TenantRow
from tenantq.engine.data_key_rows import DATA_KEY_ROW
from tenantq.engine.effects import Effects
from tenantq.engine.operation import LAST, RANGE, Operation
from tenantq.engine.ops.lifecycle import delete_rows, end_polls, forget_queue
from tenantq.engine.ops.move import log_step, part_of, redirect_early_polls
from tenantq.engine.part_state import BLOCK_IDS, PartState
from tenantq.engine.queue_groups import forget_units, save_part
from tenantq.engine.queue_state import TenantState
from tenantq.engine.state import ShardState
from tenantq.engine.usage import COUNTED
from tenantq.errors import Conflict, Draining, Suspended, no_tenant
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under

SHARED_KINDS: Final = (GRANT_ROW, REVIEW_ROW, REVOKED_ROW, CONTAINED_ROW, DATA_KEY_ROW, b"template/")
"""Rows of the meta family that all parts of a tenant have. Its API keys are at home only."""

_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode


class SharedState(msgspec.Struct, frozen=True):
    """The settings of a tenant that all its parts have, as home sends them."""

    version: int  # the last journal record of home; a part ignores older ones
    id: int
    row: bytes  # the tenant's row
    rows: list[tuple[bytes, bytes]]  # the rows of SHARED_KINDS

    def is_like(self, other: SharedState | None) -> bool:
        """Return whether another one has the same settings."""
        return other is not None and (self.row, self.rows) == (other.row, other.rows)


def shared_state(state: ShardState, tenant: TenantState) -> SharedState:
    """Return the settings of a tenant at home. May block the shard for a moment."""
    prefix = tenant_prefix(tenant.id)
    rows = [one for kind in SHARED_KINDS for one in rows_under(state.store, state.store.meta, kind + prefix)]
    assert tenant.part is not None
    row = TenantRow(
        tenant.name, tenant.config, 0, tenant.status, tenant.version, 0, tenant.hold, tenant.suspension, tenant.erasing,
        tenant.next_data_key, (*tenant.earlier, (tenant.part.home, tenant.since)), tenant.queue_blocks,
    )  # fmt: skip
    return SharedState(state.journal.seq, tenant.id, _encode(row), rows)


class _SpreadOperation(Operation[None]):
    """One step, in the journal of the shard that makes it."""

    journal_op = "spread_tenant"
    phase: ClassVar[int] = LAST


# ---- a change of the spread ----


@dataclass(eq=False)
class PrepareHome(_SpreadOperation):
    """Prepare to spread a tenant over other shards than now: only queues that both put here can be created here."""

    name: str
    shard: int
    next_shards: tuple[int, ...]

    def execute(self, effects: Effects) -> None:
        """Write the home part. Raises Conflict if the tenant cannot be spread."""
        tenant = effects.state.catalog.tenant(self.name)
        if len(self.next_shards) > 1:
            spread_rules.check_spreadable(tenant)
        if tenant.part is None:
            tenant.part = PartState(self.shard, self.shard, (self.shard,))
            quotas = tenant.config.quotas
            tenant.part.rights = {name: getattr(quotas, name) or 0 for name in COUNTED}
        tenant.part.next_shards = self.next_shards
        save_part(effects.batch, effects.store, tenant)
        log_step(effects, self, tenant.name, f"prepares for shards {_listed(self.next_shards)}")


@dataclass(eq=False)
class ReserveBlock(Operation[int]):
    """Reserve a range of queue ids for a new part. Replies its number."""

    name: str
    journal_op = "spread_tenant"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write the tenant's row. Raises Conflict if all ranges are used, or the tenant is being deleted."""
        tenant = effects.state.catalog.tenant(self.name)
        tenant.check_not_erasing()
        if (tenant.queue_blocks + 2) * BLOCK_IDS > limits.QUEUE_ID_MAX:
            raise Conflict("the tenant was spread too often", tenant=tenant.name)
        tenant.queue_blocks += 1
        effects.state.catalog.save_tenant(effects.batch, tenant)
        effects.log_tenant("spread_tenant", tenant, self.caller, f"queue ids of range {tenant.queue_blocks}")
        self.reply = tenant.queue_blocks


@dataclass(eq=False)
class NotePart(_SpreadOperation):
    """Have audit queries read the journal of a part."""

    name: str
    shard: int
    since: int  # the first journal record there

    def execute(self, effects: Effects) -> None:
        """Write the tenant's row."""
        tenant = effects.state.catalog.tenant(self.name)
        if (self.shard, self.since) not in tenant.earlier:
            tenant.earlier = (*tenant.earlier, (self.shard, self.since))
            effects.state.catalog.save_tenant(effects.batch, tenant)
            log_step(effects, self, tenant.name, f"has a part on shard {self.shard}")


@dataclass(eq=False)
class PreparePart(_SpreadOperation):
    """Prepare a part for other shards than now. A new part is created with the tenant's settings and no rights."""

    shared: SharedState
    shard: int
    home: int
    shards: tuple[int, ...]
    next_shards: tuple[int, ...]
    block: int  # of queue ids, for a new part

    def execute(self, effects: Effects) -> None:
        """Write the part. Raises Conflict if this shard has another tenant of this name, or the request is an old one."""
        catalog, shared = effects.state.catalog, self.shared
        row = _decode_tenant(shared.row)
        tenant = catalog.tenants.get(row.name)
        if tenant is not None and (tenant.id != shared.id or tenant.part is None):
            raise Conflict(f"shard {self.shard} has a tenant of this name", tenant=row.name)
        if catalog.is_in_transit(row.name):
            raise Conflict(f"a tenant of this name is on its way to shard {self.shard}", tenant=row.name)
        if tenant is None:
            dropped = catalog.moved.get(row.name)
            if dropped is not None and dropped.id == shared.id and self.block <= dropped.block:
                raise Conflict(f"the tenant's part on shard {self.shard} was deleted since", tenant=row.name)
            catalog.put_moved(effects.batch, row.name, None)
            own = msgspec.structs.replace(row, next_queue_id=self.block * BLOCK_IDS + 1, since=effects.seq)
            tenant = catalog.add_tenant(shared.id, own)
            tenant.part = PartState(self.shard, self.home, self.shards)
            tenant.part.owing = frozenset(COUNTED)  # until home says that it uses no more than its rights
        part = tenant.part
        assert part is not None
        if part.has_left:
            raise Conflict(f"the tenant's part on shard {self.shard} is leaving", tenant=tenant.name)
        if shared.version < part.shared_version:
            raise Conflict("home has sent newer settings since", tenant=tenant.name)
        part.next_shards = self.next_shards
        _apply(effects, tenant, shared)
        save_part(effects.batch, effects.store, tenant)
        log_step(effects, self, tenant.name, f"prepares for shards {_listed(self.next_shards)}")


@dataclass(eq=False)
class SwitchPart(_SpreadOperation):
    """Use the shards that a part was prepared for. Polls that wait for a queue to be created look for it again."""

    name: str
    shards: tuple[int, ...]

    def execute(self, effects: Effects) -> None:
        """Write the part. Does nothing if it was done before."""
        tenant, catalog = effects.state.catalog.tenant(self.name), effects.state.catalog
        part = tenant.part
        if part is None or (part.shards == self.shards and not part.next_shards):
            return
        part.shards, part.next_shards = self.shards, ()
        for unit in [one for one, row in catalog.moved.items() if one.startswith(f"{tenant.name}/") and not row.row]:
            catalog.put_moved(effects.batch, unit, None)  # the directory, read before this, knows better
        save_part(effects.batch, effects.store, tenant)
        redirect_early_polls(effects, tenant)
        log_step(effects, self, tenant.name, f"is spread over shards {_listed(self.shards)}")


@dataclass(eq=False)
class DropPart(Operation[dict[str, int]]):
    """Delete the part of a tenant whose home is another shard, with everything in it. Replies what it had.

    What remains leads callers with an old directory home, and refuses requests to create the part that were sent before.
    """

    name: str
    id: int
    home: int
    block: int  # the last one that home has reserved for a part
    phase: ClassVar[int] = RANGE
    journal_op = "spread_tenant"

    def execute(self, effects: Effects) -> None:
        """Delete all rows of the part, including those still arriving, if it exists."""
        state = effects.state
        tenant = state.catalog.tenants_by_id.get(self.id)
        self.reply = {}
        if tenant is None:
            if self.name not in state.catalog.tenants and not state.catalog.is_in_transit(self.name):
                self._leave_trace(effects)
            return
        if tenant.part is None or tenant.part.is_home:
            return
        queues = list(tenant.queues.values())
        self.reply = {
            "queues": len(queues),
            "messages": sum(queue.messages for queue in queues),
            "bytes": sum(queue.bytes for queue in queues),
        }
        forget_units(state.catalog, effects.batch, tenant)
        for queue in queues:
            forget_queue(effects, queue, Draining(tenant=tenant.name, queue=queue.name))
        end_polls(effects, state.early_polls.pop(tenant, deque()), no_tenant(tenant.name))
        delete_rows(effects, tenant.id, tenant.name)
        tenant.gone = True
        state.catalog.drop_tenant(effects.batch, tenant)
        self._leave_trace(effects)

    def _leave_trace(self, effects: Effects) -> None:
        effects.state.catalog.put_moved(effects.batch, self.name, MovedRow(self.id, self.home, b"", self.block))
        log_step(effects, self, self.name, "no longer has a part on this shard")


@dataclass(eq=False)
class ForgetPart(_SpreadOperation):
    """Forget a part that was deleted: a new one on its shard counts its transfers from the start."""

    name: str
    shard: int

    def execute(self, effects: Effects) -> None:
        """Write the home part."""
        tenant = effects.state.catalog.tenant(self.name)
        if tenant.part is not None:
            tenant.part.sent.pop(self.shard, None)
            tenant.part.received.pop(self.shard, None)
            tenant.part.left.discard(self.shard)
            save_part(effects.batch, effects.store, tenant)
            log_step(effects, self, tenant.name, f"has no part on shard {self.shard}")


@dataclass(eq=False)
class EndSpread(_SpreadOperation):
    """Make a tenant whose parts have all left an ordinary one."""

    name: str

    def execute(self, effects: Effects) -> None:
        """Delete the home part. Raises Conflict if rights are missing."""
        tenant, catalog = effects.state.catalog.tenant(self.name), effects.state.catalog
        part = tenant.part
        if part is None:
            return
        quotas = tenant.config.quotas
        missing = [name for name in COUNTED if part.rights[name] != (getattr(quotas, name) or 0)]
        if missing:
            raise Conflict(f"rights of {', '.join(missing)} have not come back yet", tenant=tenant.name)
        forget_units(catalog, effects.batch, tenant)
        tenant.part = None
        save_part(effects.batch, effects.store, tenant)
        log_step(effects, self, tenant.name, "is on one shard")


# ---- settings ----


@dataclass(eq=False)
class ApplyShared(_SpreadOperation):
    """Take over the tenant's settings from its home."""

    shared: SharedState

    def execute(self, effects: Effects) -> None:
        """Write them, unless newer ones are here. Raises Conflict if the tenant has no part here."""
        tenant, part = part_of(effects, self.shared.id)
        if self.shared.version >= part.shared_version and not part.is_home:
            _apply(effects, tenant, self.shared)
            log_step(effects, self, tenant.name, f"settings of version {tenant.version}")


def _apply(effects: Effects, tenant: TenantState, shared: SharedState) -> None:
    state, batch, part = effects.state, effects.batch, tenant.part
    row, prefix = _decode_tenant(shared.row), tenant_prefix(tenant.id)
    assert part is not None

    def rows(start: bytes) -> Iterable[tuple[bytes, bytes]]:
        return (one for one in shared.rows if one[0].startswith(start))

    state.access.drop_tenant(batch, tenant.id, tenant.name)
    state.access.load_tenant(tenant.id, tenant.name, (), rows)
    state.data_keys.drop(batch, tenant.id)
    state.data_keys.add(rows(DATA_KEY_ROW))
    state.templates.drop_tenant(batch, tenant.id)
    state.templates.add(rows(b"template/"))
    meta = effects.store.meta.handle
    for kind in SHARED_KINDS:
        batch.delete_range(kind + prefix, kind + after(prefix), meta)
    for key, value in shared.rows:
        batch.put(key, value, meta)
    was_suspended = tenant.status == "suspended"
    tenant.config, tenant.line.weight = state.catalog.shared(row.config), row.config.weight
    tenant.status, tenant.version, tenant.hold, tenant.erasing = row.status, row.version, row.hold, row.erasing
    suspension = row.suspension
    if suspension is not None:  # its times are those of this shard
        before = tenant.suspension
        same = before is not None and (before.mode, before.at) == (suspension.mode, suspension.at)
        at, seq = (before.engine_ms, before.seq) if before is not None and same else (effects.now, effects.seq)
        suspension = msgspec.structs.replace(suspension, engine_ms=at, seq=seq)
    tenant.suspension = suspension
    tenant.next_data_key, tenant.queue_blocks = row.next_data_key, row.queue_blocks
    tenant.earlier = tuple(one for one in row.earlier if one[0] != part.shard)
    part.shared_version = shared.version
    state.catalog.save_tenant(batch, tenant)
    save_part(batch, effects.store, tenant)
    if tenant.status == "suspended" and not was_suspended:
        for queue in tenant.queues.values():
            end_polls(effects, queue.demands, Suspended(tenant=tenant.name, queue=queue.name))
        end_polls(effects, state.early_polls.pop(tenant, deque()), Suspended(tenant=tenant.name))
    for queue in tenant.queues.values():
        effects.touch(queue)


def _listed(shards: tuple[int, ...]) -> str:
    return ", ".join(map(str, shards))
