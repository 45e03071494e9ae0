"""Groups of queues of a tenant that is spread over shards: what is placed, and moves, as one.

The name of a group is ``tenant/group``; see ``placement.placement_group``.
"""

import msgspec

from tenantq.domain.placement import GROUP_SEPARATOR, split_unit, unit_name
from tenantq.engine.catalog import PART_ROW, QUEUE_ROW, Catalog, GroupRow, MovedRow, QueueRow
from tenantq.engine.part_state import PartAccount, RightsTransfer
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.errors import Conflict
from tenantq.store.interface import Batch, StoreReader
from tenantq.store.keys import tenant_prefix
from tenantq.store.row_pages import rows_under

_encode = msgspec.msgpack.Encoder().encode
_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode
_decode_group = msgspec.msgpack.Decoder(GroupRow).decode


def group_of(tenant: TenantState, unit: str) -> list[QueueState]:
    """Return the queues of a group that are served here."""
    return [queue for queue in tenant.queues.values() if unit_name(tenant.name, queue.name) == unit]


def stored_group(store: StoreReader, id: int, unit: str) -> list[bytes]:
    """Return the prefixes of the queues of a group that have rows in the store, served or not."""
    tenant = split_unit(unit)[0]
    return [
        key[len(QUEUE_ROW) :]
        for key, value in rows_under(store, store.meta, QUEUE_ROW + tenant_prefix(id))
        if unit_name(tenant, _decode_queue(value).name) == unit
    ]


def save_part(batch: Batch, store: StoreReader, tenant: TenantState) -> None:
    """Write the row of a tenant's part, or delete it if the tenant is on one shard."""
    key, meta = PART_ROW + tenant_prefix(tenant.id), store.meta.handle
    if tenant.part is not None:
        part, usage = tenant.part, tenant.usage
        part.reported = dict(usage.reported)
        part.reported_hour, part.reported_day = usage.reported_hour, usage.reported_day
        batch.put(key, part.pack(), meta)
    else:
        batch.delete(key, meta)


def name_arriving_queue(store: StoreReader, unit: str, key: bytes, value: bytes) -> None:
    """Have the store know the name of a queue of an arriving tenant or group, given its row."""
    store.name_queue(key[len(QUEUE_ROW) :], f"{split_unit(unit)[0]}:{_decode_queue(value).name}")


def take_out_group(catalog: Catalog, batch: Batch, tenant: TenantState, unit: str, target: int, row: GroupRow) -> None:
    """Stop serving a group of queues that leaves for another shard. Their rows stay."""
    for queue in group_of(tenant, unit):
        del tenant.queues[queue.name]
        tenant.usage.queues -= not queue.system_made
    catalog.put_moved(batch, unit, MovedRow(tenant.id, target, _encode(row)))


def load_group(catalog: Catalog, tenant: TenantState, prefixes: tuple[bytes, ...]) -> list[QueueState]:
    """Load the queues of a group whose rows are in the store, and return them."""
    for prefix in prefixes:
        catalog.load_queues(prefix, with_usage=False)
    return [queue for queue in tenant.queues.values() if queue.prefix in prefixes]


def units_in_transit(catalog: Catalog, tenant: TenantState) -> list[str]:
    """Return the groups of a tenant's queues that are on their way from or to this shard."""
    return [one for one in _units(catalog, tenant) if catalog.is_in_transit(one)]


def arriving_units(catalog: Catalog, tenant: TenantState) -> list[str]:
    """Return the groups of a tenant's queues whose rows are being copied to this shard, or that it does not serve yet."""
    return [one for one in _units(catalog, tenant) if one in catalog.arriving]


def account_of(catalog: Catalog, tenant: TenantState) -> PartAccount:
    """Return what a tenant's part on this shard has recorded about its rights. Raises Conflict if it has none."""
    part = tenant.part
    if part is None:
        raise Conflict("its queues are on one shard", tenant=tenant.name)
    leaving = {
        unit: (moved.target, _decode_group(moved.row).rights)
        for unit in _units(catalog, tenant)
        if (moved := catalog.moved.get(unit)) is not None and moved.row
    }
    sent, received = part.sent.get(part.home, RightsTransfer()), part.received.get(part.home, 0)
    return PartAccount(dict(part.rights), sent, received, leaving, part.shared_version, part.changes)


def forget_units(catalog: Catalog, batch: Batch, tenant: TenantState) -> None:
    """Forget groups of a tenant's queues that left or are on their way. Their rows go with the tenant's."""
    for unit in _units(catalog, tenant):
        catalog.put_moved(batch, unit, None)
        catalog.put_arriving(batch, tenant.id, unit, None)


def _units(catalog: Catalog, tenant: TenantState) -> list[str]:
    start = tenant.name + GROUP_SEPARATOR
    return [one for one in dict.fromkeys((*catalog.moved, *catalog.arriving)) if one.startswith(start)]
