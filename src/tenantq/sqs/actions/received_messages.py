"""ReceiveMessage, DeleteMessage, ChangeMessageVisibility, and their batches."""

import base64
from collections.abc import Sequence
from typing import Any, Final

from tenantq.domain.config import SqsQueue
from tenantq.domain.message import Delivery, Outcome
from tenantq.errors import Invalid, LeaseLost, TenantqError
from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.actions.batch import check_entries, outcomes
from tenantq.sqs.actions.sent_messages import DEDUPLICATION_ID, GROUP_ID, checked_id, sequence_number
from tenantq.sqs.addresses import account_of
from tenantq.sqs.failures import SqsFailure, checked_number, invalid_for_type, invalid_value, missing
from tenantq.sqs.message_attributes import OWN, TRACE_HEADER, attributes_digest, body_digest, chosen, typed
from tenantq.sqs.queue_attributes import VISIBILITY_S_MAX
from tenantq.sqs.requests import ActionBatch, ChangeMessageVisibility, DeleteMessage, ReceiveMessage
from tenantq.sqs.sqs_call import ActionResult, SqsCall
from tenantq.sqs.xml_text import is_legal

MESSAGES_MAX: Final = 10
WAIT_S_MAX: Final = 20
_BRIEFLY_MS: Final = 1_000  # a lease that ends before the reply is sent

# ---- receiving ----


async def receive_message(sqs_call: SqsCall) -> ActionResult:
    """Lease up to ten messages, with an optional wait for the first."""
    given, queue = await sqs_call.read_with_queue(ReceiveMessage)
    sqs = queue.config.sqs or SqsQueue()
    most = 1 if given.max_number_of_messages is None else given.max_number_of_messages
    checked_number("MaxNumberOfMessages", most, 1, MESSAGES_MAX)
    wait_s = sqs.wait_s if given.wait_time_seconds is None else given.wait_time_seconds
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise invalid_value("WaitTimeSeconds", wait_s, f"Must be >= 0 and <= {WAIT_S_MAX}, if provided.")
    attempt_id = given.receive_request_attempt_id
    if attempt_id:
        if not queue.fifo:
            raise invalid_for_type("ReceiveRequestAttemptId", attempt_id)
        checked_id("ReceiveRequestAttemptId", attempt_id)
    visibility_s = given.visibility_timeout
    if visibility_s is not None:
        _check_visibility(visibility_s)
    at_once = sqs.visible_at_once if visibility_s is None else visibility_s == 0
    lease_ms = _BRIEFLY_MS if at_once else visibility_s * 1_000 if visibility_s is not None else None
    polled = sqs_call.service.messages.poll(
        *sqs_call.at(queue),
        max=most,
        wait_ms=0 if sqs_call.is_closing else wait_s * 1_000,
        lease_ms=lease_ms,
        expire_at_once=at_once,
        whole_groups=True,
    )
    got: list[Delivery] = await sqs_call.waiting(polled, []) if wait_s else await polled
    if not got:
        return {}
    facts = {*(given.attribute_names or ()), *(given.message_system_attribute_names or ())}
    wanted = given.message_attribute_names or ()
    held_ms = lease_ms if lease_ms is not None else queue.config.lease_ms
    return {"Messages": [_shown(sqs_call, queue, one, facts, wanted, held_ms) for one in got]}


def _shown(
    sqs_call: SqsCall, queue: FoundQueue, one: Delivery, facts: set[str], wanted: Sequence[str], held_ms: int
) -> dict[str, Any]:
    text = body_text(one.body)
    shown: dict[str, Any] = {
        "MessageId": one.id,
        "ReceiptHandle": sqs_call.state.handles.handle(queue, one.receipt),
        "MD5OfBody": body_digest(one.body if text is not None else base64.b64encode(one.body)),
        "Body": text if text is not None else base64.b64encode(one.body).decode(),
    }
    if facts:
        known = _facts(sqs_call, queue, one, held_ms)
        asked = known if "All" in facts else {name: value for name, value in known.items() if name in facts}
        if asked:
            shown["Attributes"] = asked
    if wanted and one.attributes:
        attributes = chosen(typed(one.attributes), wanted)
        if attributes:
            shown["MD5OfMessageAttributes"] = attributes_digest(attributes)
            shown["MessageAttributes"] = {name: value.shown() for name, value in attributes.items()}
    return shown


def body_text(body: bytes) -> str | None:
    """Return a body as text, or None if it must be sent in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if is_legal(text) else None


def _facts(sqs_call: SqsCall, queue: FoundQueue, one: Delivery, held_ms: int) -> dict[str, str]:
    """Return the system attributes of a message."""
    known = {
        "SenderId": account_of(queue.tenant_id),
        "SentTimestamp": str(one.added_at),
        "ApproximateReceiveCount": str(one.source_attempts + one.attempt),
        "ApproximateFirstReceiveTimestamp": str(one.first_at or one.lease_until - held_ms),
    }
    for name in (GROUP_ID, DEDUPLICATION_ID, TRACE_HEADER):
        if (value := one.attributes.get(OWN + name)) is not None:
            known[name] = value
    if one.group is not None:
        known[GROUP_ID] = one.group
    if queue.fifo:
        known["SequenceNumber"] = sequence_number(one.raw_id)
    if one.origin:
        if queue.fifo:
            known[DEDUPLICATION_ID] = one.id  # set by the move to the dead-letter queue
        known["DeadLetterQueueSourceArn"] = sqs_call.arn(queue.tenant_id, one.origin)
    return known


# ---- settling ----


async def delete_message(sqs_call: SqsCall) -> ActionResult:
    """Delete a message. On a standard queue any of its receipts works, and repeating is harmless."""
    given, queue = await sqs_call.read_with_queue(DeleteMessage)
    receipt = await _receipt(sqs_call, queue, given.receipt_handle)
    (outcome,) = await sqs_call.service.settlement.ack_any(*sqs_call.at(queue), [receipt])
    if not outcome.ok:
        raise _not_deleted(outcome, given.receipt_handle)
    return None


async def delete_message_batch(sqs_call: SqsCall) -> ActionResult:
    """Delete up to ten messages."""
    given, queue = await sqs_call.read_with_queue(ActionBatch[DeleteMessage])
    entries = check_entries(given.entries, "DeleteMessageBatchRequestEntry")
    receipts = [await _receipt_or_failure(sqs_call, queue, entry.receipt_handle) for entry in entries]
    good = [one for one in receipts if isinstance(one, str)]
    settled = iter(await sqs_call.service.settlement.ack_any(*sqs_call.at(queue), good) if good else ())
    done: list[dict[str, Any] | TenantqError] = []
    for entry, receipt in zip(entries, receipts, strict=True):
        if isinstance(receipt, TenantqError):
            done.append(receipt)
            continue
        outcome = next(settled)
        done.append({} if outcome.ok else _not_deleted(outcome, entry.receipt_handle))
    return outcomes(entries, done)


def _not_deleted(outcome: Outcome, handle: str | None) -> TenantqError:
    if outcome.error is None or isinstance(outcome.error, LeaseLost):
        return invalid_value("ReceiptHandle", handle, "The receipt handle has expired.")
    return outcome.error


async def change_message_visibility(sqs_call: SqsCall) -> ActionResult:
    """Change the visibility timeout of a message."""
    given, queue = await sqs_call.read_with_queue(ChangeMessageVisibility)
    receipt = await _receipt(sqs_call, queue, given.receipt_handle)
    (done,) = await _change(sqs_call, queue, _visibility_s(given), [receipt])
    if isinstance(done, TenantqError):
        raise done
    return None


async def change_message_visibility_batch(sqs_call: SqsCall) -> ActionResult:
    """Change the visibility timeouts of up to ten messages."""
    given, queue = await sqs_call.read_with_queue(ActionBatch[ChangeMessageVisibility])
    entries = check_entries(given.entries, "ChangeMessageVisibilityBatchRequestEntry")
    done: list[dict[str, Any] | TenantqError] = [{} for _ in entries]
    alike: dict[int, list[tuple[int, str]]] = {}  # by timeout: positions and receipts
    for place, entry in enumerate(entries):
        try:
            receipt = await _receipt(sqs_call, queue, entry.receipt_handle)
            alike.setdefault(_visibility_s(entry), []).append((place, receipt))
        except SqsFailure as failure:
            done[place] = failure
    for seconds, ones in alike.items():
        changed = await _change(sqs_call, queue, seconds, [receipt for _, receipt in ones])
        for (place, _), one in zip(ones, changed, strict=True):
            done[place] = one
    return outcomes(entries, done)


async def _change(
    sqs_call: SqsCall, queue: FoundQueue, seconds: int, receipts: list[str]
) -> list[dict[str, Any] | TenantqError]:
    changed = await sqs_call.service.settlement.change_leases(
        *sqs_call.at(queue), receipts, lease_ms=seconds * 1_000, held_ms_max=VISIBILITY_S_MAX * 1_000
    )
    return [
        {} if one.ok else _not_changed(sqs_call, queue, seconds, receipt, one)
        for one, receipt in zip(changed, receipts, strict=True)
    ]


def _not_changed(sqs_call: SqsCall, queue: FoundQueue, seconds: int, receipt: str, outcome: Outcome) -> TenantqError:
    if isinstance(outcome.error, Invalid):
        return invalid_value(
            "VisibilityTimeout",
            seconds,
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_S_MAX} seconds]",
        )
    if outcome.error is None or isinstance(outcome.error, LeaseLost):
        handle = sqs_call.state.handles.handle(queue, receipt)
        return invalid_value(
            "ReceiptHandle", handle, "Message does not exist or is not available for visibility timeout change."
        )
    return outcome.error


def _visibility_s(given: ChangeMessageVisibility) -> int:
    if given.visibility_timeout is None:
        raise missing("VisibilityTimeout")
    return _check_visibility(given.visibility_timeout)


def _check_visibility(seconds: int) -> int:
    return checked_number("VisibilityTimeout", seconds, 0, VISIBILITY_S_MAX)


async def _receipt(sqs_call: SqsCall, queue: FoundQueue, handle: str | None) -> str:
    """Return the receipt of a handle. An unknown handle may be another tenant's, so it is noted."""
    if not handle:
        raise missing("ReceiptHandle")
    try:
        return sqs_call.state.handles.receipt(queue, handle)
    except SqsFailure:
        lost = LeaseLost(tenant=queue.tenant, queue=queue.name)
        await sqs_call.service.sqs_lookup.note_refused(sqs_call.call, queue.tenant, sqs_call.action, queue.name, lost)
        raise


async def _receipt_or_failure(sqs_call: SqsCall, queue: FoundQueue, handle: str | None) -> str | TenantqError:
    try:
        return await _receipt(sqs_call, queue, handle)
    except SqsFailure as failure:
        return failure
