"""FIFO queues over Amazon SQS: order in a group, one batch of a group at a time, each message once in five minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.sqs.refusals import code

if TYPE_CHECKING:
    from tests.contract.sqs.sqs_server import SqsServer


@pytest.fixture
def fifo(sqs: Any) -> str:
    """Create a FIFO queue with content-based deduplication."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "10"}
    url: str = sqs.create_queue(QueueName="line.fifo", Attributes=attributes)["QueueUrl"]
    return url


def send(sqs: Any, queue: str, *bodies: str, **options: Any) -> list[dict[str, Any]]:
    """Send messages, each to the group that its name starts with."""
    return [
        sqs.send_message(QueueUrl=queue, MessageBody=body, **{"MessageGroupId": body.partition("-")[0], **options})
        for body in bodies
    ]


def take(sqs: Any, queue: str, most: int = 10, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of a receive."""
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=most, **options)
    found: list[dict[str, Any]] = answer.get("Messages", [])
    return found


def bodies(got: list[dict[str, Any]]) -> list[str]:
    """Return the bodies, in order."""
    return [one["Body"] for one in got]


def test_group_is_ordered_and_blocked_while_in_flight(server: SqsServer, sqs: Any, fifo: str) -> None:
    """Several messages are received together; after deletion or expiry, the next follow."""
    send(sqs, fifo, "a-1", "b-1", "a-2", "a-3", "a-4", "c-1")
    first = take(sqs, fifo, 2)
    assert bodies(first) == ["a-1", "a-2"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first[0]["ReceiptHandle"])
    assert bodies(take(sqs, fifo, VisibilityTimeout=600)) == ["b-1", "c-1"]
    server.clock.advance(10_001)
    assert bodies(take(sqs, fifo)) == ["a-2", "a-3", "a-4"]


def test_expired_handle_does_not_delete(server: SqsServer, sqs: Any, fifo: str) -> None:
    """Another consumer may have the message by then. Deleting twice succeeds."""
    send(sqs, fifo, "a-1")
    (old,) = take(sqs, fifo)
    server.clock.advance(10_001)
    expired = {"QueueUrl": fifo, "ReceiptHandle": old["ReceiptHandle"]}
    assert code(sqs.delete_message, **expired) == "InvalidParameterValue"
    (new,) = take(sqs, fifo)
    assert code(sqs.delete_message, **expired) == "InvalidParameterValue"
    for _ in range(2):
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=new["ReceiptHandle"])
    sqs.delete_message(**expired)


def test_deduplication_id_works_for_five_minutes(server: SqsServer, sqs: Any, fifo: str) -> None:
    """Body and group do not matter; the duplicate gets the first ID, even after that message was deleted."""
    (first,) = send(sqs, fifo, "a-1", MessageDeduplicationId="d")
    (again,) = send(sqs, fifo, "b-other", MessageDeduplicationId="d")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    one, two = send(sqs, fifo, "c-1", "c-1")
    assert one["MessageId"] == two["MessageId"]
    got = take(sqs, fifo, AttributeNames=["All"])
    assert bodies(got) == ["a-1", "c-1"]
    facts = got[0]["Attributes"]
    assert (facts["MessageGroupId"], facts["MessageDeduplicationId"]) == ("a", "d")
    assert facts["SequenceNumber"] == first["SequenceNumber"] < got[1]["Attributes"].get("SequenceNumber", "")
    server.clock.advance(300_001)
    (later,) = send(sqs, fifo, "a-1", MessageDeduplicationId="d")
    assert later["MessageId"] != first["MessageId"]


def test_deduplication_scope_group_separates_ids_by_group(sqs: Any) -> None:
    """The same ID in two groups is two messages."""
    attributes = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    url = sqs.create_queue(QueueName="own.fifo", Attributes=attributes)["QueueUrl"]
    send(sqs, url, "a-1", "b-1", "a-2", MessageDeduplicationId="d")
    assert bodies(take(sqs, url)) == ["a-1", "b-1"]


def test_fifo_message_needs_a_group_and_a_deduplication_id(sqs: Any, fifo: str) -> None:
    """Content-based deduplication replaces the ID, and a delay per message is refused."""
    message = {"QueueUrl": fifo, "MessageBody": "m"}
    assert code(sqs.send_message, **message) == "MissingParameter"
    assert code(sqs.send_message, **message, MessageGroupId="g", DelaySeconds=2) == "InvalidParameterValue"
    for wrong in ("x" * 129, "a b", "\u00e4"):
        assert code(sqs.send_message, **message, MessageGroupId=wrong) == "InvalidParameterValue"
        assert code(sqs.send_message, **message, MessageGroupId="g", MessageDeduplicationId=wrong) == (
            "InvalidParameterValue"
        )
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"ContentBasedDeduplication": "false"})
    assert code(sqs.send_message, **message, MessageGroupId="g") == "InvalidParameterValue"
    entries = [{"Id": "1", "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}]
    for lacking in ({"MessageGroupId": "g"}, {"MessageDeduplicationId": "e"}):
        batch = [*entries, {"Id": "2", "MessageBody": "m", **lacking}]
        assert code(sqs.send_message_batch, QueueUrl=fifo, Entries=batch) == "InvalidParameterValue"
    assert take(sqs, fifo) == []


def test_group_on_a_standard_queue_is_returned_and_does_not_block(sqs: Any, queue: str) -> None:
    """This matches fair queues: messages are delivered in turn."""
    send(sqs, queue, "a-1", "b-1", "a-2")
    got = take(sqs, queue, AttributeNames=["MessageGroupId"])
    assert [(one["Body"], one["Attributes"]["MessageGroupId"]) for one in got] == [
        ("a-1", "a"), ("b-1", "b"), ("a-2", "a"),
    ]  # fmt: skip
