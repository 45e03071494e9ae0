"""The calls on the messages of one queue. Concurrent calls are sent in shared requests."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from tenantq.client.batcher import ITEMS_MAX, Batcher
from tenantq.client.bodies import UNSET, Unset
from tenantq.client.connection_pool import ApiRequest
from tenantq.client.outgoing_message import OutgoingMessage
from tenantq.client.poll_batcher import PollBatcher
from tenantq.client.problems import from_item
from tenantq.client.session import ClientSession, api_request, new_key
from tenantq.client.values import Added
from tenantq.errors import BadAnswer, Invalid, LeaseLost, Limited, TenantqError, TooLarge
from tenantq.wire.messages import (
    AckRequest,
    AddedItem,
    AddReply,
    AddRequest,
    DeliveredItem,
    ExtendRequest,
    FleetPollRequest,
    NackRequest,
    PollReply,
    PollRequest,
    ReleaseRequest,
    SettledItem,
    SettleReply,
    WireResult,
)

T = TypeVar("T")

log = logging.getLogger("tenantq.client")

_QUEUES_KEPT: Final = 1_024
_ATTEMPTS_PER_LEASE: Final = 4  # an extend is retried if its reply takes longer than this fraction of the lease
_EXTEND_MS_MIN: Final = 100
_UNTRACED: Final = nullcontext("")
_CLOCK_MARGIN_MS: Final = 2  # the server's times may differ from its clock by this; a lease must not be overestimated


class LeaseSettlement(msgspec.Struct, frozen=True, gc=False):
    """A lease that is to be settled."""

    receipt: str
    sure_until_ms: int  # monotonic clock: the lease cannot have ended before
    result: WireResult | None = None
    size: int = 64
    trace: Any = None  # context of the span that settles it


class LeaseState:
    """A message from the server and the state of its lease, shared by the asynchronous and the blocking message."""

    __slots__ = ("body", "item", "lease_ms", "lease_until", "lost", "result", "settled", "sure_until_ms")

    def __init__(self, item: DeliveredItem, lease_ms: int | None, sure_until_ms: int) -> None:
        self.item = item
        self.lease_ms = lease_ms  # None: unknown
        self.sure_until_ms = sure_until_ms  # monotonic clock: the lease cannot have ended before
        self.lease_until = item.lease_until
        self.body: bytes | None = None
        self.result: Any | Unset = UNSET
        self.settled = False
        self.lost = False


class QueueCalls:
    """The calls on one queue's messages. One object per queue and client, which gathers concurrent calls."""

    def __init__(self, session: ClientSession, path: str, tenant: str | None, queue: str) -> None:
        self.session = session
        self.path = path
        self._tenant = tenant
        self._queue = queue
        self._adds: Batcher[OutgoingMessage, Added] = Batcher(session, self.send_adds)
        self._settles: dict[tuple[object, ...], Batcher[LeaseSettlement, int | None]] = {}
        self.polls = PollCalls(session, f"{path}/poll", PollRequest(), self.release_quietly)

    # ---- adds ----

    async def add(self, ready: OutgoingMessage) -> Added:
        """Add one message, together with concurrent adds."""
        self.session.check_open()
        if self.session.tracing is None:
            return await self._add(ready)
        with self.sending([ready]) as (traced,):
            return await self._add(traced)

    def _add(self, ready: OutgoingMessage) -> Awaitable[Added]:
        if self.session.settings.coalesce:
            return self._adds.put(ready, ready.size)
        return self._add_alone(ready)

    async def _add_alone(self, ready: OutgoingMessage) -> Added:
        return _only(await self.send_adds([ready], patient=True))

    def sending(self, batch: list[OutgoingMessage]) -> AbstractContextManager[list[OutgoingMessage]]:
        """Return a block that adds these messages, with the context of its span if the application is traced."""
        tracing = self.session.tracing
        return nullcontext(batch) if tracing is None else tracing.sending(self._queue, batch)

    def _requesting(
        self, operation: str, batch: Sequence[OutgoingMessage | LeaseSettlement]
    ) -> AbstractContextManager[str]:
        """Return a block for one request, with its ``traceparent``."""
        tracing = self.session.tracing
        if tracing is None:
            return _UNTRACED
        return tracing.requesting(operation, self._queue, (one.trace for one in batch))

    async def send_adds(self, batch: Sequence[OutgoingMessage], *, patient: bool = False) -> list[Added | TenantqError]:
        """Send one request and return a result per message. Its idempotency key makes retries safe.

        With ``patient``, retry when a limit is reached.
        """
        body = AddRequest(messages=[one.message for one in batch], key=new_key())
        with self._requesting("send", batch) as trace:
            reply = await self.session.request(
                "POST", f"{self.path}/messages", AddReply, body, patient=patient, traceparent=trace
            )
        _check_count(batch, reply.messages)
        return [self._added(one, item) for one, item in zip(batch, reply.messages, strict=True)]

    def _added(self, sent: OutgoingMessage, item: AddedItem) -> Added | TenantqError:
        if item.error is not None:
            return from_item(item.error, tenant=self._tenant, queue=self._queue)
        # Without a key of the caller, only an earlier attempt of this request can have added it.
        return Added(item.id or "", item.duplicate and sent.own_key)

    # ---- settlements ----

    async def release_quietly(self, leases: Sequence[LeaseState]) -> None:
        """Release messages that no caller wants. If that fails, their leases expire."""
        try:
            for start in range(0, len(leases), ITEMS_MAX):
                receipts = [one.item.receipt for one in leases[start : start + ITEMS_MAX]]
                await self._settle_call("release", ReleaseRequest(receipts=receipts), patient=False, traceparent="")
        except TenantqError as error:
            log.info(
                "%s: cannot release %d unwanted messages; their leases will expire: %s", self._queue, len(leases), error
            )

    async def settle(self, operation: tuple[Any, ...], settlement: LeaseSettlement) -> int | None:
        """Settle one lease, together with others. Returns the new end of the lease after an extend.

        ``operation`` is ("ack",), ("nack", delay_ms, reason), ("release",) or ("extend", lease_ms).
        """
        self.session.check_open()
        if not self.session.settings.coalesce:
            return _only(await self.send_settle(operation, [settlement], patient=True))
        batcher = self._settles.get(operation)
        if batcher is None:
            batcher = self._settles[operation] = Batcher(self.session, partial(self.send_settle, operation))
        try:
            return await batcher.put(settlement, settlement.size)
        finally:
            if batcher.idle and len(operation) > 1:  # reasons and delays vary without bound
                self._settles.pop(operation, None)

    async def ack_batch(self, batch: Sequence[LeaseSettlement]) -> list[int | TenantqError | None]:
        """Ack messages in one request. If the request as a whole is refused, ack them one by one."""
        self.session.check_open()
        try:
            return await self.send_settle(("ack",), batch)
        except (Limited, Invalid, TooLarge) as error:
            if error.maybe_done:
                raise
            if len(batch) == 1 and not isinstance(error, Limited):
                return [error]
        return await _each(self.settle(("ack",), one) for one in batch)

    async def send_settle(
        self, operation: tuple[Any, ...], batch: Sequence[LeaseSettlement], *, patient: bool = False
    ) -> list[int | TenantqError | None]:
        """Send one request and return the result of each lease. With ``patient``, retry when a limit is reached.

        If the reply to an earlier attempt was lost, a receipt may be refused because that attempt settled it. While the lease
        cannot have ended, that is the only explanation, so the settlement counts as done. Otherwise the caller gets LeaseLost.
        """
        kind, *arguments = operation
        receipts = [one.receipt for one in batch]
        body: msgspec.Struct
        if kind == "ack":
            results = [one.result for one in batch]
            body = AckRequest(receipts=receipts, results=results if any(results) else None)
        elif kind == "nack":
            body = NackRequest(receipts=receipts, delay_ms=arguments[0], reason=arguments[1])
        elif kind == "extend":
            body = ExtendRequest(receipts=receipts, lease_ms=arguments[0])
        else:
            body = ReleaseRequest(receipts=receipts)
        answer_ms = max(_EXTEND_MS_MIN, arguments[0] // _ATTEMPTS_PER_LEASE) if kind == "extend" else None
        with self._requesting(kind, batch) as trace:
            items, doubtful = await self._settle_call(
                kind, body, patient=patient, answer_ms=answer_ms, traceparent=trace
            )
        _check_count(batch, items)
        now = self.session.clock.monotonic_ms()
        outcomes: list[int | TenantqError | None] = []
        for one, item in zip(batch, items, strict=True):
            if item.error is None:
                outcomes.append(item.lease_until)
                continue
            error = from_item(item.error, tenant=self._tenant, queue=self._queue)
            if doubtful and kind != "extend" and isinstance(error, LeaseLost):
                if now < one.sure_until_ms:
                    outcomes.append(None)
                    continue
                error.add_note("the reply to an earlier attempt was lost; that attempt may have settled the message")
            outcomes.append(error)
        return outcomes

    async def _settle_call(self, kind: str, body: msgspec.Struct, **options: Any) -> tuple[list[SettledItem], bool]:
        """``options`` are further fields of ApiRequest."""
        answer = await self.session.answer(api_request("POST", f"{self.path}/{kind}", SettleReply, body, **options))
        return answer.value.results, answer.doubtful


def _only(outcomes: Sequence[T | TenantqError]) -> T:
    """Return the result of a request with one item, or raise its error."""
    (outcome,) = outcomes
    if isinstance(outcome, TenantqError):
        raise outcome
    return outcome


def _check_count(asked: Sequence[object], answered: Sequence[object]) -> None:
    if len(asked) != len(answered):
        error = BadAnswer(f"the reply has {len(answered)} items for {len(asked)} sent. Check the address.")
        error.maybe_done = True
        raise error


async def _each(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | TenantqError]:
    """Return the result of each call, or its error."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    results: list[T | TenantqError] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, TenantqError):
            raise outcome
        results.append(outcome)
    return results


class PollCalls:
    """The polls of one queue, or of one queue name in many tenants. Concurrent polls with one lease length share requests."""

    def __init__(
        self,
        session: ClientSession,
        target: str,
        template: PollRequest | FleetPollRequest,
        release: Callable[[Sequence[LeaseState]], Coroutine[Any, Any, None]],
    ) -> None:
        """``template`` is the request without its options. ``release`` releases messages that no caller wants."""
        self._session = session
        self._target = target
        self._template = template
        self._release = release
        self._batchers: dict[tuple[object, ...], PollBatcher[LeaseState]] = {}

    @property
    def idle(self) -> bool:
        """Whether no poll is gathered or in flight."""
        return all(batcher.idle for batcher in self._batchers.values())

    async def poll(self, max: int, wait_ms: int, lease_ms: int | None, consumer: str | None) -> list[LeaseState]:
        """Lease up to ``max`` messages."""
        self._session.check_open()
        key = (lease_ms, consumer, wait_ms > 0)
        batcher = self._batchers.get(key)
        if batcher is None:

            async def send(max: int, wait_ms: int, stop: asyncio.Future[None]) -> list[LeaseState]:
                options = {"max": max, "lease_ms": lease_ms, "consumer": consumer}
                return await self._send(msgspec.structs.replace(self._template, **options), wait_ms, stop)

            batcher = PollBatcher(self._session, send, self._release)
            if self._session.settings.coalesce:
                self._batchers = {known: one for known, one in self._batchers.items() if not one.idle} | {key: batcher}
        return await batcher.poll(max, wait_ms)

    async def _send(
        self, body: PollRequest | FleetPollRequest, wait_ms: int, stop: asyncio.Future[None]
    ) -> list[LeaseState]:
        """Poll once. If the reply is lost, the poll is repeated for the rest of its time.

        Messages of a lost reply return when their leases end.
        """

        def request(wait_ms: int) -> ApiRequest[PollReply]:
            timed = msgspec.structs.replace(body, wait_ms=wait_ms)
            return api_request(
                "POST", self._target, PollReply, timed, wait_ms=wait_ms, stop=stop, shorten=request, traceparent=""
            )  # many callers share a poll

        asked_ms = self._session.clock.monotonic_ms()
        reply = await self._session.call(request(wait_ms))
        leases = []
        for item in reply.messages:
            length = body.lease_ms
            if length is None and reply.now_at is not None:
                length = max(1, item.lease_until - reply.now_at - _CLOCK_MARGIN_MS)
            leases.append(LeaseState(item, length, asked_ms + (length or 0)))
        return leases


class QueueRegistry:
    """The queues that a client uses. Keeps the most recently created ones; evicted ones continue to work for their holders.

    Thread-safe.
    """

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self._lock = threading.Lock()
        self._calls: dict[str, QueueCalls] = {}
        self._fleets: dict[tuple[object, ...], PollCalls] = {}

    def of(self, tenant: str | None, queue: str) -> QueueCalls:
        """Return the calls of one queue. ``tenant`` None: the credential's own."""
        path = f"/v1/queues/{queue}" if tenant is None else f"/v1/tenants/{tenant}/queues/{queue}"
        with self._lock:
            found = self._calls.get(path)
            if found is None:
                if len(self._calls) >= _QUEUES_KEPT:
                    del self._calls[next(iter(self._calls))]
                found = self._calls[path] = QueueCalls(self.session, path, tenant, queue)
            return found

    def fleet(self, queue: str, tenants: Sequence[str] | None) -> PollCalls:
        """Return the polls of one queue name in many tenants. ``tenants`` None: all where the credential is granted."""
        key = (queue, None if tenants is None else tuple(tenants))
        with self._lock:
            found = self._fleets.get(key)
            if found is None:
                self._fleets = {known: one for known, one in self._fleets.items() if not one.idle}
                template = FleetPollRequest(queue=queue, tenants=None if tenants is None else list(tenants))
                found = self._fleets[key] = PollCalls(self.session, "/v1/poll", template, self._release_fleet)
            return found

    async def _release_fleet(self, leases: Sequence[LeaseState]) -> None:
        by_queue: dict[tuple[str, str], list[LeaseState]] = {}
        for leased in leases:
            by_queue.setdefault((leased.item.tenant, leased.item.queue), []).append(leased)
        for (tenant, queue), some in by_queue.items():
            await self.of(tenant, queue).release_quietly(some)
