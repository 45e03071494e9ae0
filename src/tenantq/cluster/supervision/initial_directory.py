"""The tenant directory of a data directory that has none: written from the catalogs of its shards, which are not open."""

import logging
from collections.abc import Mapping
from pathlib import Path

from tenantq.cluster.tenant_directory import tenants_with_rows
from tenantq.domain.cluster_view import TenantPlacement
from tenantq.domain.placement import split_unit, spread_shard, unit_name
from tenantq.engine.catalog import Catalog, decode_tenant
from tenantq.engine.queue_state import TenantState
from tenantq.errors import StoreFormat
from tenantq.store.placement_file import PlacementFile
from tenantq.store.rocks import RocksStore
from tenantq.store.shard_directories import shard_dir

log = logging.getLogger("tenantq.shards")


def build_directory(home: Path, count: int) -> None:
    """Write the directory of ``count`` shards, unless there is one. No shard runs. Blocks. Raises StoreFailed, StoreDamaged or OSError."""
    stored = PlacementFile(home, create=True)
    try:
        stored.release_all_moves()
        if stored.is_new():
            catalogs = _catalogs(home, count)
            stored.fill(placements_of(catalogs))
            if len(catalogs) > 1:  # with one shard, no tenant was placed by an operator
                log.warning(
                    "%s was missing, and was built from the shards. No tenant is pinned or has a dedicated shard any more."
                    " Set that again with 'tenantq topology pin' and 'tenantq topology dedicate'.",
                    stored.path,
                )
    finally:
        stored.close()


def _catalogs(home: Path, count: int) -> dict[int, Catalog]:
    found = {}
    for number in range(count):
        try:
            store = RocksStore(shard_dir(home, number), read_only=True)
        except StoreFormat:
            continue  # it was never opened
        try:
            catalog = found[number] = Catalog(store)
            catalog.load()
        finally:
            store.close()
    return found


def placements_of(catalogs: Mapping[int, Catalog]) -> dict[str, TenantPlacement]:
    """Return the directory rows, given the catalogs by shard. If two shards have a tenant, the lower one serves it."""
    rows: dict[str, TenantPlacement] = {}
    twice: list[str] = []
    for number, catalog in sorted(catalogs.items()):
        for name in tenants_with_rows(number, catalog.tenants):
            tenant = catalog.tenants[name]
            if tenant.part is not None and not tenant.part.is_home:
                continue
            if name in rows:
                twice.append(name)
            elif tenant.part is None:
                rows[name] = TenantPlacement(shard=number, regions=tenant.config.regions)
            else:
                rows |= _spread_rows(number, tenant, catalogs)
    for number, catalog in catalogs.items():
        for name, moved in catalog.moved.items():
            if moved.row and not (split_unit(name)[1] and _is_served(catalogs, name)):  # the move was not decided
                if split_unit(name)[1]:  # without a move the group would stay where it is
                    row = TenantPlacement(shard=number, moving_to=moved.target)
                else:
                    row = TenantPlacement(shard=number, regions=decode_tenant(moved.row).config.regions)
                rows.setdefault(name, row)
    if twice:
        log.error(
            "two shards have tenants of the same name; only those on the lower shard are served: %s",
            ", ".join(sorted(twice)[:10]),
        )
    return rows


def _spread_rows(home: int, tenant: TenantState, catalogs: Mapping[int, Catalog]) -> dict[str, TenantPlacement]:
    """Return the rows of a tenant whose queues are spread, and of its queues that are not where their hash says."""
    part = tenant.part
    assert part is not None
    parts = {number: one for number, catalog in catalogs.items() if (one := catalog.tenants_by_id.get(tenant.id))}
    known = {home, *part.shards, *part.next_shards}
    row = TenantPlacement(
        shard=home,
        shards=part.shards,
        next_shards=part.next_shards,
        leaving=tuple(number for number in parts if number not in known),
        regions=tenant.config.regions,
    )
    rows = {tenant.name: row}
    for number, one in parts.items():
        for queue in one.queues:
            wanted = spread_shard(tenant.name, queue, part.shards)
            if wanted != number:
                moving_to = None if part.next_shards else wanted  # a change in progress decides that itself
                rows[unit_name(tenant.name, queue)] = TenantPlacement(shard=number, moving_to=moving_to)
    return rows


def _is_served(catalogs: Mapping[int, Catalog], unit: str) -> bool:
    """Return whether a shard serves queues of a group."""
    name = split_unit(unit)[0]
    tenants = (catalog.tenants.get(name) for catalog in catalogs.values())
    return any(unit_name(name, queue) == unit for tenant in tenants if tenant is not None for queue in tenant.queues)
