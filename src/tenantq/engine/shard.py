"""A shard: what producers and consumers can ask of it. Everything that changes goes through the rounds of its loop."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import (
    LOCAL,
    Added,
    Caller,
    Delivery,
    Facts,
    NewMessage,
    Outcome,
    Page,
    QueueStats,
    Result,
    check_batch,
    check_caller,
    check_int,
    check_message,
    check_result,
    check_text,
    is_plain,
)
from tenantq.domain.names import check_queue_name
from tenantq.engine import reads
from tenantq.engine.administration import Administration, check_reason, check_truth
from tenantq.engine.operation import FleetPoll, Operation, Poll
from tenantq.engine.ops.add import Add
from tenantq.engine.ops.lifecycle import Purge
from tenantq.engine.ops.redrive import RedriveFilter, RedriveTask, check_filter
from tenantq.engine.ops.settle import Ack, Extend, Nack, Release, Remove
from tenantq.engine.queue_snapshots import Snapshots
from tenantq.engine.round_loop import let_go
from tenantq.engine.state import DeadLetterEvent, QuotaEvent
from tenantq.errors import Invalid, TenantqError, TooLarge
from tenantq.runtime.randomness import id_bytes
from tenantq.store.rows import pack_extras

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tenantq.engine.queue_snapshots import SnapshotFacts
    from tenantq.engine.queue_state import QueueState
    from tenantq.journal.record import JournalRow


def check_poll(queue: str, max: int, wait_ms: int, lease_ms: int | None) -> None:
    """Raise Invalid unless these can be asked of a poll."""
    check_queue_name(queue)
    check_int("max", max, 1, limits.BATCH_MESSAGES_MAX)
    check_int("wait_ms", wait_ms, 0, limits.WAIT_MS_MAX)
    if lease_ms is not None:
        check_int("lease_ms", lease_ms, 1, limits.LEASE_MS_MAX)


def check_results(receipts: Sequence[object], results: Sequence[Result | None] | None) -> None:
    """Raise Invalid unless there is a well-formed result, or None, for each receipt; no results at all are fine."""
    if results is None:
        return
    check_batch("results", results)
    if len(results) != len(receipts):
        raise Invalid(f"results: {len(results)} for {len(receipts)} receipts; give one for each, or None")
    for result in results:
        if result is not None:
            check_result(result)


def _checked(
    messages: Sequence[NewMessage | TenantqError],
) -> tuple[list[tuple[NewMessage, bytes] | TenantqError], int, int | None, bool]:
    """Return messages with their packed extras, or what is wrong with them, and what holds for the batch.

    That is: the bytes of all; if all are plain, their priority; and whether all are sealed.
    """
    checked: list[tuple[NewMessage, bytes] | TenantqError] = []
    size = 0
    plain = True
    kinds = [message.sealed for message in messages if type(message) is NewMessage]
    sealed = kinds.count(True)
    priority: int | None = None
    for message in messages:
        if not isinstance(message, TenantqError) and is_plain(message):
            size += len(message.body)
            checked.append((message, b""))
            if message.priority != priority:
                plain = plain and priority is None
                priority = message.priority
            continue
        plain = False
        if isinstance(message, TenantqError):
            checked.append(message)
            continue
        try:
            check_message(message)
        except TenantqError as error:
            checked.append(error)
            continue
        size += len(message.body)
        # Packed at once: the caller may change its own mapping while the batch stands in line.
        checked.append((message, pack_extras(message.group, message.attributes, message.sealed_attributes)))
    whole = sealed == len(kinds)
    return checked, size - sealed * limits.SEAL_BYTES, priority if plain and (whole or not sealed) else None, whole


def _sealed_plain(
    messages: Sequence[NewMessage | TenantqError],
) -> tuple[list[tuple[NewMessage, bytes] | TenantqError], int, int | None, bool]:
    """Return the same of sealed messages that are known to be plain and of one priority."""
    checked = [(message, b"") for message in messages if isinstance(message, NewMessage)]
    size = sum([len(message.body) for message, _ in checked]) - len(checked) * limits.SEAL_BYTES
    return [*checked], size, checked[0][0].priority, True


class Shard(Administration):
    """The engine of one data directory, used from one event loop.

    Open with ``async with Shard(path) as shard``. Every method that changes something returns after the sync that
    makes it durable (with ``durability="os"``: after the write). Times are milliseconds.
    """

    # ---- producing ----

    async def add(
        self,
        tenant: str,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        caller: Caller = LOCAL,
        *,
        batch_key: str | None = None,
        batch_digests: tuple[bytes, ...] = (),
        sealed_plain: bool = False,
    ) -> list[Added]:
        """Add messages to a queue, making it where the tenant allows; one reply per message, in order.

        An error in place of a message, from whoever read it, is answered in its place. The same batch again under the
        same ``batch_key`` adds nothing again; it costs less than a key for every message. Of sealed messages ``batch_digests``
        says what stands for the batch, and what else may have stood for it; with ``sealed_plain`` all of them were found to be plain
        and of one priority before they were sealed, and are not looked at again.
        """
        if batch_key is not None:
            check_text("key", batch_key, limits.KEY_CHARS_MAX)
        check_queue_name(queue)
        check_batch("messages", messages)
        checked, size, priority, sealed = _sealed_plain(messages) if sealed_plain else _checked(messages)
        if size > limits.BATCH_BYTES_MAX:
            raise TooLarge(f"messages: {size} bytes in one batch, the limit is {limits.BATCH_BYTES_MAX}")
        self._check_open()
        self._space.check()
        operation = Add(
            self.core.catalog.tenant(tenant), caller, queue, checked, batch_key, priority, sealed=sealed,
            batch_digests=batch_digests,
        )  # fmt: skip
        added: list[Added] = await self._submit(operation)
        return added

    def new_ids(self, count: int) -> list[bytes]:
        """Hand out ids for messages that are sealed before they are added. Add them before anything else is waited for."""
        self._check_open()
        return self.core.ids.take(self.core.shard_clock.now_ms(), count)

    # ---- consuming ----

    async def poll(
        self,
        tenant: str,
        queue: str,
        *,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        whole_groups: bool = False,
        caller: Caller = LOCAL,
    ) -> list[Delivery]:
        """Lease up to ``max`` ready messages; with ``wait_ms`` wait for the first. ``lease_ms`` None: the queue's.

        With ``whole_groups`` several of one group may be among them, in order; what is behind those waits until they are settled.
        """
        check_poll(queue, max, wait_ms, lease_ms)
        check_truth("whole_groups", whole_groups)
        poll = Poll(self.core.catalog.tenant(tenant), caller, queue, max, wait_ms, lease_ms)
        poll.whole_groups = whole_groups
        return await self._leased(poll)

    async def fleet_poll(
        self,
        queue: str,
        *,
        tenants: Collection[str] | None = None,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        caller: Caller = LOCAL,
    ) -> list[Delivery]:
        """Lease messages of one queue name in many tenants (None: all), in weighted fair turns."""
        check_poll(queue, max, wait_ms, lease_ms)
        allowed = None
        if tenants is not None:
            if not isinstance(tenants, list | tuple | set | frozenset):
                raise Invalid(f"tenants: must be a list of names, not {type(tenants).__name__}")
            allowed = frozenset(self.core.catalog.tenant(name).id for name in tenants)
            if len(allowed) > limits.FLEET_TENANTS_MAX:
                raise Invalid(f"tenants: {len(allowed)} named, allowed are {limits.FLEET_TENANTS_MAX}")
        return await self._leased(FleetPoll(self._system, caller, queue, allowed, max, wait_ms, lease_ms))

    async def _leased(self, poll: Poll) -> list[Delivery]:
        """Return what a poll gets. Whoever is cancelled in the very turn in which it was answered has it given back, too."""
        try:
            got: list[Delivery] = await self._submit(poll)
        except asyncio.CancelledError:
            if poll.future is not None and not poll.future.cancelled():
                self._give_back(poll)
            raise
        return got

    async def ack(
        self,
        tenant: str,
        queue: str,
        receipts: Sequence[str],
        *,
        results: Sequence[Result | None] | None = None,
        caller: Caller = LOCAL,
    ) -> list[Outcome]:
        """Finish leased messages, with a result each or none."""
        self._check_receipts(queue, receipts)
        check_results(receipts, results)
        return await self._settle(Ack(self.core.catalog.tenant(tenant), caller, queue, receipts, results))

    async def nack(
        self,
        tenant: str,
        queue: str,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        any_receipt: bool = False,
        caller: Caller = LOCAL,
    ) -> list[Outcome]:
        """Give failed messages back, hidden for ``delay_ms`` or the queue's backoff.

        With ``any_receipt`` an earlier receipt of a message that is leased counts too.
        """
        self._check_receipts(queue, receipts)
        if delay_ms is not None:
            check_int("delay_ms", delay_ms, 0, limits.DELAY_MS_MAX)
        check_reason(reason)
        owner = self.core.catalog.tenant(tenant)
        return await self._settle(Nack(owner, caller, queue, receipts, delay_ms, reason, any_receipt=any_receipt))

    async def release(self, tenant: str, queue: str, receipts: Sequence[str], caller: Caller = LOCAL) -> list[Outcome]:
        """Give messages back at once, in their old place, without using up an attempt."""
        self._check_receipts(queue, receipts)
        return await self._settle(Release(self.core.catalog.tenant(tenant), caller, queue, receipts))

    async def extend(
        self,
        tenant: str,
        queue: str,
        receipts: Sequence[str],
        *,
        lease_ms: int,
        any_receipt: bool = False,
        held_ms_max: int | None = None,
        caller: Caller = LOCAL,
    ) -> list[Outcome]:
        """Set leases to end ``lease_ms`` from now; Invalid in place of one that would then last longer than ``held_ms_max``.

        With ``any_receipt`` an earlier receipt of a message that is leased counts too.
        """
        self._check_receipts(queue, receipts)
        check_int("lease_ms", lease_ms, 1, limits.LEASE_MS_MAX)
        operation = Extend(
            self.core.catalog.tenant(tenant), caller, queue, receipts, lease_ms, any_receipt=any_receipt,
            held_ms_max=held_ms_max,
        )  # fmt: skip
        return await self._settle(operation)

    async def remove(
        self, tenant: str, queue: str, ids: Sequence[str | bytes], caller: Caller = LOCAL
    ) -> list[Outcome]:
        """Delete messages by id, whatever their state."""
        self._check_receipts(queue, ids, "ids")
        parsed: list[bytes | TenantqError] = []
        for id in ids:
            try:
                parsed.append(id_bytes(id))
            except Invalid as error:
                parsed.append(error)
        return await self._settle(Remove(self.core.catalog.tenant(tenant), caller, queue, parsed))

    @staticmethod
    def _check_receipts(queue: str, receipts: Sequence[object], field: str = "receipts") -> None:
        check_queue_name(queue)
        check_batch(field, receipts)

    async def _settle(self, operation: Operation) -> list[Outcome]:
        outcomes: list[Outcome] = await self._submit(operation)
        return outcomes

    # ---- looking ----

    def stats(self, tenant: str, queue: str) -> QueueStats:
        """Return a queue's figures."""
        return reads.stats(self.core, self._find(tenant, queue))

    async def get(self, tenant: str, queue: str, id: str | bytes) -> Facts:
        """Return everything known of a message that is still stored."""
        await self._all_synced()
        return reads.get(self.core, self._find(tenant, queue), id_bytes(id))

    async def peek(self, tenant: str, queue: str, *, limit: int = 10, cursor: str | None = None) -> Page:
        """Return waiting messages in order of delivery, without leasing them."""
        check_int("limit", limit, 1, limits.PEEK_MAX)
        await self._all_synced()
        return reads.peek(self.core, self._find(tenant, queue), limit, cursor)

    async def result(self, tenant: str, queue: str, id: str | bytes, *, wait_ms: int = 0) -> Result:
        """Return a message's result; while it is pending, wait for it up to ``wait_ms``."""
        check_int("wait_ms", wait_ms, 0, limits.WAIT_MS_MAX)
        found = self._find(tenant, queue)
        raw = id_bytes(id)
        await self._all_synced()
        result = reads.result(self.core, found, raw)
        if result.status != "pending" or wait_ms == 0:
            return result
        future: asyncio.Future[None] = self._loop.create_future()
        found.result_waiters.setdefault(raw, []).append(future)
        timer = self._clock.call_later(wait_ms, lambda: let_go(future))
        try:
            await future
        finally:
            timer.cancel()
            waiting = found.result_waiters.get(raw)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del found.result_waiters[raw]
        await self._all_synced()
        return reads.result(self.core, found, raw)

    async def trace(self, tenant: str, queue: str, id: str | bytes) -> list[JournalRow]:
        """Return the journal's rows about one message, oldest first."""
        first = max(self._journal_first, self._find(tenant, queue).tenant.since)
        await self._all_synced()
        return await reads.trace(self.core, tenant, queue, id_bytes(id), first, self._seq)

    # ---- snapshots ----

    async def open_snapshot(
        self, tenant: str, queue: str, *, keep_ms: int = 60_000, part_messages: int | None = None
    ) -> SnapshotFacts:
        """Keep everything that a queue holds at this moment, to be read in pages; with ``part_messages`` also divide it."""
        check_int("keep_ms", keep_ms, 1, limits.SNAPSHOT_KEEP_MS_MAX)
        if part_messages is not None:
            check_int("part_messages", part_messages, 1, limits.SNAPSHOT_PART_MESSAGES_MAX)
        found = self._find(tenant, queue)
        taken = self._snapshots.open(found, keep_ms)
        await self._all_synced()
        return taken if part_messages is None else await self._snapshots.divided(found, taken, part_messages)

    def read_snapshot(
        self, tenant: str, queue: str, id: str, *, start: str | None = None, end: str | None = None, limit: int = 100
    ) -> Page:
        """Return messages of a snapshot by id, from ``start`` on and before ``end``; ``cursor`` is the next page's start."""
        check_int("limit", limit, 1, limits.PEEK_MAX)
        first = id_bytes(start) if start is not None else None
        last = id_bytes(end) if end is not None else None
        return self._snapshots.read(self._find(tenant, queue), id, first, last, limit)

    def close_snapshot(self, tenant: str, queue: str, id: str) -> None:
        """Let a snapshot go before its time."""
        self._snapshots.close(self._find(tenant, queue), id)

    @cached_property
    def _snapshots(self) -> Snapshots:
        snapshots = Snapshots(self.core)
        self.core.before_close.append(snapshots.close_all)
        return snapshots

    def _find(self, tenant: str, queue: str) -> QueueState:
        self._check_open()
        return self.core.catalog.queue(self.core.catalog.tenant(tenant), check_queue_name(queue))

    # ---- mending ----

    async def purge(self, tenant: str, name: str, *, reason: str = "", caller: Caller = LOCAL) -> int:
        """Empty a queue; return how many messages went."""
        check_reason(reason)
        check_queue_name(name)
        count: int = await self._submit(Purge(self.core.catalog.tenant(tenant), caller, name, reason))
        return count

    async def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        filter: RedriveFilter | None = None,
        rate: int | None = None,
        dry_run: bool = False,
        caller: Caller = LOCAL,
    ) -> RedriveTask:
        """Begin to send dead letters back where they came from.

        ``queue`` is the queue whose dead letters are meant, or a dead-letter queue itself. Raises Suspended where that
        queue, its dead-letter queue or the filter's source is; letters of other queues that are stay where they are.
        """
        if rate is not None:
            check_int("rate", rate, 1, 1_000_000)
        found = self._find(tenant, queue)
        check_caller(caller)
        check_truth("dry_run", dry_run)
        wanted = check_filter(filter if filter is not None else RedriveFilter())
        name_of = self.core.catalog.dead_letter_name
        letters = found.tenant.queues.get(name_of(found))
        takes_letters = any(name_of(one) == queue for one in found.tenant.queues.values())
        if letters is None or takes_letters:
            letters = found
        else:
            wanted = msgspec.structs.replace(wanted, source=queue)
        letters.check_takes()
        for name in (wanted.source, wanted.to):
            if name in found.tenant.queues:
                found.tenant.queues[name].check_takes()
        task = RedriveTask(self.core, letters, caller, wanted, rate, dry_run=dry_run)
        self._redrives = {one for one in self._redrives if one.state == "running"} | {task}
        task.start()
        return task

    async def finished(self, task: RedriveTask) -> None:
        """Wait until a redrive has ended and is durable."""
        if not isinstance(task, RedriveTask):
            raise Invalid(f"task: must be what redrive returned, not {type(task).__name__}")
        if task.state == "running":
            future: asyncio.Future[None] = self._loop.create_future()
            task.waiters.append(future)
            await future
        await self._all_synced()

    def on_dead_letter(self, listener: Callable[[DeadLetterEvent], None]) -> None:
        """Have ``listener`` called once for every message that becomes a dead letter, after it is durable."""
        self.core.listeners.append(lambda event: listener(event) if isinstance(event, DeadLetterEvent) else None)

    def on_quota(self, listener: Callable[[QuotaEvent], None]) -> None:
        """Have ``listener`` called once when a quota reaches its soft limit, and once when it is used up."""
        self.core.listeners.append(lambda event: listener(event) if isinstance(event, QuotaEvent) else None)
