"""Tenants and queues by name and id, kept in the meta family and cached here.

tenant/<id be32>      name, configuration, next queue id
queue/<P>             name, configuration, status
usage/<id be32>       messages added in the current hour and day
next_tenant_id        be32; ids are never reused
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.domain.names import dead_letter_name
from tenantq.engine import quota_checks
from tenantq.engine.fair_lines import TenantLine
from tenantq.engine.queue_state import Erasing, Hold, QueueState, Status, Suspension, TenantState, TenantStatus
from tenantq.errors import Invalid, NotFound, Unavailable, no_queue, no_tenant
from tenantq.store.interface import Batch, Store
from tenantq.store.keys import after, queue_prefix, split_prefix, tenant_prefix
from tenantq.store.row_pages import pages_of_items, rows_under
from tenantq.store.rows import unpack_counters

TENANT_ROW: Final = b"tenant/"
QUEUE_ROW: Final = b"queue/"
USAGE_ROW: Final = b"usage/"
NEXT_TENANT_ID: Final = b"next_tenant_id"
_PAGE = 10_000
_CONFIGS_MAX = 1_000


class TenantRow(msgspec.Struct, frozen=True):
    """A stored tenant."""

    name: str
    config: TenantConfig
    next_queue_id: int
    status: TenantStatus = "active"
    version: int = 1
    since: int = 0  # the journal record that created it; earlier records under this name are about another tenant
    hold: Hold | None = None
    suspension: Suspension | None = None
    erasing: Erasing | None = None
    next_data_key: int = 0


class QueueRow(msgspec.Struct, frozen=True):
    """A stored queue."""

    name: str
    config: QueueConfig
    status: Status
    doomed: bool = False  # deleted by force: leases are not waited for
    system_made: bool = False
    suspension: Suspension | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode


class Catalog:
    """All tenants of the shard."""

    def __init__(self, store: Store, first_tenant_id: int = 1) -> None:
        self._store = store
        self.tenants: dict[str, TenantState] = {}
        self._by_id: dict[int, TenantState] = {}
        self._first_tenant_id = self._next_tenant_id = first_tenant_id
        self._configs: dict[bytes, TenantConfig] = {}  # tenants of one plan share one object

    # ---- reading ----

    def tenant(self, name: str) -> TenantState:
        """Return a tenant. Raises NotFound, or Invalid if the name is not text."""
        if type(name) is not str:
            raise Invalid(f"tenant: a name is text, not {type(name).__name__}")
        tenant = self.tenants.get(name)
        if tenant is None:
            raise no_tenant(name)
        return tenant

    def tenant_by_id(self, id: int) -> TenantState:
        """Return a tenant by its id. Raises NotFound."""
        tenant = self._by_id.get(id)
        if tenant is None:
            raise NotFound("no such tenant")
        return tenant

    def queue(self, tenant: TenantState, name: str) -> QueueState:
        """Return a queue. Raises NotFound."""
        queue = tenant.queues.get(name)
        if queue is None:
            raise no_queue(name, tenant.name)
        return queue

    def queues(self) -> Iterator[QueueState]:
        """Iterate over every queue of every tenant."""
        for tenant in self.tenants.values():
            yield from tenant.queues.values()

    @staticmethod
    def dead_letter_name(queue: QueueState) -> str:
        """Return the name of the queue that takes this queue's dead letters."""
        return queue.config.dead_letter or dead_letter_name(queue.name)

    def shared(self, config: TenantConfig) -> TenantConfig:
        """Return an equal configuration that other tenants share, if any does."""
        if len(self._configs) >= _CONFIGS_MAX:
            self._configs.clear()
        return self._configs.setdefault(_encode(config), config)

    # ---- changing, into a round's batch ----

    def create_tenant(self, batch: Batch, name: str, config: TenantConfig, seq: int) -> TenantState:
        """Create a tenant with a new id, in the round of journal record ``seq``."""
        if self._next_tenant_id > limits.TENANT_ID_MAX:
            raise Unavailable("all tenant ids are used up")
        tenant = TenantState(self._next_tenant_id, name, self.shared(config), TenantLine(config.weight))
        tenant.since = seq
        self._next_tenant_id += 1
        batch.put(NEXT_TENANT_ID, self._next_tenant_id.to_bytes(5), self._store.meta.handle)
        self.save_tenant(batch, tenant)
        self.tenants[name] = self._by_id[tenant.id] = tenant
        return tenant

    def save_tenant(self, batch: Batch, tenant: TenantState) -> None:
        """Write a tenant's row."""
        row = TenantRow(
            tenant.name, tenant.config, tenant.next_queue_id, tenant.status, tenant.version, tenant.since, tenant.hold,
            tenant.suspension, tenant.erasing, tenant.next_data_key,
        )  # fmt: skip
        batch.put(TENANT_ROW + tenant_prefix(tenant.id), _encode(row), self._store.meta.handle)

    def save_usage(self, batch: Batch, tenant: TenantState) -> None:
        """Write the hourly and daily usage of a tenant."""
        batch.put(USAGE_ROW + tenant_prefix(tenant.id), tenant.usage.pack(), self._store.meta.handle)

    def drop_tenant(self, batch: Batch, tenant: TenantState) -> None:
        """Delete a tenant and its queues."""
        prefix = tenant_prefix(tenant.id)
        batch.delete(TENANT_ROW + prefix, self._store.meta.handle)
        batch.delete(USAGE_ROW + prefix, self._store.meta.handle)
        batch.delete_range(QUEUE_ROW + prefix, QUEUE_ROW + after(prefix), self._store.meta.handle)
        del self.tenants[tenant.name], self._by_id[tenant.id]

    def create_queue(
        self, batch: Batch, tenant: TenantState, name: str, config: QueueConfig, *, system_made: bool
    ) -> QueueState:
        """Create a queue with an id that is new in its tenant."""
        if tenant.next_queue_id > limits.QUEUE_ID_MAX:
            raise Unavailable("all queue ids of this tenant are used up", tenant=tenant.name)
        queue = QueueState(tenant, tenant.next_queue_id, name, config, "active")
        tenant.next_queue_id += 1
        tenant.queues[name] = queue
        queue.system_made = system_made
        tenant.usage.queues += not system_made
        self.save_tenant(batch, tenant)
        self.save_queue(batch, queue)
        return queue

    def save_queue(self, batch: Batch, queue: QueueState) -> None:
        """Write a queue's row."""
        row = QueueRow(queue.name, queue.config, queue.status, queue.doomed, queue.system_made, queue.suspension)
        batch.put(QUEUE_ROW + queue.prefix, _encode(row), self._store.meta.handle)

    def drop_queue(self, batch: Batch, queue: QueueState) -> None:
        """Delete a queue."""
        batch.delete(QUEUE_ROW + queue.prefix, self._store.meta.handle)
        del queue.tenant.queues[queue.name]
        queue.tenant.usage.queues -= not queue.system_made

    # ---- loading ----

    def load(self) -> None:
        """Load everything from the store, in time that depends on the number of queues, not of messages."""
        store = self._store
        raw = store.get(store.meta, NEXT_TENANT_ID)
        self._next_tenant_id = int.from_bytes(raw) if raw else self._first_tenant_id
        by_id = self._by_id
        for key, value in self._rows(TENANT_ROW):
            row = _decode_tenant(value)
            id = int.from_bytes(key[len(TENANT_ROW) :])
            tenant = TenantState(
                id, row.name, self.shared(row.config), TenantLine(row.config.weight), row.next_queue_id
            )
            tenant.status, tenant.version, tenant.since, tenant.hold = row.status, row.version, row.since, row.hold
            tenant.suspension, tenant.erasing, tenant.next_data_key = row.suspension, row.erasing, row.next_data_key
            by_id[id] = self.tenants[row.name] = tenant
        for key, value in self._rows(USAGE_ROW):
            owner = by_id.get(int.from_bytes(key[len(USAGE_ROW) :]))
            if owner is not None:
                owner.usage.load(value)
        by_prefix: dict[bytes, QueueState] = {}
        for key, value in self._rows(QUEUE_ROW):
            tenant_id, queue_id = split_prefix(key[len(QUEUE_ROW) :])
            stored = _decode_queue(value)
            tenant = by_id[tenant_id]
            queue = QueueState(tenant, queue_id, stored.name, stored.config, stored.status)
            queue.doomed, queue.system_made = stored.doomed, stored.system_made
            queue.suspension = stored.suspension
            tenant.usage.queues += not queue.system_made
            by_prefix[queue_prefix(tenant_id, queue_id)] = tenant.queues[stored.name] = queue
        for page in pages_of_items(store, store.qc, b"", b"\xff" * 9, _PAGE):
            for key, value in page:
                if key in by_prefix:
                    by_prefix[key].load(unpack_counters(value))
                    by_prefix[key].count_usage()
        for tenant in by_id.values():
            quota_checks.mark_reported(tenant)

    @property
    def is_new(self) -> bool:
        """Whether no tenant was ever created."""
        return self._next_tenant_id == self._first_tenant_id

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return rows_under(self._store, self._store.meta, prefix, _PAGE)
