"""Checks the catalog of tenants, queues and data keys, and finds rows that belong to none."""

import msgspec

from tenantq.doctor.report import FindingLog
from tenantq.domain.names import FIFO_SUFFIX
from tenantq.engine.catalog import (
    NEXT_TENANT_ID,
    PART_ROW,
    QUEUE_ROW,
    TENANT_ROW,
    QueueRow,
    TenantRow,
    tenants_in_transit,
)
from tenantq.engine.data_key_rows import DATA_KEY_ROW
from tenantq.engine.part_state import PartState
from tenantq.store.interface import StoreReader
from tenantq.store.keys import PREFIX_BYTES, QUEUE_FAMILIES, after, digest, split_prefix
from tenantq.store.row_pages import pages_of_items, pages_of_keys, rows_under
from tenantq.vault.stored_keys import is_key

_END = b"\xff" * 65
_TENANT_SECRET = 0
_TENANT_ID_BYTES = 4
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode


class KnownQueue(msgspec.Struct, frozen=True):
    """A queue of the catalog."""

    prefix: bytes
    tenant: str
    name: str
    erasing: bool = False  # its tenant is being deleted, and the data keys are gone already

    def group_digest(self, group: str | None) -> bytes:
        """Return the digest of a message's group, as the engine computes it."""
        if group is None:
            return digest(b"") if self.name.endswith(FIFO_SUFFIX) else b""
        return digest(group.encode())


def load_queues(store: StoreReader, log: FindingLog) -> dict[bytes, KnownQueue]:
    """Return every queue by its prefix, and record findings about the catalog."""
    tenants, transit = _load_tenants(store, log), tenants_in_transit(store)
    queues: dict[bytes, KnownQueue] = {}
    names: set[tuple[int, str]] = set()
    for key, value in rows_under(store, store.meta, QUEUE_ROW):
        prefix, row = key[len(QUEUE_ROW) :], _decode_queue(value)
        tenant_id, queue_id = split_prefix(prefix)
        tenant = tenants.get(tenant_id)
        if tenant_id in transit:
            continue
        if tenant is None:
            log.found("catalog", "The queue does not belong to any tenant.", tenant=f"#{tenant_id}", queue=row.name)
        elif queue_id >= tenant.next_queue_id and not tenant.queue_blocks:  # other shards have their own ids
            log.found("catalog", "The queue's ID may be assigned again.", tenant=tenant.name, queue=row.name)
        if (tenant_id, row.name) in names:
            log.found("catalog", "Two queues have the same name.", tenant=_name(tenants, tenant_id), queue=row.name)
        names.add((tenant_id, row.name))
        erasing = tenant is not None and tenant.erasing is not None
        queues[prefix] = KnownQueue(prefix, _name(tenants, tenant_id), row.name, erasing)
    rows = rows_under(store, store.meta, PART_ROW)
    parts = {int.from_bytes(key[len(PART_ROW) :]) for key, value in rows if not PartState.load(value).is_home}
    log.tenants = {row.name for id, row in tenants.items() if id not in parts}
    log.parts = {row.name for id, row in tenants.items() if id in parts}
    log.figures.tenants, log.figures.queues = len(log.tenants), len(queues)
    return queues


def _load_tenants(store: StoreReader, log: FindingLog) -> dict[int, TenantRow]:
    tenants: dict[int, TenantRow] = {}
    names: set[str] = set()
    raw = store.get(store.meta, NEXT_TENANT_ID)
    next_id = int.from_bytes(raw) if raw else 1
    for key, value in rows_under(store, store.meta, TENANT_ROW):
        id, row = int.from_bytes(key[len(TENANT_ROW) :]), _decode_tenant(value)
        if row.name in names:
            log.found("catalog", "Two tenants have the same name.", tenant=row.name)
        if id >= next_id and not row.earlier:  # other shards have their own ids
            log.found("catalog", "The tenant's ID may be assigned again.", tenant=row.name)
        names.add(row.name)
        tenants[id] = row
    return tenants


def _name(tenants: dict[int, TenantRow], id: int) -> str:
    tenant = tenants.get(id)
    return tenant.name if tenant is not None else f"#{id}"


def find_orphans(store: StoreReader, queues: dict[bytes, KnownQueue], log: FindingLog) -> None:
    """Report every prefix with rows that is not a queue's. Known prefixes are skipped without reading them."""
    transit = {id.to_bytes(_TENANT_ID_BYTES) for id in tenants_in_transit(store)}
    for name in QUEUE_FAMILIES:
        family, lower = store.family(name), b""
        while first := store.scan(family, lower, _END, 1):
            prefix = first[0][:PREFIX_BYTES]
            lower = after(prefix)
            if prefix[:_TENANT_ID_BYTES] in transit:
                lower = after(prefix[:_TENANT_ID_BYTES])
                continue
            if prefix in queues:
                continue
            count = 1
            if len(prefix) == PREFIX_BYTES:
                count = sum(len(page) for page in pages_of_keys(store, family, prefix, lower))
            tenant_id, queue_id = split_prefix(prefix.ljust(PREFIX_BYTES, b"\0"))
            log.found(
                "orphan",
                f"{count} rows in family {name} do not belong to any known queue.",
                tenant=f"#{tenant_id}",
                queue=f"#{queue_id}",
            )


def load_data_keys(store: StoreReader, log: FindingLog) -> dict[int, set[int]]:
    """Return the numbers of data keys by tenant id, and record findings about them."""
    found: dict[int, set[int]] = {}
    for page in pages_of_items(store, store.meta, DATA_KEY_ROW, after(DATA_KEY_ROW)):
        for key, value in page:
            place = key[len(DATA_KEY_ROW) :]
            if len(place) != 2 * _TENANT_ID_BYTES:
                log.found("damaged", f"A data key has a malformed key {key.hex()}.")
                continue
            tenant_id, number = int.from_bytes(place[:_TENANT_ID_BYTES]), int.from_bytes(place[_TENANT_ID_BYTES:])
            found.setdefault(tenant_id, set()).add(number)
            if not is_key(value):
                text = f"Data key {number} is unreadable, and so is everything encrypted with it. Restore it from the data-key file next to the backups."
                log.found("keys", text, tenant=f"#{tenant_id}")
        log.progress("data keys", len(page))
    for tenant_id in tenants_in_transit(store):
        found.pop(tenant_id, None)
    for tenant_id, numbers in found.items():
        row = store.get(store.meta, TENANT_ROW + tenant_id.to_bytes(_TENANT_ID_BYTES))
        if row is None:
            log.found("orphan", f"{len(numbers)} data keys do not belong to any tenant.", tenant=f"#{tenant_id}")
        elif _TENANT_SECRET not in numbers:
            log.found("keys", "The tenant has data keys, but its secret (number 0) is missing.", tenant=f"#{tenant_id}")
    log.figures.data_keys = sum(map(len, found.values()))
    return found
