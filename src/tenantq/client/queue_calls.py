"""Everything that goes over the wire about the messages of one queue, gathered in lanes where calls are concurrent."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tenantq import wire
from tenantq.client.coalesce import ITEMS_MAX, Lane
from tenantq.client.core import Core, Request, encode, new_key
from tenantq.client.poll_lane import PollLane
from tenantq.client.problems import from_item
from tenantq.client.values import Added
from tenantq.errors import BadAnswer, Invalid, LeaseLost, Limited, TenantqError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from tenantq.client.outgoing import Outgoing

T = TypeVar("T")

log = logging.getLogger("tenantq.client")

_QUEUES_KEPT: Final = 1_024
_TRIES_PER_LEASE: Final = 4  # an extension whose answer takes longer than that part of the lease is tried again
_EXTEND_MS_MIN: Final = 100
_TOLD_WITHIN_MS: Final = (
    2  # a server's times may differ from its clock by this; a lease must not be taken for longer than it is
)

_add_reply = msgspec.json.Decoder(wire.AddReply).decode
_poll_reply = msgspec.json.Decoder(wire.PollReply).decode
_settle_reply = msgspec.json.Decoder(wire.SettleReply).decode


class Settling(msgspec.Struct, frozen=True, gc=False):
    """A lease on its way to its end."""

    receipt: str
    sure_until_ms: int  # on the client's monotonic clock: the lease cannot have run out before
    result: wire.WireResult | None = None
    size: int = 64


class Leased(msgspec.Struct, frozen=True, gc=False):
    """A message that came from the server, and what is known of its lease."""

    item: wire.DeliveredItem
    lease_ms: int | None  # how long the lease is, where that is known
    sure_until_ms: int


class QueueCalls:
    """The calls on one queue's messages. One per queue and client, so that everybody's calls meet."""

    def __init__(self, core: Core, path: str, tenant: str | None, queue: str) -> None:
        self.core = core
        self.path = path
        self._tenant = tenant
        self._queue = queue
        self._adds: Lane[Outgoing, Added] = Lane(core, self.send_adds)
        self._settles: dict[tuple[object, ...], Lane[Settling, int | None]] = {}
        self._polls: dict[tuple[object, ...], PollLane[Leased]] = {}

    # ---- adding ----

    async def add(self, ready: Outgoing) -> Added:
        """Add one message, together with others that are added meanwhile."""
        self.core.check_open()
        if self.core.settings.coalesce:
            return await self._adds.put(ready, ready.size)
        return await Lane(self.core, self.send_adds).put(ready, ready.size)

    async def send_adds(self, batch: Sequence[Outgoing]) -> list[Added | TenantqError]:
        """Send one request and tell each message's fate. It has a key of its own: tried again, it adds nothing again."""
        body = encode(wire.AddRequest(messages=[one.message for one in batch], key=new_key()))
        reply = await self.core.call(
            Request(method="POST", target=f"{self.path}/messages", decode=_add_reply, body=body, patient=False)
        )
        _check_count(batch, reply.messages)
        return [self._added(one, item) for one, item in zip(batch, reply.messages, strict=True)]

    def _added(self, sent: Outgoing, item: wire.AddedItem) -> Added | TenantqError:
        if item.error is not None:
            return from_item(item.error, tenant=self._tenant, queue=self._queue)
        # Without a key of the caller's it is known only from an earlier try of this very request.
        return Added(item.id or "", item.duplicate and sent.own_key)

    # ---- polling ----

    async def poll(self, max: int, wait_ms: int, lease_ms: int | None, consumer: str | None) -> list[Leased]:
        """Lease messages, together with others who poll with the same lease."""
        self.core.check_open()
        key = (lease_ms, consumer, wait_ms > 0)
        lane = self._polls.get(key)
        if lane is None:

            async def one_poll(max: int, wait_ms: int, stop: asyncio.Future[None]) -> list[Leased]:
                return await self._ask(max, wait_ms, lease_ms, consumer, stop)

            lane = PollLane(self.core, one_poll, self.release_quietly)
            if self.core.settings.coalesce:
                self._polls = {known: one for known, one in self._polls.items() if not one.idle} | {key: lane}
        return await lane.poll(max, wait_ms)

    async def _ask(
        self,
        max: int,
        wait_ms: int,
        lease_ms: int | None,
        consumer: str | None,
        stop: asyncio.Future[None],
    ) -> list[Leased]:
        def body(wait_ms: int) -> wire.PollRequest:
            return wire.PollRequest(max=max, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer)

        return await ask(self.core, f"{self.path}/poll", body, wait_ms, lease_ms, stop)

    async def release_quietly(self, leases: Sequence[Leased]) -> None:
        """Give back what nobody wants any more; where that fails the leases run out by themselves."""
        try:
            for start in range(0, len(leases), ITEMS_MAX):
                receipts = [one.item.receipt for one in leases[start : start + ITEMS_MAX]]
                await self._settle_call("release", encode(wire.ReleaseRequest(receipts=receipts)))
        except TenantqError as error:
            log.info("%d messages of %s could not be released: %s", len(leases), self._queue, error)

    # ---- settling ----

    async def ack(self, settling: Settling) -> None:
        """Finish one message, together with others."""
        await self._settle(("ack",), settling)

    async def nack(self, settling: Settling, delay_ms: int | None, reason: str) -> None:
        """Give one failed message back."""
        await self._settle(("nack", delay_ms, reason), settling)

    async def release(self, settling: Settling) -> None:
        """Give one message back untouched."""
        await self._settle(("release",), settling)

    async def extend(self, settling: Settling, lease_ms: int) -> int | None:
        """Have one lease end ``lease_ms`` from now; return when that is on the server's wall clock."""
        return await self._settle(("extend", lease_ms), settling)

    async def _settle(self, what: tuple[Any, ...], settling: Settling) -> int | None:
        self.core.check_open()
        lane = self._settles.get(what)
        if lane is None:

            async def send(batch: Sequence[Settling]) -> list[int | TenantqError | None]:
                return await self.send_settle(what, batch)

            lane = Lane(self.core, send)
            if self.core.settings.coalesce:
                self._settles[what] = lane
        try:
            return await lane.put(settling, settling.size)
        finally:
            if lane.idle and len(what) > 1:  # reasons and delays come and go
                self._settles.pop(what, None)

    async def ack_batch(self, batch: Sequence[Settling]) -> list[int | TenantqError | None]:
        """Finish messages in one request; if it is refused as a whole, together with others in as many as it takes."""
        self.core.check_open()
        try:
            return await self.send_settle(("ack",), batch)
        except (Limited, Invalid, TooLarge) as error:
            if error.maybe_done:
                raise
            if len(batch) == 1 and not isinstance(error, Limited):
                return [error]
        return await _each(self._settle(("ack",), one) for one in batch)

    async def send_settle(self, what: tuple[Any, ...], batch: Sequence[Settling]) -> list[int | TenantqError | None]:
        """Send one request and tell what became of each lease.

        A receipt that is lost although its lease cannot have ended yet, after a try whose answer never came, was settled by that
        try: it counts as done. Where the lease may have ended, nobody can know, and the caller learns that it is lost.
        """
        kind, *arguments = what
        receipts = [one.receipt for one in batch]
        body: msgspec.Struct
        if kind == "ack":
            results = [one.result for one in batch]
            body = wire.AckRequest(receipts=receipts, results=results if any(results) else None)
        elif kind == "nack":
            body = wire.NackRequest(receipts=receipts, delay_ms=arguments[0], reason=arguments[1])
        elif kind == "extend":
            body = wire.ExtendRequest(receipts=receipts, lease_ms=arguments[0])
        else:
            body = wire.ReleaseRequest(receipts=receipts)
        answer_ms = max(_EXTEND_MS_MIN, arguments[0] // _TRIES_PER_LEASE) if kind == "extend" else None
        items, doubtful = await self._settle_call(kind, encode(body), answer_ms)
        _check_count(batch, items)
        now = self.core.clock.monotonic_ms()
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
                error.add_note("an earlier try of this call got no answer: it may have settled the message")
            outcomes.append(error)
        return outcomes

    async def _settle_call(
        self, kind: str, body: bytes, answer_ms: int | None = None
    ) -> tuple[list[wire.SettledItem], bool]:
        request = Request(
            method="POST",
            target=f"{self.path}/{kind}",
            decode=_settle_reply,
            body=body,
            patient=False,
            answer_ms=answer_ms,
        )
        answer = await self.core.answer(request)
        return answer.value.results, answer.doubtful


def _check_count(asked: Sequence[object], answered: Sequence[object]) -> None:
    if len(asked) != len(answered):
        error = BadAnswer(f"the answer is for {len(answered)} items, and {len(asked)} were sent: check the address")
        error.maybe_done = True
        raise error


async def _each(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | TenantqError]:
    """Return what each call returned, or its error."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    told: list[T | TenantqError] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, TenantqError):
            raise outcome
        told.append(outcome)
    return told


async def ask(
    core: Core,
    target: str,
    body: Callable[[int], msgspec.Struct],
    wait_ms: int,
    lease_ms: int | None,
    stop: asyncio.Future[None],
) -> list[Leased]:
    """Poll once; ``body`` makes the request for a length of waiting.

    A poll whose answer was lost is asked again for the rest of its time; what it had leased comes back when those leases end.
    """

    def request(wait_ms: int) -> Request[wire.PollReply]:
        return Request(
            method="POST",
            target=target,
            decode=_poll_reply,
            body=encode(body(wait_ms)),
            wait_ms=wait_ms,
            stop=stop,
            shorten=request,
        )

    asked_ms = core.clock.monotonic_ms()
    reply = await core.call(request(wait_ms))
    leases = []
    for item in reply.messages:
        length = lease_ms
        if length is None and reply.now_at is not None:
            length = max(1, item.lease_until - reply.now_at - _TOLD_WITHIN_MS)
        leases.append(Leased(item, length, asked_ms + (length or 0)))
    return leases


class QueueBook:
    """The queues that a client has to do with, each once; of very many, those that were asked for last.

    Any thread may ask for one. Whoever has one that the book has forgotten goes on with it.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self._lock = threading.Lock()
        self._calls: dict[str, QueueCalls] = {}
        self._fleets: dict[tuple[object, ...], PollLane[Leased]] = {}

    def of(self, tenant: str | None, queue: str) -> QueueCalls:
        """Return the calls of one queue; ``tenant`` None: the credential's own."""
        path = f"/v1/queues/{queue}" if tenant is None else f"/v1/tenants/{tenant}/queues/{queue}"
        with self._lock:
            found = self._calls.get(path)
            if found is None:
                if len(self._calls) >= _QUEUES_KEPT:
                    del self._calls[next(iter(self._calls))]
                found = self._calls[path] = QueueCalls(self.core, path, tenant, queue)
            return found

    async def poll_fleet(
        self,
        queue: str,
        tenants: list[str] | None,
        max: int,
        wait_ms: int,
        lease_ms: int | None,
        consumer: str | None,
    ) -> list[Leased]:
        """Lease messages of one queue name in many tenants, together with others who poll just so."""

        async def one_poll(max: int, wait_ms: int, stop: asyncio.Future[None]) -> list[Leased]:
            def body(wait_ms: int) -> wire.FleetPollRequest:
                return wire.FleetPollRequest(
                    queue=queue, tenants=tenants, max=max, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer
                )

            return await ask(self.core, "/v1/poll", body, wait_ms, lease_ms, stop)

        self.core.check_open()
        key = (queue, None if tenants is None else tuple(tenants), lease_ms, consumer, wait_ms > 0)
        lane = self._fleets.get(key)
        if lane is None:
            self._fleets = {known: one for known, one in self._fleets.items() if not one.idle}
            lane = self._fleets[key] = PollLane(self.core, one_poll, self._release_fleet)
        return await lane.poll(max, wait_ms)

    async def _release_fleet(self, leases: Sequence[Leased]) -> None:
        places: dict[tuple[str, str], list[Leased]] = {}
        for leased in leases:
            places.setdefault((leased.item.tenant, leased.item.queue), []).append(leased)
        for (tenant, queue), some in places.items():
            await self.of(tenant, queue).release_quietly(some)
