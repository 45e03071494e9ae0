"""SendMessage and SendMessageBatch."""

import re
from hashlib import sha256
from typing import Any, Final

import msgspec

from tenantq.domain.config import SQS_MESSAGE_BYTES_MAX, SqsQueue
from tenantq.domain.message import AddResult, NewMessage
from tenantq.errors import TenantqError
from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.actions.batch import check_entries, outcomes
from tenantq.sqs.failures import (
    BATCH_TOO_LONG,
    INVALID_CONTENTS,
    SqsFailure,
    invalid,
    invalid_for_type,
    invalid_value,
    missing,
)
from tenantq.sqs.message_attributes import (
    TRACE_HEADER,
    TypedValue,
    attributes_digest,
    body_digest,
    read_attributes,
    read_value,
    size_of,
    stored,
)
from tenantq.sqs.requests import ActionBatch, SendMessage
from tenantq.sqs.sqs_call import ActionResult, SqsCall
from tenantq.sqs.xml_text import ILLEGAL_TEXT, is_legal

DELAY_S_MAX: Final = 900
DEDUPLICATION_ID: Final = "MessageDeduplicationId"  # stored with the message, because the key is not returned
GROUP_ID: Final = "MessageGroupId"  # stored with the message on standard queues, without effect
_FIFO_ID: Final = re.compile(r"""[A-Za-z0-9!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}""")


class Outgoing(msgspec.Struct, frozen=True):
    """A message to add, and the digests that its sender gets back."""

    message: NewMessage
    size: int
    reply: dict[str, Any]


async def send_message(sqs_call: SqsCall) -> ActionResult:
    """Send one message."""
    given, queue = await sqs_call.read_with_queue(SendMessage)
    outgoing = _outgoing(sqs_call, queue, given)
    (added,) = await sqs_call.service.messages.add(*sqs_call.at(queue), [outgoing.message])
    if added.error is not None:
        raise added.error
    return _sent(queue, outgoing, added)


async def send_message_batch(sqs_call: SqsCall) -> ActionResult:
    """Send up to ten messages. One that fails does not affect the others."""
    given, queue = await sqs_call.read_with_queue(ActionBatch[SendMessage])
    entries = check_entries(given.entries, "SendMessageBatchRequestEntry")
    prepared: list[Outgoing | TenantqError] = []
    for entry in entries:
        _check_fifo(queue, entry)  # a message without these fails the whole batch
        try:
            prepared.append(_outgoing(sqs_call, queue, entry, "cannot be validated"))
        except SqsFailure as failure:
            prepared.append(failure)
    size = sum(_sent_bytes(entry) for entry in entries)
    if size > SQS_MESSAGE_BYTES_MAX:
        text = f"Batch requests cannot be longer than {SQS_MESSAGE_BYTES_MAX} bytes. You have sent {size} bytes."
        raise SqsFailure(BATCH_TOO_LONG, text)
    messages = [one.message if isinstance(one, Outgoing) else one for one in prepared]
    results = await sqs_call.service.messages.add(*sqs_call.at(queue), messages)
    done = [
        one if isinstance(one, TenantqError) else added.error or _sent(queue, one, added)
        for one, added in zip(prepared, results, strict=True)
    ]
    return outcomes(entries, done)


def _sent_bytes(given: SendMessage) -> int:
    """Return the size of a message as sent, valid or not."""
    try:
        attributes = size_of(read_attributes(given.message_attributes))
    except SqsFailure:
        attributes = 0  # refused later
    return len((given.message_body or "").encode(errors="replace")) + attributes


def _check_fifo(queue: FoundQueue, given: SendMessage) -> None:
    """Raise SqsFailure if a message lacks what FIFO queues require."""
    if not queue.fifo:
        return
    if not given.message_group_id:
        raise invalid(missing("MessageGroupId").message)
    if given.message_deduplication_id is None and not (queue.config.sqs or SqsQueue()).content_based_deduplication:
        raise _no_deduplication()


def _no_deduplication() -> SqsFailure:
    return invalid(
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )


def _outgoing(sqs_call: SqsCall, queue: FoundQueue, given: SendMessage, problem: str = "are invalid") -> Outgoing:
    """Return the message to add. Raises SqsFailure if it is invalid."""
    sqs = queue.config.sqs or SqsQueue()
    text = given.message_body
    if not text:
        raise missing("MessageBody")
    if not is_legal(text):
        raise SqsFailure(INVALID_CONTENTS, ILLEGAL_TEXT)
    body = text.encode()
    attributes = read_attributes(given.message_attributes)
    size = len(body) + size_of(attributes)
    if size > sqs.message_bytes_max:
        raise invalid(
            f"One or more parameters {problem}. Reason: Message must be shorter than {sqs.message_bytes_max} bytes."
        )
    reply: dict[str, Any] = {"MD5OfMessageBody": body_digest(body)}
    if attributes:
        reply["MD5OfMessageAttributes"] = attributes_digest(attributes)
    own: dict[str, str] = {}
    trace = _trace_header(given)
    if trace:
        reply["MD5OfMessageSystemAttributes"] = attributes_digest(trace)
        own[TRACE_HEADER] = str(trace[TRACE_HEADER].value)
    elif sqs_call.trace_header:
        own[TRACE_HEADER] = sqs_call.trace_header
    group = _group(queue, given, own)
    message = NewMessage(
        body=body,
        delay_ms=_delay_s(queue, sqs, given) * 1_000,
        key=_key(queue, sqs, given, body, own),
        key_alone=True,
        group=group,
        attributes=stored(attributes, own) if attributes or own else {},
    )
    return Outgoing(message, size, reply)


def _trace_header(given: SendMessage) -> dict[str, TypedValue]:
    """Return the trace header, the only system attribute that a sender may set."""
    sent = given.message_system_attributes or {}
    for name in sent:
        if name != TRACE_HEADER:
            raise invalid(f"Message system attribute name '{name[:80]}' is invalid.")
    found = {name: read_value(name, value) for name, value in sent.items()}
    for name, value in found.items():
        if value.type != "String":
            raise invalid(f"Message system attribute '{name}' has the type '{value.type}'; it must be String.")
    return found


def _delay_s(queue: FoundQueue, sqs: SqsQueue, given: SendMessage) -> int:
    delay = given.delay_seconds
    if delay is None:
        return sqs.delay_s
    if not 0 <= delay <= DELAY_S_MAX:
        raise invalid_value("DelaySeconds", delay, f"DelaySeconds must be >= 0 and <= {DELAY_S_MAX}.")
    if delay and queue.fifo:
        raise invalid_for_type("DelaySeconds", delay)
    return delay or (sqs.delay_s if queue.fifo else 0)


def _group(queue: FoundQueue, given: SendMessage, own: dict[str, str]) -> str | None:
    """Return the ordering group of a message. On a standard queue it has none; the group ID is only stored."""
    group = given.message_group_id
    if group is None or (queue.fifo and not group):
        if queue.fifo:
            raise missing("MessageGroupId")
        return None
    checked_id(GROUP_ID, group)
    if queue.fifo:
        return group
    own[GROUP_ID] = group
    return None


def _key(queue: FoundQueue, sqs: SqsQueue, given: SendMessage, body: bytes, own: dict[str, str]) -> str | None:
    """Return the idempotency key of a message to a FIFO queue, and store the sender's deduplication ID."""
    id = given.message_deduplication_id
    if not queue.fifo:
        if id is not None:
            raise invalid_for_type("MessageDeduplicationId", id)
        return None
    if id is None:
        if not sqs.content_based_deduplication:
            raise _no_deduplication()
        id = sha256(body).hexdigest()
    own[DEDUPLICATION_ID] = checked_id("MessageDeduplicationId", id)
    if sqs.deduplication_scope == "messageGroup":
        return sha256(f"{given.message_group_id}\n{id}".encode()).hexdigest()
    return id


def checked_id(name: str, value: str) -> str:
    """Return an ID chosen by the client. Raises SqsFailure if it is malformed."""
    if _FIFO_ID.fullmatch(value) is None:
        raise invalid_value(
            name, value, f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        )
    return value


def sequence_number(raw_id: bytes) -> str:
    """Return the sequence number of a message. It grows with every message."""
    return str(int.from_bytes(raw_id))


def _sent(queue: FoundQueue, outgoing: Outgoing, added: AddResult) -> dict[str, Any]:
    reply = {"MessageId": added.id, **outgoing.reply}
    if queue.fifo:
        reply["SequenceNumber"] = sequence_number(added.raw_id)
    return reply
