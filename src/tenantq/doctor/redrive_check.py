"""Checks the rows of redrives: each belongs to a queue, and says what was asked."""

from collections.abc import Mapping

from tenantq.doctor.catalog_check import KnownQueue
from tenantq.doctor.report import FindingLog
from tenantq.engine.catalog import tenants_in_transit
from tenantq.engine.redrive_registry import stored_redrives
from tenantq.store.interface import StoreReader
from tenantq.store.keys import split_prefix


def check_redrives(store: StoreReader, queues: Mapping[bytes, KnownQueue], log: FindingLog) -> None:
    """Record findings about redrives. Rows of tenants that move are on their way."""
    found, transit = stored_redrives(store), tenants_in_transit(store)
    for one in found:
        tenant_id, queue_id = split_prefix(one.prefix)
        queue = queues.get(one.prefix)
        if tenant_id in transit:
            continue
        if queue is None:
            text = f"Redrive {one.id} does not belong to any known queue."
            log.found("orphan", text, tenant=f"#{tenant_id}", queue=f"#{queue_id}")
        elif one.problem:
            text = f"Redrive {one.id} cannot be read: {one.problem}"
            log.found("damaged", text, tenant=queue.tenant, queue=queue.name)
        elif one.order is None:
            text = f"Redrive {one.id} has progress, but the row that says what it moves is missing."
            log.found("catalog", text, tenant=queue.tenant, queue=queue.name)
    log.progress("redrives", len(found))
