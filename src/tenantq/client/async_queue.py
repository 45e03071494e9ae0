"""A queue, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from types import NoneType
from typing import Any, Final, Literal
from urllib.parse import quote

from tenantq.client import values
from tenantq.client.async_message import AsyncMessage
from tenantq.client.batcher import ITEMS_MAX
from tenantq.client.connection_pool import ApiRequest
from tenantq.client.ordered_adds import OrderedAdds, raise_first
from tenantq.client.outgoing_message import OutgoingMessage, new_message, prepare_message, prepare_text
from tenantq.client.queue_calls import LeaseSettlement, QueueRegistry
from tenantq.client.result_watch import ResultWatch
from tenantq.client.session import ClientSession, api_request, query
from tenantq.client.values import Added, JobResult, Page, StoredMessage
from tenantq.domain import limits
from tenantq.domain.message import check_poll
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid, NotFound, TenantqError
from tenantq.wire import messages as wire
from tenantq.wire.lifecycle import DestroyRequest, SuspendRequest
from tenantq.wire.queues import DigestReply, PurgeReply, QueueReply, RedriveChoice, RedriveReply, RedriveRequest

_NO_OPTIONS: Final = (None, None, None, None)
DIGEST_MS_MAX: Final = 3_600_000
"""How long computing the digest of a queue may take."""


class AsyncQueue:
    """One queue of one tenant. Times are milliseconds."""

    def __init__(self, registry: QueueRegistry, tenant: str | None, name: str) -> None:
        self.name = check_queue_name(name)
        self.tenant = check_tenant_name(tenant) if tenant is not None else None  # None: the credential's own
        self._session: ClientSession = registry.session
        self._calls = registry.of(tenant, name)
        self._path = self._calls.path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tenant + '/' if self.tenant else ''}{self.name}>"

    # ---- producing ----

    async def add(
        self,
        body: object,
        *,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int | None = None,
        key: str | None = None,
        group: str | None = None,
        attributes: dict[str, str] | None = None,
        max_attempts: int | None = None,
    ) -> Added:
        """Add one message and return its id once it is durable at the server.

        ``body`` is bytes, text, or anything JSON: dict, list, dataclass, msgspec Struct, pydantic model. The message is added
        exactly once, however often the request is retried. Concurrent adds are sent together and have no order among each
        other; ``add_many`` keeps the order.
        """
        ready: OutgoingMessage | None = None
        if (
            type(body) is str
            and type(delay_ms) is int
            and not (delay_ms or attributes or (ttl_ms, key, group, max_attempts) != _NO_OPTIONS)
        ):
            ready = prepare_text(body, priority)
        if ready is None:
            message = new_message(
                body, priority=priority, delay_ms=delay_ms, ttl_ms=ttl_ms, key=key, group=group, attributes=attributes,
                max_attempts=max_attempts,
            )  # fmt: skip
            ready = prepare_message(message)
        return await self._calls.add(ready)

    async def add_many(
        self,
        messages: Iterable[object],
        *,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int | None = None,
        group: str | None = None,
        attributes: dict[str, str] | None = None,
        max_attempts: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Added]:
        """Add any number of messages in order and return the results in the same order.

        Each is a body, or a ``NewMessage`` with its own options. They are sent in requests of at most 1,000 messages or 8 MiB, one
        after the other. An error of one message does not affect the others: with ``errors="raise"`` the first one is raised after
        all were tried; with ``"return"`` it is in the ``Added`` of its message.

        At a rate limit the call waits as the server asks, as often as ``retries`` allows without progress; the remaining messages
        then get the limit's error. Any other error is raised immediately, with a note on how many messages had been sent.
        """
        adds = self.ordered_adds(
            priority=priority, delay_ms=delay_ms, ttl_ms=ttl_ms, group=group, attributes=attributes,
            max_attempts=max_attempts,
        )  # fmt: skip
        for batch in adds.batches(messages):
            await adds.send(batch)
        return adds.results(errors)

    def ordered_adds(self, **options: Any) -> OrderedAdds:
        """Return a sender that adds many messages in order. ``options`` are for those without their own."""
        return OrderedAdds(self._calls, **options)

    # ---- consuming ----

    async def poll(
        self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str | None = None
    ) -> list[AsyncMessage]:
        """Lease up to ``max`` messages; with ``wait_ms`` wait for the first. ``lease_ms`` None: the queue's default."""
        check_poll(max, wait_ms, lease_ms)
        leases = await self._calls.polls.poll(max, wait_ms, lease_ms, consumer)
        return [AsyncMessage(leased, self._calls) for leased in leases]

    async def ack_many(
        self, messages: Iterable[AsyncMessage], *, errors: Literal["raise", "return"] = "raise"
    ) -> list[TenantqError | None]:
        """Ack many messages of this queue, each with its ``result`` if one was set.

        Returns None for each acked message. With ``errors="raise"`` the first error is raised after all were tried; with
        ``"return"`` each error is returned at the position of its message.
        """
        all_messages = list(messages)
        outcomes: list[TenantqError | None] = [None] * len(all_messages)
        ready: list[tuple[int, LeaseSettlement]] = []
        for index, message in enumerate(all_messages):
            if message.queue != self.name:
                raise Invalid(f"messages: a message belongs to queue {message.queue}, not to {self.name}")
            try:
                ready.append((index, message.start_batch_ack()))
            except TenantqError as error:
                outcomes[index] = error
        for start in range(0, len(ready), ITEMS_MAX):
            part = ready[start : start + ITEMS_MAX]
            settled = await self._calls.ack_batch([settlement for _, settlement in part])
            for (index, _), outcome in zip(part, settled, strict=True):
                if isinstance(outcome, TenantqError):
                    outcomes[index] = outcome
                else:
                    all_messages[index].finish_batch_ack()
        if errors == "raise":
            raise_first(outcomes)
        return outcomes

    async def settle(
        self,
        how: Literal["ack", "nack", "release", "extend"],
        receipts: Iterable[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        lease_ms: int | None = None,
    ) -> list[int | TenantqError | None]:
        """Settle leases by their receipts, for callers that stored only those.

        Returns for each None, the new end of its lease (``extend``), or its error. ``delay_ms`` and ``reason`` are for ``nack``,
        ``lease_ms`` is for ``extend``.
        """
        if how not in ("ack", "nack", "release", "extend"):
            raise Invalid(f"how: must be ack, nack, release or extend (got {how!r})")
        operation: tuple[Any, ...] = (how,)
        if how == "nack":
            operation = (how, delay_ms, reason)
        elif how == "extend":
            operation = (how, check_field("lease_ms", lease_ms, limits.LeaseMs))
        leases = [LeaseSettlement(receipt, sure_until_ms=0) for receipt in receipts]
        outcomes: list[int | TenantqError | None] = []
        for start in range(0, len(leases), ITEMS_MAX):
            outcomes += await self._calls.send_settle(operation, leases[start : start + ITEMS_MAX])
        return outcomes

    # ---- results ----

    async def result(self, id: str, *, wait_ms: int = 0) -> JobResult:
        """Return the result of a message. While it is pending, wait for it up to ``wait_ms``."""
        check_field("wait_ms", wait_ms, limits.WaitMs)

        def request(wait_ms: int) -> ApiRequest[wire.ResultReply]:
            target = f"{self._message_path(id)}/result{query(wait_ms=wait_ms or None)}"
            return api_request("GET", target, wire.ResultReply, wait_ms=wait_ms, shorten=request)

        return values.job_result(id, await self._session.call(request(wait_ms)))

    async def wait_result(self, id: str, *, timeout_ms: int = 60_000) -> JobResult:
        """Return the result of a message once it is completed or failed. Raises TimedOut after ``timeout_ms``."""
        async with aclosing(self._watch([id], timeout_ms).results()) as results:
            return await anext(results)

    def iter_results(self, ids: Iterable[str], *, timeout_ms: int = 60_000) -> AsyncIterator[JobResult]:
        """Yield the results of many messages as they are completed or failed, each once. ``timeout_ms`` is for all of them.

        After the last result it raises NotFound if a message does not exist, or TimedOut if one is still pending.
        """
        return self._watch(ids, timeout_ms).results()

    def _watch(self, ids: Iterable[str], timeout_ms: int) -> ResultWatch:
        def ask(id: str, wait_ms: int) -> Coroutine[Any, Any, JobResult]:
            return self.result(id, wait_ms=wait_ms)

        return ResultWatch(ask, self._session.clock, self.name, ids, timeout_ms)

    # ---- reading ----

    async def peek(self, limit: int = 10, *, cursor: str | None = None) -> Page:
        """Return waiting messages in order of delivery, without leasing them."""
        body = wire.PeekRequest(limit=limit, cursor=cursor)
        reply = await self._session.request("POST", f"{self._path}/peek", wire.PeekReply, body, gzip=limit >= 100)
        return values.page(reply)

    async def get(self, id: str) -> StoredMessage:
        """Return a stored message with its state, history and body."""
        return values.stored_message(await self._session.request("GET", self._message_path(id), wire.MessageFacts))

    async def trace(self, id: str) -> list[dict[str, Any]]:
        """Return the journal rows of one message, oldest first."""
        target = f"{self._message_path(id)}/trace"
        return (await self._session.request("GET", target, wire.TraceReply, gzip=True)).rows

    async def stats(self) -> QueueReply:
        """Return the queue's figures and configuration."""
        return await self._session.request("GET", self._path, QueueReply)

    # ---- removing and redriving ----

    async def remove(self, *ids: str) -> list[bool]:
        """Delete messages by id in any state. Returns for each whether it existed."""
        if not ids:
            return []
        reply = await self._session.request(
            "POST", f"{self._path}/remove", wire.RemoveReply, wire.RemoveRequest(ids=list(ids))
        )
        removed = []
        for item in reply.results:
            error = values.item_error(item.error, self.tenant, self.name, item.id)
            if error is not None and not isinstance(error, NotFound):
                raise error
            removed.append(error is None)
        return removed

    async def purge(self, *, confirm: str, reason: str) -> int:
        """Delete all messages and return how many. ``confirm`` is the queue's name, ``reason`` has at least ten characters."""
        body = DestroyRequest(confirm=confirm, reason=reason)
        return (await self._session.request("POST", f"{self._path}/purge", PurgeReply, body, repeatable=False)).purged

    async def redrive(
        self,
        *,
        source: str | None = None,
        reason: str | None = None,
        ids: Sequence[str] | None = None,
        limit: int | None = None,
        rate: int | None = None,
        dry_run: bool = False,
    ) -> RedriveReply:
        """Start moving dead letters back to the queues they came from, at ``rate`` messages per second."""
        choice = RedriveChoice(source=source, reason=reason, ids=list(ids) if ids is not None else None, limit=limit)
        body = RedriveRequest(filter=choice, rate=rate, dry_run=dry_run)
        return await self._session.request("POST", f"{self._path}/redrive", RedriveReply, body, repeatable=dry_run)

    async def redrive_status(self, task: str) -> RedriveReply:
        """Return the progress of a redrive."""
        return await self._session.request("GET", self._redrive_path(task), RedriveReply)

    async def cancel_redrive(self, task: str) -> RedriveReply:
        """Stop a redrive. Messages that were moved stay where they are."""
        return await self._session.request("DELETE", self._redrive_path(task), RedriveReply)

    # ---- the queue itself ----

    async def configure(self, /, **changes: Any) -> QueueReply:
        """Create the queue or change its configuration: ``lease_ms``, ``max_attempts``, ``ttl_ms``, ``dead_letter`` and so on."""
        return await self._session.request("PUT", self._path, QueueReply, changes)

    async def suspend(self, reason: str = "", mode: Literal["settle", "freeze", "fill"] = "settle") -> QueueReply:
        """Suspend the queue like a tenant: refuse adds and polls. For platform administrators."""
        body = SuspendRequest(reason=reason, mode=mode)
        return await self._session.request("PUT", f"{self._path}/suspension", QueueReply, body)

    async def reopen(self) -> QueueReply:
        """End a suspension. A paused queue stays paused."""
        return await self._session.request("DELETE", f"{self._path}/suspension", QueueReply)

    async def digest(self, *, at: int | None = None, export: str | None = None) -> DigestReply:
        """Return a digest of all messages that live beyond ``at``, and how many parts of ``export`` were imported."""
        target = f"{self._path}/digest{query(at=at, export=export)}"
        return await self._session.request("GET", target, DigestReply, wait_ms=DIGEST_MS_MAX)

    async def pause(self) -> QueueReply:
        """Stop deliveries. Adds continue and polls wait."""
        return await self._session.request("POST", f"{self._path}/pause", QueueReply)

    async def resume(self) -> QueueReply:
        """Resume deliveries."""
        return await self._session.request("POST", f"{self._path}/resume", QueueReply)

    async def delete(self, *, confirm: str, reason: str, force: bool = False) -> None:
        """Start deleting the queue. It disappears once its leases are settled, or immediately with ``force``."""
        body = DestroyRequest(confirm=confirm, reason=reason, force=force)
        await self._session.request("DELETE", self._path, NoneType, body, repeatable=False)

    # ---- snapshots: all its messages at one point in time, which the server keeps for reading ----

    async def open_snapshot(self, *, keep_ms: int = 60_000, part_messages: int | None = None) -> wire.SnapshotReply:
        """Open a snapshot of the queue. The server drops it if nothing reads it for ``keep_ms``.

        With ``part_messages`` the reply has the ids that divide it into parts of that many messages.
        """
        body = wire.SnapshotRequest(keep_ms=keep_ms, part_messages=part_messages)
        return await self._session.request(
            "POST", f"{self._path}/snapshots", wire.SnapshotReply, body, repeatable=False
        )

    async def read_snapshot(
        self, snapshot: str, *, start: str | None = None, end: str | None = None, limit: int = 1_000
    ) -> Page:
        """Return messages of a snapshot by id, from ``start`` on and before ``end``. ``cursor`` is the start of the next page."""
        target = self._snapshot_path(snapshot) + query(start=start, end=end, limit=limit)
        return values.page(await self._session.request("GET", target, wire.PeekReply, gzip=True))

    async def close_snapshot(self, snapshot: str) -> None:
        """Drop a snapshot."""
        await self._session.request("DELETE", self._snapshot_path(snapshot), NoneType, repeatable=False)

    def _message_path(self, id: str) -> str:
        if type(id) is not str or not id:
            raise Invalid("id: must be a message ID")
        return f"{self._path}/messages/{quote(id, safe='')}"

    def _snapshot_path(self, snapshot: str) -> str:
        return f"{self._path}/snapshots/{quote(snapshot, safe='')}"

    def _redrive_path(self, task: str) -> str:
        return f"{self._path}/redrive/{quote(task, safe='')}"


class AsyncFleet:
    """One queue name in many tenants, for workers that serve all of them fairly."""

    def __init__(self, registry: QueueRegistry, queue: str, tenants: Sequence[str] | None) -> None:
        self.queue = check_queue_name(queue)
        self.tenants = [check_tenant_name(tenant) for tenant in tenants] if tenants is not None else None
        self._registry = registry

    def __repr__(self) -> str:
        where = "all tenants" if self.tenants is None else ", ".join(self.tenants)
        return f"<{type(self).__name__} {self.queue} of {where}>"

    async def poll(
        self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str | None = None
    ) -> list[AsyncMessage]:
        """Lease up to ``max`` messages, in weighted fair turns of the tenants this credential is granted in."""
        check_poll(max, wait_ms, lease_ms)
        leases = await self._registry.fleet(self.queue, self.tenants).poll(max, wait_ms, lease_ms, consumer)
        return [AsyncMessage(leased, self._registry.of(leased.item.tenant, leased.item.queue)) for leased in leases]
