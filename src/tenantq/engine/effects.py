"""The effects of a round: the rows, counters and journal entries that its operations change, in one batch."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tenantq.domain.config import QueueConfig
from tenantq.domain.message import Caller
from tenantq.engine import quota_checks, spread_rules
from tenantq.engine.level import Level
from tenantq.engine.queue_state import QueueState, TenantState, queue_suspended
from tenantq.engine.state import DeadLetterEvent, QuotaEvent, ShardState
from tenantq.engine.work_counters import HEALED
from tenantq.errors import Draining, TenantqError
from tenantq.journal.record import JournalEntry, entry_of
from tenantq.journal.signing import SigningKey
from tenantq.store.keys import be64
from tenantq.store.rows import (
    KeyRow,
    LeaseRow,
    MessageRow,
    pack_key,
    pack_lease,
    unpack_key,
    unpack_lease,
    unpack_message,
)

_BYTES_ALONE = 4 << 20
_BYTES_SHARED = 1 << 20


class MessageLocation(msgspec.Struct):
    """Where a stored message is."""

    state: Literal["waiting", "blocked", "in_flight"]
    message: MessageRow
    lease: LeaseRow | None
    visible_at: int
    group: bytes


class Effects:
    """Collects the changes of one round.

    Operations see each other's effects: point reads go through the overlays, and scans of the store run before
    anything of the same round changes the rows they scan.
    """

    __slots__ = (
        "_gone", "_keys", "_refusals", "answered", "batch", "bytes_left", "cleared", "dirty", "eased",
        "emptied", "entries", "events", "fresh", "heads", "imported", "members_gone", "moved_bytes", "new_members",
        "now", "overlay", "polled", "results_ready", "seq", "shared", "signing_key", "skip", "state", "store",
        "tenants_with_adds", "wall",
    )  # fmt: skip

    def __init__(self, state: ShardState, seq: int, *, shared: bool = False) -> None:
        self.state = state
        self.shared = shared  # other tenants wait for this round to end, or may soon
        self.bytes_left = _BYTES_SHARED if shared else _BYTES_ALONE  # of bodies that polls may get
        self.moved_bytes = 0  # of bodies added, moved between queues or discarded
        self.store = state.store
        self.seq = seq  # of the round's journal record
        self.now = state.shard_clock.now_ms()
        self.wall = state.shard_clock.wall_offset_ms()
        self.signing_key: SigningKey | None = None  # signs the round's record, if set
        self.batch = state.new_batch()
        self.entries: list[JournalEntry] = []
        self.answered: list[Any] = []  # operations whose callers get their answer after the sync
        self.events: list[DeadLetterEvent | QuotaEvent] = []  # for the listeners, after the sync
        self.results_ready: list[tuple[QueueState, bytes]] = []  # messages whose result waiters wake after the sync
        self.dirty: dict[QueueState, None] = {}  # queues whose counters changed
        self.tenants_with_adds: dict[TenantState, None] = {}  # tenants to which messages were added
        self.eased: dict[TenantState, None] = {}  # tenants that lost a queue, and its leases with it
        self.cleared: set[bytes] = set()  # prefixes of queues deleted by range in this round
        self.emptied: list[bytes] = []  # prefixes whose space can be reclaimed
        self.skip: set[bytes] = set()  # vi keys deleted in this round, which scans of the store still see
        self.fresh: dict[Level, bytes] = {}  # the first row put into a level in this round, which scans do not see yet
        self.overlay: dict[bytes, bytes | None] = {}  # lease rows as changed in this round
        self.polled: dict[Any, tuple[int, int]] = {}  # polls, with the messages and bytes that earlier rounds gave them
        self.heads: dict[bytes, bytes | None] = {}  # group heads as changed in this round
        self.new_members: dict[bytes, dict[bytes, tuple[int, int, bool]]] = {}  # priority, visible_at, delivered before
        self.members_gone: set[bytes] = set()
        self.imported: set[bytes] = set()  # keys of messages imported in this round, which the store does not have yet
        self._keys: dict[bytes, KeyRow | None] = {}
        self._gone: set[bytes] = set()
        self._refusals: dict[tuple[str, ...], JournalEntry] = {}

    # ---- journal ----

    def log(self, op: str, queue: QueueState, caller: Caller, **columns: Any) -> None:
        """Add a journal entry about a queue."""
        self.entries.append(
            JournalEntry(
                op, queue.tenant.name, queue.name, caller.principal, caller.remote, caller.request_id,
                user_agent=caller.user_agent, **columns,
            )
        )  # fmt: skip

    def log_tenant(self, op: str, tenant: TenantState, caller: Caller, details: str = "") -> None:
        """Add a journal entry about a tenant."""
        self.entries.append(entry_of(op, tenant.name, caller, details))

    def report_quotas(self, tenant: TenantState, used_by_others: Mapping[str, int] = quota_checks.NOTHING_USED) -> bool:
        """Journal each quota that reached its soft limit or its limit, once. Return whether any did.

        ``used_by_others`` is what the tenant's parts on other shards use.
        """
        exceeded = quota_checks.newly_exceeded(tenant, self.now + self.wall, used_by_others)
        for name, level, used, limit in exceeded:
            op = "quota_critical" if level == "critical" else "quota_warning"
            self.log_tenant(op, tenant, self.state.system, f"{name}: {used} of {limit}")
            self.events.append(QuotaEvent(tenant.name, name, level, used, limit))
        return bool(exceeded)

    def log_refusal(self, op: str, tenant: TenantState, caller: Caller, error: TenantqError, details: str = "") -> None:
        """Add a journal entry about an operation refused as a whole. Equal refusals of one round share an entry with a count."""
        tenant.counters.count_refusal(error)
        name = tenant.name or (error.tenant if error.tenant in self.state.catalog.tenants else None) or ""
        known = (op, name, error.queue or "", caller.principal, caller.remote)
        entry = self._refusals.get((*known, error.code, details))
        if entry is not None:
            entry.count += 1
            return
        entry = JournalEntry(
            *known, caller.request_id, outcome="refused", error_code=error.code, details=details,
            user_agent=caller.user_agent,
        )  # fmt: skip
        self._refusals[*known, error.code, details] = entry
        self.entries.append(entry)

    # ---- queues ----

    def queue_for_write(self, tenant: TenantState, name: str, caller: Caller) -> QueueState:
        """Return a queue that accepts messages, creating it if the tenant allows."""
        if tenant.status == "suspended":
            raise tenant.suspended(name)
        queue = tenant.queues.get(name)
        if queue is None:
            if not tenant.config.create_queues:
                self.state.catalog.queue(tenant, name)
            return self.create_queue(tenant, name, tenant.config.defaults, caller)
        queue.check_undamaged()
        if queue.suspension is not None:
            raise queue_suspended(queue)
        if queue.status == "draining":
            raise Draining(tenant=tenant.name, queue=name)
        return queue

    def create_queue(self, tenant: TenantState, name: str, config: QueueConfig, caller: Caller) -> QueueState:
        """Create a queue in this round. Queues of the system are exempt from the quota."""
        system_made = caller is self.state.system
        if tenant.part is not None and not system_made:
            self.state.catalog.check_queue_here(tenant, name)
            spread_rules.check_queue(tenant, name, config.dead_letter)
        allowed = tenant.queues_max
        if allowed is not None and tenant.usage.queues >= allowed and not system_made:
            raise quota_checks.exceeded(tenant, "queues", allowed, tenant.usage.queues, self.now + self.wall)
        queue = self.state.catalog.create_queue(self.batch, tenant, name, config, system_made=system_made)
        queue.has_lane = name in self.state.lanes
        self.dirty[queue] = None
        early = self.state.early_polls.pop(tenant, ())
        queue.demands.extend(poll for poll in early if poll.queue_name == name)
        if len(early) > len(queue.demands):
            self.state.early_polls[tenant] = deque(poll for poll in early if poll.queue_name != name and not poll.done)
        self.log("create_queue", queue, caller)
        return queue

    def touch(self, queue: QueueState) -> None:
        """Mark a queue whose counters changed."""
        self.dirty[queue] = None

    def heal(self, queue: QueueState, id: bytes, what: str) -> None:
        """Count and journal an inconsistent row that was repaired."""
        queue.work.totals[HEALED] += 1
        queue.suspect = True
        self.dirty[queue] = None
        self.log("heal", queue, self.state.system, ids=id, outcome="healed", details=what)

    # ---- leases ----

    def lease(self, queue: QueueState, id: bytes) -> LeaseRow | None:
        """Return the lease row of a message as this round sees it."""
        key = queue.prefix + id
        if key in self.overlay:
            value = self.overlay[key]
        elif queue.prefix in self.cleared:
            return None
        else:
            value = self.state.leases.rows.get(key) or self.store.get(self.store.le, key)
        return unpack_lease(value) if value is not None else None

    def leases(self, queue: QueueState, ids: list[bytes]) -> list[LeaseRow | None]:
        """Return the lease rows of many messages."""
        prefix = queue.prefix
        overlay = self.overlay
        keys = [prefix + id for id in ids]
        if prefix in self.cleared:
            values = [overlay.get(key) for key in keys]
        else:
            cached = self.state.leases.rows
            values = [cached.get(key) for key in keys]
            if None in values:
                values = self.store.get_many(self.store.le, keys)
            if overlay:
                values = [overlay.get(key, value) for key, value in zip(keys, values, strict=True)]
        return [unpack_lease(value) if value is not None else None for value in values]

    def forget(self, keys: list[bytes]) -> None:
        """Hide messages and their leases from later operations of this round."""
        self.overlay.update(dict.fromkeys(keys))
        self._gone.update(keys)

    def put_lease(self, queue: QueueState, id: bytes, row: LeaseRow) -> None:
        key = queue.prefix + id
        value = pack_lease(row)
        self.overlay[key] = value
        self.batch.put(key, value, self.store.le.handle)

    def drop_lease(self, queue: QueueState, id: bytes) -> None:
        """Delete a lease row."""
        key = queue.prefix + id
        self.overlay[key] = None
        self.batch.delete(key, self.store.le.handle)

    def end_lease(self, queue: QueueState, id: bytes, row: LeaseRow) -> None:
        """End a lease: delete its deadline row. The caller handles the lease row."""
        self.batch.delete(queue.prefix + be64(row.deadline) + id, self.store.li.handle)
        queue.in_flight -= 1

    # ---- idempotency keys ----

    def key(self, queue: QueueState, hashed: bytes) -> KeyRow | None:
        """Return the row of an idempotency key as this round sees it."""
        key = queue.prefix + hashed
        if key not in self._keys:
            value = self.store.get(self.store.ik, key) if queue.prefix not in self.cleared else None
            self._keys[key] = unpack_key(value) if value is not None else None
        return self._keys[key]

    def put_key(self, queue: QueueState, hashed: bytes, row: KeyRow) -> None:
        """Store an idempotency key."""
        self._keys[queue.prefix + hashed] = row
        self.batch.put(queue.prefix + hashed, pack_key(row), self.store.ik.handle)

    def drop_key(self, queue: QueueState, hashed: bytes) -> None:
        """Delete an idempotency key."""
        self._keys[queue.prefix + hashed] = None
        self.batch.delete(queue.prefix + hashed, self.store.ik.handle)

    # ---- waiting rows ----

    def insert_waiting(
        self, queue: QueueState, id: bytes, priority: int, visible_at: int, *, delivered_before: bool
    ) -> None:
        """Add a message to the delivery order."""
        suffix = be64(visible_at) + id
        level = queue.level(priority)
        if level.insert(suffix, visible_at, self.now):
            queue.ready += 1
        self.fresh[level] = min(suffix, self.fresh.get(level, suffix))
        self.batch.put(level.prefix + suffix, b"\x01" if delivered_before else b"", self.store.vi.handle)
        self.dirty[queue] = None

    def remove_waiting(self, queue: QueueState, id: bytes, priority: int, visible_at: int) -> None:
        """Remove a message from the delivery order."""
        suffix = be64(visible_at) + id
        level = queue.level(priority)
        if level.remove(suffix):
            queue.ready -= 1
        key = level.prefix + suffix
        self.batch.delete(key, self.store.vi.handle)
        self.skip.add(key)
        self.dirty[queue] = None

    # ---- whole messages ----

    def group_head(self, queue: QueueState, group: bytes) -> bytes | None:
        """Return the message at the head of a group, or None if the group is empty."""
        key = queue.prefix + group
        if key in self.heads:
            return self.heads[key]
        if queue.prefix in self.cleared:
            return None
        return self.store.get(self.store.gr, key)

    def locate(self, queue: QueueState, id: bytes) -> MessageLocation | None:
        """Return where a message is, as this round sees it, or None if it is not in the queue."""
        key = queue.prefix + id
        if key in self._gone or queue.prefix in self.cleared:
            return None
        value = self.store.get(self.store.m, key)
        if value is None:
            return None
        message = unpack_message(value)
        lease = self.lease(queue, id)
        group = queue.group_digest(message.group)
        if lease is not None and lease.token:
            return MessageLocation("in_flight", message, lease, lease.visible_at, group)
        visible_at = lease.visible_at if lease is not None else message.visible_at
        if group and self.group_head(queue, group) != id:
            return MessageLocation("blocked", message, lease, visible_at, group)
        return MessageLocation("waiting", message, lease, visible_at, group)

    def forget_message(self, queue: QueueState, id: bytes, size: int) -> None:
        """Delete a message's body row and uncount its bytes."""
        key = queue.prefix + id
        self.batch.delete(key, self.store.m.handle)
        self._gone.add(key)
        queue.bytes -= size
        self.dirty[queue] = None
