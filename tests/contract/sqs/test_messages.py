"""Messages over Amazon SQS with boto3: sent, received and deleted as its documentation says."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.message import NewMessage
from tenantq.service.call import Call
from tests.contract.sqs.refusals import code, refusal

if TYPE_CHECKING:
    from tests.contract.sqs.sqs_server import SqsServer

BODY = 'h\u00e4llo <&> "\r\n\t \U0001f600'


def receive(sqs: Any, queue: str, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of a receive."""
    messages: list[dict[str, Any]] = sqs.receive_message(QueueUrl=queue, **options).get("Messages", [])
    return messages


def test_message_is_received_as_sent_and_deleted(sqs: Any, queue: str) -> None:
    """Digests match those of the client; typed and system attributes are returned."""
    attributes = {
        "text": {"DataType": "String", "StringValue": "a text"},
        "number": {"DataType": "Number.int", "StringValue": "-5e3"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x10"},
        "na.me-1": {"DataType": "String", "StringValue": "x"},
    }
    sent = sqs.send_message(QueueUrl=queue, MessageBody=BODY, MessageAttributes=attributes)
    assert sent["MD5OfMessageBody"] == hashlib.md5(BODY.encode()).hexdigest()  # noqa: S324  # what the protocol has
    (got,) = receive(sqs, queue, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (got["MessageId"], got["Body"], got["MessageAttributes"]) == (sent["MessageId"], BODY, attributes)
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    facts = got["Attributes"]
    assert set(facts) == {"SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"}
    assert facts["ApproximateReceiveCount"] == "1"
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    for _ in range(3):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
    figures = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert [figures[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")] == ["0", "0", "0"]


def test_attribute_digest_covers_the_returned_attributes(sqs: Any, queue: str) -> None:
    """Attributes are requested by name, by prefix, or all; others are omitted."""
    attributes = {name: {"DataType": "String", "StringValue": "x"} for name in ("a", "b.one", "b.two")}
    sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=attributes)
    digests = {}
    for asked in (["All"], [".*"], ["b.*"], ["a"], ["none"], []):
        (got,) = receive(sqs, queue, MessageAttributeNames=asked, VisibilityTimeout=0)
        digests[str(asked)] = (sorted(got.get("MessageAttributes", {})), got.get("MD5OfMessageAttributes"))
    assert digests["['All']"] == digests["['.*']"]
    assert digests["['b.*']"][0] == ["b.one", "b.two"]
    assert len({digest for names, digest in digests.values() if names}) == 3
    assert digests["['none']"] == digests["[]"] == ([], None)


def test_trace_header_digest_equals_that_of_amazon(sqs: Any, queue: str) -> None:
    """It is a known value, and the header is returned with the message."""
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    system = {"AWSTraceHeader": {"StringValue": trace, "DataType": "String"}}
    sent = sqs.send_message(QueueUrl=queue, MessageBody="test", MessageSystemAttributes=system)
    assert sent["MD5OfMessageSystemAttributes"] == "5ae4d5d7636402d80f4eb6d213245a88"
    (got,) = receive(sqs, queue, MessageSystemAttributeNames=["AWSTraceHeader"], MessageAttributeNames=["All"])
    assert got["Attributes"] == {"AWSTraceHeader": trace}
    assert "MessageAttributes" not in got


def test_message_returns_after_its_visibility_timeout(server: SqsServer, sqs: Any, queue: str) -> None:
    """It has another handle and a higher count; the time of its first receive stays the same."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (first,) = receive(sqs, queue, AttributeNames=["All"], VisibilityTimeout=10)
    server.clock.advance(9_000)
    assert receive(sqs, queue) == []
    server.clock.advance(2_000)
    (again,) = receive(sqs, queue, AttributeNames=["All"])
    assert again["MessageId"] == first["MessageId"]
    assert again["ReceiptHandle"] != first["ReceiptHandle"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


def test_on_a_standard_queue_an_old_handle_still_deletes(server: SqsServer, sqs: Any, queue: str) -> None:
    """The current consumer loses the message, and its own delete still succeeds."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (old,) = receive(sqs, queue, VisibilityTimeout=1)
    server.clock.advance(2_000)
    (new,) = receive(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=old["ReceiptHandle"])
    server.clock.advance(60_000)
    assert receive(sqs, queue) == []
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=new["ReceiptHandle"])


def test_zero_timeout_makes_a_message_visible_at_once(sqs: Any, queue: str) -> None:
    """Covers receives, changes, and the queue's default."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    counts = [
        receive(sqs, queue, VisibilityTimeout=0, AttributeNames=["All"])[0]["Attributes"]["ApproximateReceiveCount"]
        for _ in range(3)
    ]
    assert counts == ["1", "2", "3"]
    (got,) = receive(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "0"})
    assert [len(receive(sqs, queue)) for _ in range(3)] == [1, 1, 1]


def test_visibility_change_counts_from_now(server: SqsServer, sqs: Any, queue: str) -> None:
    """A change of a visible message succeeds; a change of a deleted one is refused."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (got,) = receive(sqs, queue, VisibilityTimeout=5)
    change = {"QueueUrl": queue, "ReceiptHandle": got["ReceiptHandle"]}
    sqs.change_message_visibility(**change, VisibilityTimeout=100)
    server.clock.advance(90_000)
    assert receive(sqs, queue) == []
    server.clock.advance(11_000)
    sqs.change_message_visibility(**change, VisibilityTimeout=5)
    sqs.delete_message(**change)
    assert code(sqs.change_message_visibility, **change, VisibilityTimeout=5) == "InvalidParameterValue"
    assert code(sqs.change_message_visibility, **change, VisibilityTimeout=43_201) == "InvalidParameterValue"
    assert code(sqs.change_message_visibility, **change) == "MissingParameter"


def test_delay_hides_a_message(server: SqsServer, sqs: Any, queue: str) -> None:
    """The queue's delay applies if the message has none."""
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "10"})
    sqs.send_message(QueueUrl=queue, MessageBody="queue's")
    sqs.send_message(QueueUrl=queue, MessageBody="own", DelaySeconds=2)
    sqs.send_message(QueueUrl=queue, MessageBody="none", DelaySeconds=0)
    assert [one["Body"] for one in receive(sqs, queue, MaxNumberOfMessages=10)] == ["none"]
    server.clock.advance(2_000)
    assert [one["Body"] for one in receive(sqs, queue, MaxNumberOfMessages=10)] == ["own"]
    server.clock.advance(8_000)
    assert [one["Body"] for one in receive(sqs, queue, MaxNumberOfMessages=10)] == ["queue's"]


def test_message_expires_after_its_retention(server: SqsServer, sqs: Any, queue: str) -> None:
    """The minimum is a minute."""
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MessageRetentionPeriod": "60"})
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    server.clock.advance(61_000)
    assert receive(sqs, queue) == []


def test_waiting_receive_returns_with_the_first_message(server: SqsServer, sqs: Any, queue: str) -> None:
    """It waits neither for its timeout nor for more messages."""
    got: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: got.extend(receive(sqs, queue, MaxNumberOfMessages=10, WaitTimeSeconds=20))
    )
    waiter.start()
    server.run(_until_somebody_waits(server))
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    waiter.join(10)
    assert [one["Body"] for one in got] == ["m"]


async def _until_somebody_waits(server: SqsServer) -> None:
    while not any(queue.demands for queue in server.server.shard.state.catalog.queues()):  # noqa: ASYNC110  # it tells nobody
        await asyncio.sleep(0.001)


def test_invalid_messages_get_the_codes_of_amazon_sqs(sqs: Any, queue: str) -> None:
    """Each kind of error has its own code."""
    send = {"QueueUrl": queue, "MessageBody": "m"}
    value = {"DataType": "String", "StringValue": "x"}
    for changed, wanted in (
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "a\x00b"}, "InvalidMessageContents"),
        ({"MessageBody": "\ufffe"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * ((1 << 20) + 1)}, "InvalidParameterValue"),
        ({"DelaySeconds": 901}, "InvalidParameterValue"),
        ({"DelaySeconds": -1}, "InvalidParameterValue"),
        ({"DelaySeconds": "ten"}, "SerializationException"),
        ({"MessageAttributes": {f"a{number}": value for number in range(11)}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"AWS.x": value}}, "InvalidParameterValue"),
        ({"MessageAttributes": {".x": value}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x!": value}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"DataType": "Float", "StringValue": "1"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"DataType": "Number", "StringValue": "one"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"DataType": "String", "StringValue": ""}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"DataType": "String", "StringValue": "\x08"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageSystemAttributes": {"Other": value}}, "InvalidParameterValue"),
        ({"MessageDeduplicationId": "d"}, "InvalidParameterValue"),
        ({"QueueUrl": queue + "-none"}, "AWS.SimpleQueueService.NonExistentQueue"),
        ({"QueueUrl": "not an address"}, "InvalidAddress"),
        ({"QueueUrl": ""}, "MissingParameter"),
    ):
        assert code(sqs.send_message, **{**send, **changed}) == wanted, changed.keys()
    assert receive(sqs, queue) == []


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [({"MaxNumberOfMessages": 11}, "Max"), ({"MaxNumberOfMessages": 0}, "Max"), ({"WaitTimeSeconds": 21}, "Wait")],
)
def test_receive_out_of_range_is_refused(sqs: Any, queue: str, asked: dict[str, int], parameter: str) -> None:
    """The error names the parameter and its range."""
    told = refusal(sqs.receive_message, QueueUrl=queue, **asked)
    assert told[0] == "InvalidParameterValue"
    assert parameter in told[1]


def test_invalid_handle_is_refused(sqs: Any, queue: str) -> None:
    """Garbage, a changed handle, and one of another queue get the same error."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (got,) = receive(sqs, queue)
    handle = got["ReceiptHandle"]
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    changed = handle[:-1] + ("A" if handle[-1] != "A" else "B")
    for url, wrong in ((queue, "garbage"), (queue, "\u00e4"), (queue, changed), (queue, "A" * 48), (other, handle)):
        assert code(sqs.delete_message, QueueUrl=url, ReceiptHandle=wrong) == "ReceiptHandleIsInvalid", wrong
        visibility = {"QueueUrl": url, "ReceiptHandle": wrong, "VisibilityTimeout": 5}
        assert code(sqs.change_message_visibility, **visibility) == "ReceiptHandleIsInvalid"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)


def test_batch_entries_have_separate_outcomes(sqs: Any, queue: str) -> None:
    """Covers send, visibility change and delete; failures name their entry."""
    entries = [{"Id": f"e{number}", "MessageBody": f"m{number}"} for number in range(9)]
    entries[3]["MessageBody"] = "\x01"
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == [f"e{number}" for number in range(9) if number != 3]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in sent["Failed"]] == [
        ("e3", "InvalidMessageContents", True)
    ]
    got = receive(sqs, queue, MaxNumberOfMessages=10)
    assert [one["Body"] for one in got] == [f"m{number}" for number in range(9) if number != 3]
    handles = [one["ReceiptHandle"] for one in got]
    change = [{"Id": str(at), "ReceiptHandle": one, "VisibilityTimeout": 9 * at} for at, one in enumerate(handles)]
    change[1]["VisibilityTimeout"] = 50_000
    changed = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=change)
    assert [one["Id"] for one in changed["Failed"]] == ["1"]
    assert len(changed["Successful"]) == 7
    assert len(receive(sqs, queue, MaxNumberOfMessages=10)) == 1
    gone = [{"Id": str(at), "ReceiptHandle": one} for at, one in enumerate(["garbage", *handles])]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=gone)
    assert [(one["Id"], one["Code"]) for one in deleted["Failed"]] == [("0", "ReceiptHandleIsInvalid")]
    assert len(deleted["Successful"]) == 8


def test_invalid_batch_does_nothing(sqs: Any, queue: str) -> None:
    """Covers empty and too large batches, and duplicate or malformed IDs."""
    prefix = "AWS.SimpleQueueService."
    large = "x" * (600 << 10)
    for entries, wanted in (
        ([], "EmptyBatchRequest"),
        ([{"Id": str(number), "MessageBody": "m"} for number in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "m"}, {"Id": "a", "MessageBody": "m"}], "BatchEntryIdsNotDistinct"),
        ([{"Id": "a:b", "MessageBody": "m"}], "InvalidBatchEntryId"),
        ([{"Id": "x" * 81, "MessageBody": "m"}], "InvalidBatchEntryId"),
        ([{"Id": "a", "MessageBody": large}, {"Id": "b", "MessageBody": large}], "BatchRequestTooLong"),
    ):
        assert code(sqs.send_message_batch, QueueUrl=queue, Entries=entries) == prefix + wanted
    assert receive(sqs, queue) == []


def test_messages_are_shared_with_the_other_transports(server: SqsServer, sqs: Any, queue: str, tenant: str) -> None:
    """Attributes are texts there, and bytes that are not text are sent as base64."""
    service, call = server.server.service, Call(bearer=server.key(tenant).token)
    added = [NewMessage(body=b"text", attributes={"a": "b", "empty": ""}), NewMessage(body=b"\xff\x00")]
    server.run(service.messages.add(call, None, "work", added))
    text, raw = receive(sqs, queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert text["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "b"}}
    assert raw["Body"] == "/wA="
    sqs.send_message(
        QueueUrl=queue, MessageBody="m", MessageAttributes={"n": {"DataType": "Number", "StringValue": "7"}}
    )
    (polled,) = server.run(service.messages.poll(call, None, "work"))
    assert (polled.body, polled.attributes["n"]) == (b"m", "7")
