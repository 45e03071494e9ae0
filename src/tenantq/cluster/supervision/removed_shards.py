"""The check before the number of shards is reduced."""

from pathlib import Path

from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.domain.placement import split_unit
from tenantq.engine.catalog import Catalog
from tenantq.errors import Conflict, StoreFormat
from tenantq.store.placement_file import FILE, PlacementFile
from tenantq.store.rocks import RocksStore
from tenantq.store.shard_directories import shard_dir


def check_empty(data_dir: Path, count: int, before: int) -> None:
    """Raise Conflict if a shard that is to be removed still has a tenant, or is to get one."""
    for number in range(count, before):
        path = shard_dir(data_dir, number)
        if not path.is_dir():
            continue
        try:
            store = RocksStore(path, read_only=True)
        except StoreFormat:
            continue  # it was never opened
        try:
            catalog = Catalog(store)
            catalog.load()
            tenants = set(catalog.tenants) - {DEFAULT_TENANT, *PROBE_TENANTS}
            tenants |= {split_unit(name)[0] for name, moved in catalog.moved.items() if moved.row}
            tenants |= {split_unit(name)[0] for name in catalog.arriving}
        finally:
            store.close()
        if tenants:
            more = f" and {len(tenants) - 1} more" if len(tenants) > 1 else ""
            raise _refused(data_dir, before, f"shard {number} has the tenant {min(tenants)}{more}", min(tenants))
    _forget_shards(data_dir, count, before)


def _forget_shards(data_dir: Path, count: int, before: int) -> None:
    """Delete directory rows of tenants that were never created. Raises Conflict if a tenant is to get a removed shard."""
    if not (data_dir / FILE).exists():
        return  # the next start makes one
    stored = PlacementFile(data_dir)
    try:
        _, rows = stored.placements()
        for name, row in rows.items():
            if any(shard >= count for shard in (*row.parts[1:], row.moving_to or 0)):
                tenant = split_unit(name)[0]
                raise _refused(data_dir, before, f"the tenant {tenant} is on its way to a shard to be removed", tenant)
        for name, row in rows.items():
            if row.shard >= count:
                stored.remove_tenant(name)
    finally:
        stored.close()


def _refused(data_dir: Path, before: int, because: str, tenant: str) -> Conflict:
    return Conflict(
        f"shards: cannot be less than {before} in {data_dir}, because {because}."
        f" Start with --shards {before} and move tenants away with 'tenantq topology pin', or set their spread to 1.",
        tenant=tenant,
    )
