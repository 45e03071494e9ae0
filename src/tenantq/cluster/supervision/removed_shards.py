"""The check before the number of shards is reduced."""

from pathlib import Path

from tenantq.cluster.layout import shard_dir
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.engine.catalog import Catalog
from tenantq.errors import Conflict, StoreFormat
from tenantq.store.rocks import RocksStore


def check_empty(data_dir: Path, count: int, before: int) -> None:
    """Raise Conflict if a shard that is to be removed still has a tenant."""
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
            tenants = sorted(set(catalog.tenants) - {DEFAULT_TENANT, *PROBE_TENANTS})
        finally:
            store.close()
        if tenants:
            more = f" and {len(tenants) - 1} more" if len(tenants) > 1 else ""
            raise Conflict(
                f"shards: cannot be less than {before} in {data_dir}, because shard {number} has the tenant {tenants[0]}{more}."
                f" Move tenants to another server with 'tenantq migrate', or use --shards {before}",
                tenant=tenants[0],
            )
