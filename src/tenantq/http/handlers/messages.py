"""Messages: add, poll, settle, read."""

from collections.abc import Coroutine, Sequence
from typing import Any, Final

import msgspec

from tenantq.domain.limits import WaitMs
from tenantq.domain.message import AddResult, Delivery, Facts, MessagePage, NewMessage, Outcome, Result
from tenantq.errors import TenantqError
from tenantq.http.reply import JsonReply, json_reply, list_reply
from tenantq.http.request import QueryRequest, Request
from tenantq.runtime.loop_slices import SLICE_BYTES, SLICE_ITEMS, convert, next_slice, slices_of
from tenantq.service.problems import item_error, refusal_of_all
from tenantq.service.service import Service
from tenantq.wire import messages as wire
from tenantq.wire.json_bytes import base64_pieces, bytes_of, text_or_base64

_Polled = JsonReply[wire.PollReply] | Coroutine[Any, Any, JsonReply[wire.PollReply]]

NO_MESSAGES: Final = json_reply(wire.PollReply(messages=[]))
STILL_PENDING: Final = json_reply(wire.ResultReply(status="pending"))
_SAME_IN_FACTS: Final = ("id", "tenant", "queue", "state", "size", "priority", "attributes", "group", "attempts", "max_attempts",
                         "added_at", "visible_at", "expires_at", "lease_until")  # fmt: skip


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for a pending result."""

    wait_ms: WaitMs = 0


# ---- adding ----


async def add(service: Service, request: Request, body: wire.AddRequest) -> JsonReply[wire.AddReply]:
    """Add messages."""
    if len(request.body) <= SLICE_BYTES and len(body.messages) <= SLICE_ITEMS:
        messages = [_new_message(one) for one in body.messages]
    else:
        messages = await _large_batch(body.messages)
    added = await service.messages.add(request.call, request.tenant, request.queue, messages, body.key)
    refusal = refusal_of_all(added)
    if refusal is not None:
        raise refusal
    return json_reply(wire.AddReply(messages=[_added_item(one) for one in added]))


async def _large_batch(given: Sequence[wire.WireMessage]) -> list[NewMessage | TenantqError]:
    """Return the messages of a large batch, converted in slices."""
    messages: list[NewMessage | TenantqError] = []
    for part in slices_of(given, _body_chars):
        if messages:
            await next_slice()
        for one in part:
            is_long = one.body is None and one.body_base64 is not None and len(one.body_base64) > SLICE_BYTES
            messages.append(await _long_message(one) if is_long else _new_message(one))
    return messages


async def _long_message(message: wire.WireMessage) -> NewMessage | TenantqError:
    pieces: list[bytes] = []
    try:
        for piece in base64_pieces(message.body_base64 or "", "body"):
            pieces.append(piece)
            await next_slice()
    except TenantqError as error:
        return error
    return _new_message(message, b"".join(pieces))


def _body_chars(message: wire.WireMessage) -> int:
    return len(message.body or message.body_base64 or "")


def _new_message(message: wire.WireMessage, body: bytes | None = None) -> NewMessage | TenantqError:
    """Return the message of an item, or its error. ``body`` is its body if that was decoded before."""
    try:
        return NewMessage(
            body=bytes_of(message.body, message.body_base64, "body") if body is None else body,
            priority=message.priority, delay_ms=message.delay_ms, ttl_ms=message.ttl_ms, key=message.key,
            group=message.group, attributes=message.attributes, max_attempts=message.max_attempts,
        )  # fmt: skip
    except TenantqError as error:
        return error


def _added_item(added: AddResult) -> wire.AddedItem:
    if added.error is not None:
        return wire.AddedItem(error=item_error(added.error))
    return wire.AddedItem(id=added.id, duplicate=added.duplicate)


# ---- polling ----


async def poll(service: Service, request: Request, body: wire.PollRequest) -> _Polled:
    """Lease messages, optionally waiting for the first."""
    deliveries = await service.messages.poll(
        request.call, request.tenant, request.queue, max=body.max, wait_ms=body.wait_ms, lease_ms=body.lease_ms,
        consumer=body.consumer,
    )  # fmt: skip
    return _delivered(request, deliveries)


async def fleet_poll(service: Service, request: Request, body: wire.FleetPollRequest) -> _Polled:
    """Lease messages of one queue name across tenants, in fair turns."""
    deliveries = await service.fleet.poll(
        request.call, body.queue, tenants=body.tenants, max=body.max, wait_ms=body.wait_ms, lease_ms=body.lease_ms,
        consumer=body.consumer,
    )  # fmt: skip
    return _delivered(request, deliveries)


def _delivered(request: Request, deliveries: list[Delivery]) -> _Polled:
    """Return leased messages as a reply, or what encodes them in slices. That must not be cut short: they are leased."""
    if not deliveries:
        return NO_MESSAGES
    now_ms = request.context.clock.wall_ms()
    if len(deliveries) <= SLICE_ITEMS and sum([len(one.body) for one in deliveries]) <= SLICE_BYTES:
        return json_reply(wire.PollReply(messages=[_delivered_item(one) for one in deliveries], now_at=now_ms))
    return list_reply("messages", deliveries, _delivered_item, _body_bytes, {"now_at": now_ms})


def _body_bytes(one: Delivery | Facts) -> int:
    return len(one.body)


def _delivered_item(one: Delivery) -> wire.DeliveredItem:
    text, base64 = text_or_base64(one.body)
    return wire.DeliveredItem(
        id=one.id, receipt=one.receipt, body=text, body_base64=base64, attempt=one.attempt, priority=one.priority,
        attributes=one.attributes, group=one.group, added_at=one.added_at, lease_until=one.lease_until,
        tenant=one.tenant, queue=one.queue,
    )  # fmt: skip


# ---- settling ----


async def ack(service: Service, request: Request, body: wire.AckRequest) -> JsonReply[wire.SettleReply]:
    """Acknowledge messages, with or without results."""
    results = None
    if body.results is not None:
        results = await convert(body.results, _result, _result_chars)
    outcomes = await service.settlement.ack(request.call, request.tenant, request.queue, body.receipts, results)
    return await _settled(body.receipts, outcomes)


async def nack(service: Service, request: Request, body: wire.NackRequest) -> JsonReply[wire.SettleReply]:
    """Return failed messages to the queue."""
    outcomes = await service.settlement.nack(
        request.call, request.tenant, request.queue, body.receipts, delay_ms=body.delay_ms, reason=body.reason
    )
    return await _settled(body.receipts, outcomes)


async def release(service: Service, request: Request, body: wire.ReleaseRequest) -> JsonReply[wire.SettleReply]:
    """Return messages to the queue without using an attempt."""
    outcomes = await service.settlement.release(request.call, request.tenant, request.queue, body.receipts)
    return await _settled(body.receipts, outcomes)


async def extend(service: Service, request: Request, body: wire.ExtendRequest) -> JsonReply[wire.SettleReply]:
    """Extend leases."""
    outcomes = await service.settlement.extend(
        request.call, request.tenant, request.queue, body.receipts, lease_ms=body.lease_ms
    )
    return await _settled(body.receipts, outcomes)


async def remove(service: Service, request: Request, body: wire.RemoveRequest) -> JsonReply[wire.RemoveReply]:
    """Delete messages by ID."""
    outcomes = await service.settlement.remove(request.call, request.tenant, request.queue, body.ids)
    return await list_reply("results", list(zip(body.ids, outcomes, strict=True)), _removed_item)


def _removed_item(removed: tuple[str, Outcome]) -> wire.RemovedItem:
    id, one = removed
    return wire.RemovedItem(id=id, ok=one.ok, error=None if one.error is None else item_error(one.error))


def _result_chars(result: wire.WireResult | None) -> int:
    return len(result.value or result.value_base64 or "") if result is not None else 0


def _result(result: wire.WireResult | None) -> Result | None:
    if result is None:
        return None
    value = None
    if result.value is not None or result.value_base64 is not None:
        value = bytes_of(result.value, result.value_base64, "value")
    return Result(result.status, value, result.error)


async def _settled(receipts: Sequence[str], outcomes: list[Outcome]) -> JsonReply[wire.SettleReply]:
    return await list_reply("results", list(zip(receipts, outcomes, strict=True)), _settled_item)


def _settled_item(settled: tuple[str, Outcome]) -> wire.SettledItem:
    receipt, one = settled
    error = None if one.error is None else item_error(one.error)
    return wire.SettledItem(receipt=receipt, ok=one.ok, error=error, lease_until=one.lease_until)


# ---- looking ----


async def peek(service: Service, request: Request, body: wire.PeekRequest) -> JsonReply[wire.PeekReply]:
    """Read waiting messages without leasing them."""
    page = await service.message_reads.peek(
        request.call, request.tenant, request.queue, limit=body.limit, cursor=body.cursor
    )
    return await page_reply(page)


async def page_reply(page: MessagePage) -> JsonReply[wire.PeekReply]:
    """Return a page of messages, encoded in slices."""
    cursor = {} if page.cursor is None else {"cursor": page.cursor}
    return await list_reply("messages", page.messages, facts_of, _body_bytes, cursor)


async def get(service: Service, request: Request, _: object) -> wire.MessageFacts:
    """Get a message."""
    return facts_of(await service.message_reads.get(request.call, request.tenant, request.queue, request.name))


async def result(service: Service, request: QueryRequest[WaitQuery], _: object) -> wire.ResultReply:
    """Get a message's result, optionally waiting for it."""
    found, hidden = await service.message_reads.result(
        request.call, request.tenant, request.queue, request.name, wait_ms=request.query.wait_ms
    )
    text, base64 = (None, None) if found.value is None else text_or_base64(found.value)
    return wire.ResultReply(
        status=found.status, value=text, value_base64=base64, value_hidden=hidden, error=found.error
    )


async def trace(service: Service, request: Request, _: object) -> wire.TraceReply:
    """Get a message's history from the journal."""
    rows = await service.message_reads.trace(request.call, request.tenant, request.queue, request.name)
    return wire.TraceReply(rows=[msgspec.to_builtins(row) for row in rows])


def facts_of(facts: Facts) -> wire.MessageFacts:
    """Return the wire form of a stored message."""
    text, base64 = (None, None) if facts.hidden or facts.body_error else text_or_base64(facts.body)
    return wire.MessageFacts(
        **{name: getattr(facts, name) for name in _SAME_IN_FACTS},
        body=text,
        body_base64=base64,
        body_hidden=facts.hidden,
        body_error=facts.body_error or None,
        encrypted=facts.encrypted,
        history=[wire.WireHistory(**msgspec.structs.asdict(one)) for one in facts.history],
        dead=wire.WireDeadLetter(**msgspec.structs.asdict(facts.dead)) if facts.dead is not None else None,
    )
