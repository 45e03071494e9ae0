"""Messages: add, poll, settle, read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.domain.limits import WaitMs
from tenantq.domain.message import NewMessage, Result
from tenantq.errors import TenantqError
from tenantq.http.reply import Reply, encode, json_reply
from tenantq.runtime.loop_slices import SLICE_BYTES, SLICE_ITEMS, SlicedWork, next_slice
from tenantq.service.problems import item_error, refusal_of_all
from tenantq.wire.json_bytes import bytes_of, text_or_base64
from tenantq.wire.messages import (
    AckRequest,
    AddedItem,
    AddReply,
    AddRequest,
    DeliveredItem,
    ExtendRequest,
    FleetPollRequest,
    MessageFacts,
    NackRequest,
    PeekRequest,
    PollReply,
    PollRequest,
    ReleaseRequest,
    RemovedItem,
    RemoveReply,
    RemoveRequest,
    ResultReply,
    SettledItem,
    SettleReply,
    TraceReply,
    WireDeadLetter,
    WireHistory,
    WireMessage,
    WireResult,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tenantq.domain.message import AddResult, Delivery, Facts, MessagePage, Outcome
    from tenantq.http.request import Request
    from tenantq.service import Service

NO_MESSAGES: Final = json_reply(PollReply(messages=[]))
STILL_PENDING: Final = json_reply(ResultReply(status="pending"))
_SAME_IN_FACTS: Final = ("id", "tenant", "queue", "state", "size", "priority", "attributes", "group", "attempts", "max_attempts",
                         "added_at", "visible_at", "expires_at", "lease_until")  # fmt: skip


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for a pending result."""

    wait_ms: WaitMs = 0


# ---- adding ----


async def add(service: Service, request: Request, body: AddRequest) -> Reply:
    """Add messages."""
    messages, work = [], SlicedWork()
    for message in body.messages:
        messages.append(_new_message(message))
        if work.ends_slice(len(message.body or message.body_base64 or "")):
            await next_slice()
    added = await service.messages.add(request.call, request.tenant, request.queue, messages, body.key)
    refusal = refusal_of_all(added)
    if refusal is not None:
        raise refusal
    return json_reply(AddReply(messages=[_added_item(one) for one in added]))


def _new_message(message: WireMessage) -> NewMessage | TenantqError:
    try:
        return NewMessage(
            body=bytes_of(message.body, message.body_base64, "body"),
            priority=message.priority,
            delay_ms=message.delay_ms,
            ttl_ms=message.ttl_ms,
            key=message.key,
            group=message.group,
            attributes=message.attributes,
            max_attempts=message.max_attempts,
        )
    except TenantqError as error:
        return error


def _added_item(added: AddResult) -> AddedItem:
    if added.error is not None:
        return AddedItem(error=item_error(added.error))
    return AddedItem(id=added.id, duplicate=added.duplicate)


# ---- polling ----


async def poll(service: Service, request: Request, body: PollRequest) -> Reply | Coroutine[Any, Any, Reply]:
    """Lease messages, optionally waiting for the first."""
    deliveries = await service.messages.poll(
        request.call,
        request.tenant,
        request.queue,
        max=body.max,
        wait_ms=body.wait_ms,
        lease_ms=body.lease_ms,
        consumer=body.consumer,
    )
    return _delivered(request, deliveries)


async def fleet_poll(service: Service, request: Request, body: FleetPollRequest) -> Reply | Coroutine[Any, Any, Reply]:
    """Lease messages of one queue name across tenants, in fair turns."""
    deliveries = await service.fleet.poll(
        request.call,
        body.queue,
        tenants=body.tenants,
        max=body.max,
        wait_ms=body.wait_ms,
        lease_ms=body.lease_ms,
        consumer=body.consumer,
    )
    return _delivered(request, deliveries)


def _delivered(request: Request, deliveries: list[Delivery]) -> Reply | Coroutine[Any, Any, Reply]:
    """Return leased messages as a reply, or what encodes them in slices. That must not be cut short: they are leased."""
    if not deliveries:
        return NO_MESSAGES
    if len(deliveries) <= SLICE_ITEMS and sum([len(one.body) for one in deliveries]) <= SLICE_BYTES:
        items = [_delivered_item(one) for one in deliveries]
        return json_reply(PollReply(messages=items, now_at=request.listener.clock.wall_ms()))
    return _encoded(request, deliveries)


async def _encoded(request: Request, deliveries: list[Delivery]) -> Reply:
    encoded, work = [], SlicedWork()
    for one in deliveries:
        encoded.append(msgspec.Raw(encode(_delivered_item(one))))
        if work.ends_slice(len(one.body)):
            await next_slice()
    return json_reply({"messages": encoded, "now_at": request.listener.clock.wall_ms()})


def _delivered_item(one: Delivery) -> DeliveredItem:
    text, base64 = text_or_base64(one.body)
    return DeliveredItem(
        id=one.id,
        receipt=one.receipt,
        body=text,
        body_base64=base64,
        attempt=one.attempt,
        priority=one.priority,
        attributes=one.attributes,
        group=one.group,
        added_at=one.added_at,
        lease_until=one.lease_until,
        tenant=one.tenant,
        queue=one.queue,
    )


# ---- settling ----


async def ack(service: Service, request: Request, body: AckRequest) -> Reply:
    """Acknowledge messages, with or without results."""
    results = None
    if body.results is not None:
        results = [None if result is None else _result(result) for result in body.results]
    outcomes = await service.settlement.ack(request.call, request.tenant, request.queue, body.receipts, results)
    return _settled(body.receipts, outcomes)


async def nack(service: Service, request: Request, body: NackRequest) -> Reply:
    """Return failed messages to the queue."""
    outcomes = await service.settlement.nack(
        request.call, request.tenant, request.queue, body.receipts, delay_ms=body.delay_ms, reason=body.reason
    )
    return _settled(body.receipts, outcomes)


async def release(service: Service, request: Request, body: ReleaseRequest) -> Reply:
    """Return messages to the queue without using an attempt."""
    outcomes = await service.settlement.release(request.call, request.tenant, request.queue, body.receipts)
    return _settled(body.receipts, outcomes)


async def extend(service: Service, request: Request, body: ExtendRequest) -> Reply:
    """Extend leases."""
    outcomes = await service.settlement.extend(
        request.call, request.tenant, request.queue, body.receipts, lease_ms=body.lease_ms
    )
    return _settled(body.receipts, outcomes)


async def remove(service: Service, request: Request, body: RemoveRequest) -> Reply:
    """Delete messages by ID."""
    outcomes = await service.settlement.remove(request.call, request.tenant, request.queue, body.ids)
    items = [
        RemovedItem(id=id, ok=one.ok, error=None if one.error is None else item_error(one.error))
        for id, one in zip(body.ids, outcomes, strict=True)
    ]
    return json_reply(RemoveReply(results=items))


def _result(result: WireResult) -> Result:
    value = None
    if result.value is not None or result.value_base64 is not None:
        value = bytes_of(result.value, result.value_base64, "value")
    return Result(result.status, value, result.error)


def _settled(receipts: Sequence[str], outcomes: list[Outcome]) -> Reply:
    items = [
        SettledItem(
            receipt=receipt,
            ok=one.ok,
            error=None if one.error is None else item_error(one.error),
            lease_until=one.lease_until,
        )
        for receipt, one in zip(receipts, outcomes, strict=True)
    ]
    return json_reply(SettleReply(results=items))


# ---- looking ----


async def peek(service: Service, request: Request, body: PeekRequest) -> Reply:
    """Read waiting messages without leasing them."""
    page = await service.message_reads.peek(
        request.call, request.tenant, request.queue, limit=body.limit, cursor=body.cursor
    )
    return await page_reply(page)


async def page_reply(page: MessagePage) -> Reply:
    """Return a page of messages, encoded in slices."""
    items, work = [], SlicedWork()
    for one in page.messages:
        items.append(msgspec.Raw(encode(facts_of(one))))
        if work.ends_slice(len(one.body)):
            await next_slice()
    return json_reply({"messages": items} if page.cursor is None else {"messages": items, "cursor": page.cursor})


async def get(service: Service, request: Request, _: object) -> Reply:
    """Get a message."""
    return json_reply(
        facts_of(await service.message_reads.get(request.call, request.tenant, request.queue, request.name))
    )


async def result(service: Service, request: Request, _: object) -> Reply:
    """Get a message's result, optionally waiting for it."""
    query: WaitQuery = request.query
    found, hidden = await service.message_reads.result(
        request.call, request.tenant, request.queue, request.name, wait_ms=query.wait_ms
    )
    text, base64 = (None, None) if found.value is None else text_or_base64(found.value)
    return json_reply(
        ResultReply(status=found.status, value=text, value_base64=base64, value_hidden=hidden, error=found.error)
    )


async def trace(service: Service, request: Request, _: object) -> Reply:
    """Get a message's history from the journal."""
    rows = await service.message_reads.trace(request.call, request.tenant, request.queue, request.name)
    return json_reply(TraceReply(rows=[msgspec.to_builtins(row) for row in rows]))


def facts_of(facts: Facts) -> MessageFacts:
    """Return the wire form of a stored message."""
    text, base64 = (None, None) if facts.hidden or facts.body_error else text_or_base64(facts.body)
    return MessageFacts(
        **{name: getattr(facts, name) for name in _SAME_IN_FACTS},
        body=text,
        body_base64=base64,
        body_hidden=facts.hidden,
        body_error=facts.body_error or None,
        encrypted=facts.encrypted,
        history=[WireHistory(**msgspec.structs.asdict(one)) for one in facts.history],
        dead=WireDeadLetter(**msgspec.structs.asdict(facts.dead)) if facts.dead is not None else None,
    )
