"""Tenants and queues by name and id, kept in the meta family and cached here.

tenant/<id be32>      name, configuration, next queue id
queue/<P>             name, configuration, status
usage/<id be32>       messages added in the current hour and day
next_tenant_id        be32; ids are never reused
part/<id be32>        the part of a tenant whose queues are spread over several shards
moved/<name>          a tenant that left this shard: where it went, and its row until its other rows are deleted
arriving/<id be32>    a tenant whose rows are being copied to this shard

A group of queues of such a tenant moves like a tenant; its name is ``tenant/group``, and its key has the group at the end.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.domain.names import dead_letter_name
from tenantq.domain.placement import split_unit, unit_name
from tenantq.engine import quota_checks
from tenantq.engine.fair_lines import TenantLine
from tenantq.engine.part_state import BLOCK_IDS, PartState
from tenantq.engine.queue_state import QueueState, Status, TenantState, TenantStatus
from tenantq.engine.restrictions import Erasing, Hold, Suspension
from tenantq.engine.work_counters import TenantSums
from tenantq.errors import Invalid, NotFound, TenantMoved, TenantqError, Unavailable, no_queue, no_tenant
from tenantq.store.interface import Batch, StoreReader
from tenantq.store.keys import after, split_prefix, tenant_prefix
from tenantq.store.row_pages import pages_of_items, rows_under
from tenantq.store.rows import unpack_counters

TENANT_ROW: Final = b"tenant/"
QUEUE_ROW: Final = b"queue/"
USAGE_ROW: Final = b"usage/"
NEXT_TENANT_ID: Final = b"next_tenant_id"
PART_ROW: Final = b"part/"
MOVED_ROW: Final = b"moved/"
ARRIVING_ROW: Final = b"arriving/"
_PAGE = 10_000
_CONFIGS_MAX = 1_000
_ID_BYTES = 4


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
    earlier: tuple[tuple[int, int], ...] = ()  # shards that it lived on before, each with ``since`` there
    queue_blocks: int = 0  # ranges of queue ids that were given to parts on other shards


class MovedRow(msgspec.Struct, frozen=True):
    """A tenant, or a group of its queues, that left this shard. While it has ``row`` it may come back, and its rows exist."""

    id: int
    target: int  # the shard that it went to
    row: bytes = b""  # its tenant row, or the GroupRow
    block: int = 0  # of a part that was deleted: new parts have a higher block of queue ids


class ArrivingRow(msgspec.Struct, frozen=True):
    """A tenant, or a group of its queues, whose rows are being copied to this shard."""

    name: str
    source: int  # the shard that has it
    row: bytes = b""  # its tenant row or GroupRow, once all other rows are here
    key_ids: tuple[str, ...] = ()  # its API keys, copied with the row


class GroupRow(msgspec.Struct, frozen=True):
    """A group of queues on its way to another shard: their prefixes, and the rights that cover what they use."""

    prefixes: tuple[bytes, ...]
    rights: dict[str, int]


class QueueRow(msgspec.Struct, frozen=True):
    """A stored queue."""

    name: str
    config: QueueConfig
    status: Status
    doomed: bool = False  # deleted by force: leases are not waited for
    system_made: bool = False
    suspension: Suspension | None = None


_encode = msgspec.msgpack.Encoder().encode
decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode
_decode_moved = msgspec.msgpack.Decoder(MovedRow).decode
_decode_arriving = msgspec.msgpack.Decoder(ArrivingRow).decode


class Catalog:
    """All tenants of the shard."""

    def __init__(self, store: StoreReader, first_tenant_id: int = 1) -> None:
        self._store = store
        self.tenants: dict[str, TenantState] = {}
        self.tenants_by_id: dict[int, TenantState] = {}
        self._first_tenant_id = self._next_tenant_id = first_tenant_id
        self.gone = TenantSums()  # of tenants that were deleted or left since the start
        self._configs: dict[bytes, TenantConfig] = {}  # tenants of one plan share one object
        self.moved: dict[str, MovedRow] = {}
        self.arriving: dict[str, tuple[int, ArrivingRow]] = {}  # by name, with the id of the tenant
        # Whether the directory places a tenant, or a queue of a spread one, here; None if it does not say.
        self.placed_here: Callable[[str, str | None], bool | None] = lambda *_: None

    # ---- reading ----

    def tenant(self, name: str) -> TenantState:
        """Return a tenant. Raises NotFound, TenantMoved, or Invalid if the name is not text."""
        if type(name) is not str:
            raise Invalid(f"tenant: must be text, not {type(name).__name__}")
        tenant = self.tenants.get(name)
        if tenant is None:
            raise self.missing(name)
        return tenant

    def missing(self, name: str) -> TenantqError:
        """Return the error for a tenant that is not here: TenantMoved if it has left or is arriving, else NotFound."""
        has_left = name in self.moved and not self.placed_here(name, None)  # it may be about to be created again
        return TenantMoved(tenant=name) if has_left or self.is_in_transit(name) else no_tenant(name)

    def check_here(self, name: str) -> None:
        """Raise TenantMoved for a tenant that has left or is arriving."""
        if (self.moved or self.arriving) and name not in self.tenants and isinstance(self.missing(name), TenantMoved):
            raise self.missing(name)

    def is_in_transit(self, name: str) -> bool:
        """Return whether a tenant is on its way from or to this shard, so that no other tenant may take its name."""
        moved = self.moved.get(name)
        return (moved is not None and bool(moved.row)) or name in self.arriving

    def tenant_by_id(self, id: int) -> TenantState:
        """Return a tenant by its id. Raises NotFound."""
        tenant = self.tenants_by_id.get(id)
        if tenant is None:
            raise NotFound("no such tenant")
        return tenant

    def queue(self, tenant: TenantState, name: str) -> QueueState:
        """Return a queue. Raises NotFound."""
        queue = tenant.queues.get(name)
        if queue is None:
            self.check_queue_here(tenant, name)
            raise no_queue(name, tenant.name)
        return queue

    def check_queue_here(self, tenant: TenantState, name: str) -> None:
        """Raise TenantMoved if a queue that does not exist here belongs to another shard, or is on its way."""
        part = tenant.part
        if part is None or name in tenant.queues:
            return
        unit = unit_name(tenant.name, name)
        is_here = unit not in self.moved and unit not in self.arriving and not part.has_left
        if is_here:
            recorded = self.placed_here(tenant.name, name)
            is_here = part.places_here(tenant.name, name) if recorded is None else recorded
        if not is_here:
            raise TenantMoved(tenant=tenant.name, queue=name)

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
        if name in self.moved:
            self.put_moved(batch, name, None)
        if self._next_tenant_id > limits.TENANT_ID_MAX:
            raise Unavailable("all tenant ids are used up")
        tenant = TenantState(self._next_tenant_id, name, self.shared(config), TenantLine(config.weight))
        tenant.since = seq
        self._next_tenant_id += 1
        batch.put(NEXT_TENANT_ID, self._next_tenant_id.to_bytes(5), self._store.meta.handle)
        self.save_tenant(batch, tenant)
        self.tenants[name] = self.tenants_by_id[tenant.id] = tenant
        return tenant

    def save_tenant(self, batch: Batch, tenant: TenantState) -> None:
        """Write a tenant's row."""
        batch.put(TENANT_ROW + tenant_prefix(tenant.id), _encode(_row_of(tenant)), self._store.meta.handle)

    def put_moved(self, batch: Batch, name: str, row: MovedRow | None) -> None:
        """Note that a tenant has left this shard; None: it has not."""
        if row is not None:
            self.moved[name] = row
            batch.put(MOVED_ROW + name.encode(), _encode(row), self._store.meta.handle)
        elif self.moved.pop(name, None) is not None:
            batch.delete(MOVED_ROW + name.encode(), self._store.meta.handle)

    def put_arriving(self, batch: Batch, id: int, name: str, row: ArrivingRow | None) -> None:
        """Note that a tenant or a group of queues is being copied to this shard; None: no more."""
        key = ARRIVING_ROW + tenant_prefix(id) + split_unit(name)[1].encode()
        if row is not None:
            self.arriving[name] = id, row
            batch.put(key, _encode(row), self._store.meta.handle)
        elif self.arriving.pop(name, None) is not None:
            batch.delete(key, self._store.meta.handle)

    def take_out(self, batch: Batch, tenant: TenantState, target: int) -> MovedRow:
        """Stop serving a tenant that leaves for another shard. All its rows but its own stay."""
        moved = MovedRow(tenant.id, target, _encode(_row_of(tenant)))
        batch.delete(TENANT_ROW + tenant_prefix(tenant.id), self._store.meta.handle)
        self.put_moved(batch, tenant.name, moved)
        del self.tenants[tenant.name], self.tenants_by_id[tenant.id]
        self._keep_sums(tenant)
        return moved

    def save_usage(self, batch: Batch, tenant: TenantState) -> None:
        """Write the hourly and daily usage of a tenant."""
        batch.put(USAGE_ROW + tenant_prefix(tenant.id), tenant.usage.pack(), self._store.meta.handle)

    def drop_tenant(self, batch: Batch, tenant: TenantState) -> None:
        """Delete a tenant and its queues."""
        prefix = tenant_prefix(tenant.id)
        batch.delete(TENANT_ROW + prefix, self._store.meta.handle)
        batch.delete(USAGE_ROW + prefix, self._store.meta.handle)
        if tenant.part is not None:
            batch.delete(PART_ROW + prefix, self._store.meta.handle)
        batch.delete_range(QUEUE_ROW + prefix, QUEUE_ROW + after(prefix), self._store.meta.handle)
        for queue in tenant.queues.values():
            self._store.name_queue(queue.prefix, None)
        del self.tenants[tenant.name], self.tenants_by_id[tenant.id]
        self._keep_sums(tenant)

    def _keep_sums(self, tenant: TenantState) -> None:
        """Keep what a tenant has counted on this shard."""
        for work in (tenant.usage.dropped, *(queue.work for queue in tenant.queues.values())):
            self.gone.work.merge(work)
        if tenant.has_counters:
            self.gone.counters.merge(tenant.counters)

    def create_queue(
        self, batch: Batch, tenant: TenantState, name: str, config: QueueConfig, *, system_made: bool
    ) -> QueueState:
        """Create a queue with an id that is new in its tenant."""
        is_last = bool(tenant.queue_blocks) and tenant.next_queue_id % BLOCK_IDS == BLOCK_IDS - 1
        if tenant.next_queue_id > limits.QUEUE_ID_MAX or is_last:
            raise Unavailable("all queue ids of this tenant are used up", tenant=tenant.name)
        queue = QueueState(tenant, tenant.next_queue_id, name, config, "active")
        tenant.next_queue_id += 1
        tenant.queues[name] = queue
        self._store.name_queue(queue.prefix, f"{tenant.name}:{name}")
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
        """Delete a queue. Its totals stay in those of its tenant."""
        batch.delete(QUEUE_ROW + queue.prefix, self._store.meta.handle)
        self._store.name_queue(queue.prefix, None)
        del queue.tenant.queues[queue.name]
        queue.tenant.usage.queues -= not queue.system_made
        queue.tenant.usage.dropped.merge(queue.work)
        self.save_usage(batch, queue.tenant)

    # ---- loading ----

    def load(self) -> None:
        """Load everything from the store, in time that depends on the number of queues, not of messages."""
        store = self._store
        raw = store.get(store.meta, NEXT_TENANT_ID)
        self._next_tenant_id = int.from_bytes(raw) if raw else self._first_tenant_id
        for key, value in self._rows(TENANT_ROW):
            self.add_tenant(int.from_bytes(key[len(TENANT_ROW) :]), decode_tenant(value))
        for key, value in self._rows(MOVED_ROW):
            self.moved[key[len(MOVED_ROW) :].decode()] = _decode_moved(value)
        for key, value in self._rows(ARRIVING_ROW):
            place, row = key[len(ARRIVING_ROW) :], _decode_arriving(value)
            self.arriving[row.name] = int.from_bytes(place[:_ID_BYTES]), row
        for key, value in self._rows(PART_ROW):
            if (owner := self.tenants_by_id.get(int.from_bytes(key[len(PART_ROW) :]))) is not None:
                owner.part = PartState.load(value)
        self.load_queues(b"")
        for tenant in self.tenants_by_id.values():
            quota_checks.restore_reported(tenant)

    def load_tenant(self, id: int, row: bytes) -> TenantState:
        """Load one tenant, whose other rows are in the store, and return it."""
        tenant = self.add_tenant(id, decode_tenant(row))
        self.load_queues(tenant_prefix(id))
        quota_checks.restore_reported(tenant)
        return tenant

    def add_tenant(self, id: int, row: TenantRow) -> TenantState:
        """Add a tenant without its queues, in memory only."""
        tenant = TenantState(id, row.name, self.shared(row.config), TenantLine(row.config.weight), row.next_queue_id)
        tenant.status, tenant.version, tenant.since, tenant.hold = row.status, row.version, row.since, row.hold
        tenant.suspension, tenant.erasing, tenant.next_data_key = row.suspension, row.erasing, row.next_data_key
        tenant.earlier, tenant.queue_blocks = row.earlier, row.queue_blocks
        self.tenants_by_id[id] = self.tenants[row.name] = tenant
        return tenant

    def load_queues(self, prefix: bytes, *, with_usage: bool = True) -> None:
        """Load the usage and the queues of all tenants, or of one. Rows of what left or arrives are passed over."""
        store, by_id = self._store, self.tenants_by_id
        for key, value in self._rows(USAGE_ROW + prefix) if with_usage else ():
            owner = by_id.get(int.from_bytes(key[len(USAGE_ROW) :]))
            if owner is not None:
                owner.usage.load(value)
        by_prefix: dict[bytes, QueueState] = {}
        for key, value in self._rows(QUEUE_ROW + prefix):
            tenant_id, queue_id = split_prefix(key[len(QUEUE_ROW) :])
            tenant = by_id.get(tenant_id)
            if tenant is None:
                continue
            stored = _decode_queue(value)
            if tenant.part is not None and self.is_in_transit(unit_name(tenant.name, stored.name)):
                continue
            queue = QueueState(tenant, queue_id, stored.name, stored.config, stored.status)
            queue.doomed, queue.system_made = stored.doomed, stored.system_made
            queue.suspension = stored.suspension
            tenant.usage.queues += not queue.system_made
            by_prefix[queue.prefix] = tenant.queues[stored.name] = queue
            store.name_queue(queue.prefix, f"{tenant.name}:{queue.name}")
        for page in pages_of_items(store, store.qc, prefix, after(prefix) if prefix else b"\xff" * 9, _PAGE):
            for key, value in page:
                if key in by_prefix:
                    by_prefix[key].load(unpack_counters(value))
                    by_prefix[key].count_usage()

    @property
    def is_new(self) -> bool:
        """Whether no tenant was ever created."""
        return self._next_tenant_id == self._first_tenant_id

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return rows_under(self._store, self._store.meta, prefix, _PAGE)


def tenants_in_transit(store: StoreReader) -> set[int]:
    """Return the ids of the tenants that have rows in a store without being served there."""
    leaving = {row.id for _, value in rows_under(store, store.meta, MOVED_ROW) if (row := _decode_moved(value)).row}
    return leaving | {
        int.from_bytes(key[len(ARRIVING_ROW) :][:_ID_BYTES]) for key, _ in rows_under(store, store.meta, ARRIVING_ROW)
    }


def _row_of(tenant: TenantState) -> TenantRow:
    return TenantRow(
        tenant.name, tenant.config, tenant.next_queue_id, tenant.status, tenant.version, tenant.since, tenant.hold,
        tenant.suspension, tenant.erasing, tenant.next_data_key, tenant.earlier, tenant.queue_blocks,
    )  # fmt: skip
