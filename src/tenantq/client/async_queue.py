"""A queue, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from tenantq import wire
from tenantq.client import values
from tenantq.client.async_message import AsyncMessage
from tenantq.client.coalesce import ITEMS_MAX
from tenantq.client.core import Core, Request, encode
from tenantq.client.ordered_adds import OrderedAdds, raise_first
from tenantq.client.outgoing import Outgoing, new_message, outgoing, outgoing_text
from tenantq.client.queue_calls import QueueBook, Settling
from tenantq.client.result_watch import WAIT_SLICE_MS, ResultWatch
from tenantq.domain import limits
from tenantq.domain.message import check_int
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.errors import Invalid, NotFound, TenantqError, TimedOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from tenantq.client.values import Added, JobResult, Page, StoredMessage


_NO_OPTIONS: Final = (None, None, None, None)

_digest_reply = msgspec.json.Decoder(wire.DigestReply).decode
_queue_reply = msgspec.json.Decoder(wire.QueueReply).decode
_peek_reply = msgspec.json.Decoder(wire.PeekReply).decode
_snapshot_reply = msgspec.json.Decoder(wire.SnapshotReply).decode
_facts_reply = msgspec.json.Decoder(wire.MessageFacts).decode
_result_reply = msgspec.json.Decoder(wire.ResultReply).decode
_trace_reply = msgspec.json.Decoder(wire.TraceReply).decode
_remove_reply = msgspec.json.Decoder(wire.RemoveReply).decode
_purge_reply = msgspec.json.Decoder(wire.PurgeReply).decode
_redrive_reply = msgspec.json.Decoder(wire.RedriveReply).decode


def nothing(_: bytes) -> None:
    """Decode a reply that has no content of interest."""


def check_poll(max: int, wait_ms: int, lease_ms: int | None) -> None:
    """Raise Invalid where a poll's argument is out of range."""
    check_int("max", max, 1, limits.BATCH_MESSAGES_MAX)
    check_int("wait_ms", wait_ms, 0, limits.WAIT_MS_MAX)
    if lease_ms is not None:
        check_int("lease_ms", lease_ms, 1, limits.LEASE_MS_MAX)


DIGEST_MS_MAX = 3_600_000
"""How long it may take to go through everything in a queue."""


class AsyncQueue:
    """One queue of one tenant. Times are milliseconds."""

    def __init__(self, book: QueueBook, tenant: str | None, name: str) -> None:
        self.name = check_queue_name(name)
        self.tenant = check_tenant_name(tenant) if tenant is not None else None  # None: the credential's own
        self._core: Core = book.core
        self._calls = book.of(tenant, name)
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
        """Add one message; return its id when it is on the server's disk.

        ``body`` is bytes, text, or anything JSON: dict, list, dataclass, msgspec Struct, pydantic model. Without a ``key`` the
        message gets one of its own, so that it is added once, however often the network made the client try.
        Concurrent adds go out together and have no order among each other; ``add_many`` keeps one.
        """
        ready: Outgoing | None = None
        if (
            type(body) is str
            and type(delay_ms) is int
            and not (delay_ms or attributes or (ttl_ms, key, group, max_attempts) != _NO_OPTIONS)
        ):
            ready = outgoing_text(body, priority)
        if ready is None:
            message = new_message(
                body,
                priority=priority,
                delay_ms=delay_ms,
                ttl_ms=ttl_ms,
                key=key,
                group=group,
                attributes=attributes,
                max_attempts=max_attempts,
            )
            ready = outgoing(message)
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
        """Add any number of messages, in order; return what became of each, in the same order.

        Each is a body, or a ``NewMessage`` with options of its own. They go out in requests of at most 1,000 messages or 8 MiB, one
        after the other. An error of one message does not keep the others out: with ``errors="raise"`` the first such error is raised
        after all were tried; with ``"return"`` it stands in its ``Added``.

        At a rate limit they wait as the server asks, as often as ``retries`` allows without any being added; those left then have the
        limit's error. What concerns neither a message nor a limit is raised at once, with a note on how many had been sent.
        """
        adds = self.ordered_adds(
            priority=priority,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            group=group,
            attributes=attributes,
            max_attempts=max_attempts,
        )
        for batch in adds.batches(messages):
            await adds.send(batch)
        return adds.told(errors)

    def ordered_adds(self, **options: Any) -> OrderedAdds:
        """Return what adds many messages in order; ``options`` are for those that have none of their own."""
        return OrderedAdds(self._calls, options)

    # ---- consuming ----

    async def poll(
        self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str | None = None
    ) -> list[AsyncMessage]:
        """Lease up to ``max`` messages; with ``wait_ms`` wait for the first. ``lease_ms`` None: as the queue is configured."""
        check_poll(max, wait_ms, lease_ms)
        leases = await self._calls.poll(max, wait_ms, lease_ms, consumer)
        return [AsyncMessage(leased, self._calls) for leased in leases]

    async def ack_many(
        self, messages: Iterable[AsyncMessage], *, errors: Literal["raise", "return"] = "raise"
    ) -> list[TenantqError | None]:
        """Finish many messages of this queue, each with its ``result`` if that was set.

        Returns None for each that is done. With ``errors="raise"`` the first error is raised after all were tried; with
        ``"return"`` it stands in its place.
        """
        all_messages = list(messages)
        outcomes: list[TenantqError | None] = [None] * len(all_messages)
        ready: list[tuple[int, Settling]] = []
        for place, message in enumerate(all_messages):
            if message.queue != self.name:
                raise Invalid(f"messages: all must be of the queue {self.name}")
            try:
                ready.append((place, message.settling_result()))
            except TenantqError as error:
                outcomes[place] = error
        for start in range(0, len(ready), ITEMS_MAX):
            part = ready[start : start + ITEMS_MAX]
            settled = await self._calls.ack_batch([settling for _, settling in part])
            for (place, _), outcome in zip(part, settled, strict=True):
                if isinstance(outcome, TenantqError):
                    outcomes[place] = outcome
                else:
                    all_messages[place].was_settled()
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
        """Settle leases by their receipts, for who kept those and not the messages.

        Returns for each None, the new end of its lease (``extend``), or its error. ``delay_ms`` and ``reason`` are for ``nack``,
        ``lease_ms`` is for ``extend``.
        """
        what: tuple[Any, ...] = (how,)
        if how == "nack":
            what = (how, delay_ms, reason)
        elif how == "extend":
            what = (how, check_int("lease_ms", lease_ms, 1, limits.LEASE_MS_MAX))
        leases = [Settling(receipt, sure_until_ms=0) for receipt in receipts]
        outcomes: list[int | TenantqError | None] = []
        for start in range(0, len(leases), ITEMS_MAX):
            outcomes += await self._calls.send_settle(what, leases[start : start + ITEMS_MAX])
        return outcomes

    # ---- results ----

    async def result(self, id: str, *, wait_ms: int = 0) -> JobResult:
        """Return a message's result as it is now, or, while it is pending, after at most ``wait_ms``."""
        check_int("wait_ms", wait_ms, 0, limits.WAIT_MS_MAX)

        def request(wait_ms: int) -> Request[wire.ResultReply]:
            query = f"?wait_ms={wait_ms}" if wait_ms else ""
            return Request(
                method="GET",
                target=f"{self._message_path(id)}/result{query}",
                decode=_result_reply,
                wait_ms=wait_ms,
                shorten=request,
            )

        return values.job_result(id, await self._core.call(request(wait_ms)))

    async def wait_result(self, id: str, *, timeout_ms: int = 60_000) -> JobResult:
        """Return a message's result when it is completed or failed. Raises TimedOut if that takes longer than ``timeout_ms``."""
        end_ms = self._core.clock.monotonic_ms() + timeout_ms
        while True:
            left_ms = max(0, end_ms - self._core.clock.monotonic_ms())
            result = await self.result(id, wait_ms=min(left_ms, WAIT_SLICE_MS))
            if result.done:
                return result
            if self._core.clock.monotonic_ms() >= end_ms:
                raise TimedOut(f"no result within {timeout_ms} ms", queue=self.name, id=id)

    def iter_results(self, ids: Iterable[str], *, timeout_ms: int = 60_000) -> AsyncIterator[JobResult]:
        """Yield the results of many messages as they are completed or failed, each once; ``timeout_ms`` is for all of them.

        Raises TimedOut for those that are not done by then, and NotFound for those that never were, after all others have come.
        """

        def ask(id: str, wait_ms: int) -> Coroutine[Any, Any, JobResult]:
            return self.result(id, wait_ms=wait_ms)

        return ResultWatch(ask, self._core.clock, self.name, ids, timeout_ms).results()

    # ---- looking ----

    async def peek(self, limit: int = 10, *, cursor: str | None = None) -> Page:
        """Return waiting messages in order of delivery, without leasing them."""
        body = encode(wire.PeekRequest(limit=limit, cursor=cursor))
        reply = await self._core.call(
            Request(method="POST", target=f"{self._path}/peek", decode=_peek_reply, body=body, gzip=limit >= 100)
        )
        return values.page(reply)

    async def open_snapshot(self, *, keep_ms: int = 60_000, part_messages: int | None = None) -> wire.SnapshotReply:
        """Have the server keep everything the queue holds at this moment; it goes when nobody reads it for ``keep_ms``.

        With ``part_messages`` the reply tells the ids at which to divide it into parts of so many messages.
        """
        body = encode(wire.SnapshotRequest(keep_ms=keep_ms, part_messages=part_messages))
        return await self._core.call(
            Request(
                method="POST", target=f"{self._path}/snapshots", decode=_snapshot_reply, body=body, repeatable=False
            )
        )

    async def read_snapshot(
        self, snapshot: str, *, start: str | None = None, end: str | None = None, limit: int = 1_000
    ) -> Page:
        """Return messages of a snapshot by id, from ``start`` on and before ``end``; ``cursor`` is the next page's start."""
        given = {"start": start, "end": end, "limit": limit}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        target = f"{self._path}/snapshots/{quote(snapshot, safe='')}?{query}"
        return values.page(await self._core.call(Request(method="GET", target=target, decode=_peek_reply, gzip=True)))

    async def close_snapshot(self, snapshot: str) -> None:
        """Let a snapshot go before its time."""
        target = f"{self._path}/snapshots/{quote(snapshot, safe='')}"
        await self._core.call(Request(method="DELETE", target=target, decode=nothing, repeatable=False))

    async def get(self, id: str) -> StoredMessage:
        """Return everything known of a message that is still stored."""
        target = self._message_path(id)
        return values.stored_message(await self._core.call(Request(method="GET", target=target, decode=_facts_reply)))

    async def trace(self, id: str) -> list[dict[str, Any]]:
        """Return the journal's rows about one message, oldest first."""
        target = f"{self._message_path(id)}/trace"
        return (await self._core.call(Request(method="GET", target=target, decode=_trace_reply, gzip=True))).rows

    async def stats(self) -> wire.QueueReply:
        """Return the queue's figures and configuration."""
        return await self._core.call(Request(method="GET", target=self._path, decode=_queue_reply))

    # ---- mending ----

    async def remove(self, *ids: str) -> list[bool]:
        """Delete messages by id, whatever their state; tell of each whether it was there."""
        if not ids:
            return []
        body = encode(wire.RemoveRequest(ids=list(ids)))
        answer = await self._core.answer(
            Request(method="POST", target=f"{self._path}/remove", decode=_remove_reply, body=body)
        )
        gone = []
        for item in answer.value.results:
            error = values.item_error(item.error, self.tenant, self.name, item.id)
            if error is not None and not isinstance(error, NotFound):
                raise error
            gone.append(error is None)
        return gone

    async def purge(self, *, confirm: str, reason: str) -> int:
        """Empty the queue; return how many messages went. ``confirm`` is its name, ``reason`` ten characters or more."""
        body = encode(wire.DestroyRequest(confirm=confirm, reason=reason))
        request = Request(method="POST", target=f"{self._path}/purge", decode=_purge_reply, body=body, repeatable=False)
        return (await self._core.call(request)).purged

    async def redrive(
        self,
        *,
        source: str | None = None,
        reason: str | None = None,
        ids: Sequence[str] | None = None,
        limit: int | None = None,
        rate: int | None = None,
        dry_run: bool = False,
    ) -> wire.RedriveReply:
        """Begin to send dead letters back where they came from; ``rate`` is messages a second."""
        wanted = wire.RedriveChoice(
            source=source, reason=reason, ids=list(ids) if ids is not None else None, limit=limit
        )
        body = wire.RedriveRequest(filter=wanted, rate=rate, dry_run=dry_run)
        request = Request(
            method="POST",
            target=f"{self._path}/redrive",
            decode=_redrive_reply,
            body=encode(body),
            repeatable=dry_run,
        )
        return await self._core.call(request)

    async def redrive_status(self, task: str) -> wire.RedriveReply:
        """Return how a redrive stands."""
        target = f"{self._path}/redrive/{quote(task, safe='')}"
        return await self._core.call(Request(method="GET", target=target, decode=_redrive_reply))

    async def cancel_redrive(self, task: str) -> wire.RedriveReply:
        """Stop a redrive; what has been moved stays."""
        target = f"{self._path}/redrive/{quote(task, safe='')}"
        return await self._core.call(Request(method="DELETE", target=target, decode=_redrive_reply))

    # ---- the queue itself ----

    async def configure(self, /, **changes: Any) -> wire.QueueReply:
        """Make the queue or change its configuration: ``lease_ms``, ``max_attempts``, ``ttl_ms``, ``dead_letter`` and so on."""
        return await self._core.call(
            Request(method="PUT", target=self._path, decode=_queue_reply, body=encode(changes))
        )

    async def suspend(self, reason: str = "", mode: Literal["settle", "freeze", "fill"] = "settle") -> wire.QueueReply:
        """Take no new work of it and hand none out, as for a whole tenant; for the platform's administrators."""
        body = encode(wire.SuspendRequest(reason=reason, mode=mode))
        return await self._core.call(
            Request(method="PUT", target=f"{self._path}/suspension", decode=_queue_reply, body=body)
        )

    async def reopen(self) -> wire.QueueReply:
        """Let it work again where it was suspended; whether it is paused stays as it is."""
        return await self._core.call(Request(method="DELETE", target=f"{self._path}/suspension", decode=_queue_reply))

    async def digest(self, *, at: int | None = None, export: str | None = None) -> wire.DigestReply:
        """Return what stands for everything in it that lives beyond ``at``, and how many parts of an export it has."""
        target = f"{self._path}/digest{query(at=at, export=export)}"
        return await self._core.call(Request(method="GET", target=target, decode=_digest_reply, wait_ms=DIGEST_MS_MAX))

    async def pause(self) -> wire.QueueReply:
        """Stop deliveries; adding goes on and waiting polls wait."""
        return await self._core.call(Request(method="POST", target=f"{self._path}/pause", decode=_queue_reply))

    async def resume(self) -> wire.QueueReply:
        """Deliver again."""
        return await self._core.call(Request(method="POST", target=f"{self._path}/resume", decode=_queue_reply))

    async def delete(self, *, confirm: str, reason: str, force: bool = False) -> None:
        """Begin to delete the queue. It goes when its leases have settled, or at once with ``force``."""
        body = encode(wire.DestroyRequest(confirm=confirm, reason=reason, force=force))
        await self._core.call(Request(method="DELETE", target=self._path, decode=nothing, body=body, repeatable=False))

    def _message_path(self, id: str) -> str:
        if type(id) is not str or not id:
            raise Invalid("id: must be a message's id")
        return f"{self._path}/messages/{quote(id, safe='')}"


def query(**parameters: object) -> str:
    """Return a query string of the parameters that are not None."""
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""
