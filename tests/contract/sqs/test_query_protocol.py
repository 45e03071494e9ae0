"""The Query protocol of older clients: forms in, XML out, at the root and at queue URLs, by GET and by POST."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree as ET

import pytest

from tests.contract.sqs.signed import query_call, send, sign

if TYPE_CHECKING:
    from tenantq.wire.access import CreatedKey
    from tests.contract.sqs.sqs_server import SqsServer

SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
BODY = "häl<lo> & \r\n\t\"'\U0001f600"


class QueryClient:
    """A client of the Query protocol."""

    def __init__(self, url: str, key: CreatedKey) -> None:
        self.url = url
        self.key = key

    def __call__(self, action: str, at: str = "/", status: int = 200, /, **parameters: Any) -> ET.Element:
        """Return the reply to a call by POST."""
        return self.read(send(query_call(self.key, self.url + at, action, **parameters)), status)

    def get(self, action: str, at: str = "/", status: int = 200, /, **parameters: Any) -> ET.Element:
        """Return the reply to a call by GET."""
        query = urlencode({"Action": action, **parameters}, quote_via=quote)
        return self.read(send(sign(self.key, "GET", f"{self.url}{at}?{query}")), status)

    @staticmethod
    def read(answer: Any, status: int) -> ET.Element:
        assert answer.status == status, answer
        assert answer.headers["content-type"] == "text/xml"
        root = ET.fromstring(answer.body)  # noqa: S314  # our own server's
        assert root.findtext(f".//{SPACE}RequestId") == answer.headers["x-amzn-requestid"]
        return root


@pytest.fixture
def client(server: SqsServer, tenant: str) -> QueryClient:
    """Return a client of the test's own tenant."""
    return QueryClient(server.url, server.key(tenant))


def text(root: ET.Element, *names: str) -> str | None:
    """Return the text of the element at a path."""
    return root.findtext(".//" + "/".join(SPACE + name for name in names))


def path_of(root: ET.Element) -> str:
    """Return the path of the queue URL in a reply."""
    url = text(root, "QueueUrl")
    assert url is not None
    return "/" + url.split("/", 3)[3]


def attributes(root: ET.Element, name: str = "Attribute", key: str = "Name") -> dict[str | None, str | None]:
    """Return a mapping in a reply."""
    return {one.findtext(SPACE + key): one.findtext(SPACE + "Value") for one in root.iter(SPACE + name)}


def test_message_round_trips(client: QueryClient) -> None:
    """Covers attributes of each type, digests, and every character that XML allows."""
    made = client("CreateQueue", QueueName="work", **{
        "Attribute.1.Name": "VisibilityTimeout", "Attribute.1.Value": "45", "Tag.1.Key": "a", "Tag.1.Value": "b",
    })  # fmt: skip
    at = path_of(made)
    assert attributes(client("ListQueueTags", at), "Tag", "Key") == {"a": "b"}
    sent = client("SendMessage", at, MessageBody=BODY, **{
        "MessageAttribute.1.Name": "n", "MessageAttribute.1.Value.DataType": "Number",
        "MessageAttribute.1.Value.StringValue": "5", "MessageAttribute.2.Name": "b",
        "MessageAttribute.2.Value.DataType": "Binary", "MessageAttribute.2.Value.BinaryValue": "AP8=",
    })  # fmt: skip
    assert text(sent, "MD5OfMessageBody") == hashlib.md5(BODY.encode()).hexdigest()  # noqa: S324  # what the protocol has
    got = client("ReceiveMessage", at, **{"AttributeName.1": "All", "MessageAttributeName.1": "All"})
    assert text(got, "Message", "Body") == BODY
    assert text(got, "Message", "MessageId") == text(sent, "MessageId")
    assert text(got, "Message", "MD5OfMessageAttributes") == text(sent, "MD5OfMessageAttributes")
    values = {one.findtext(SPACE + "Name"): one.find(SPACE + "Value") for one in got.iter(SPACE + "MessageAttribute")}
    assert {name: [part.text for part in value or ()] for name, value in values.items()} == {
        "n": ["5", "Number"], "b": ["AP8=", "Binary"],
    }  # fmt: skip
    assert attributes(got)["ApproximateReceiveCount"] == "1"
    handle = text(got, "ReceiptHandle")
    client("ChangeMessageVisibility", at, ReceiptHandle=handle, VisibilityTimeout="0")
    again = client.get("ReceiveMessage", at)
    client.get("DeleteMessage", at, ReceiptHandle=text(again, "ReceiptHandle"))
    empty = client("ReceiveMessage", at)
    assert [one.tag for one in empty] == [SPACE + "ReceiveMessageResult", SPACE + "ResponseMetadata"]
    assert len(empty[0]) == 0


def test_batches_have_numbered_entries(client: QueryClient) -> None:
    """Entries are ordered by number, and each outcome is its own element."""
    at = path_of(client("CreateQueue", QueueName="work"))
    entries: dict[str, str] = {}
    for number in (10, 2, 1):
        prefix = f"SendMessageBatchRequestEntry.{number}"
        entries |= {f"{prefix}.Id": f"e{number}", f"{prefix}.MessageBody": f"m{number}" if number != 2 else "\x01"}
    sent = client("SendMessageBatch", at, **entries)
    assert [one.findtext(SPACE + "Id") for one in sent.iter(SPACE + "SendMessageBatchResultEntry")] == ["e1", "e10"]
    (failed,) = sent.iter(SPACE + "BatchResultErrorEntry")
    assert [part.text for part in failed][:3] == ["e2", "true", "InvalidMessageContents"]
    got = client("ReceiveMessage", at, MaxNumberOfMessages="10")
    handles = [one.text for one in got.iter(SPACE + "ReceiptHandle")]
    gone: dict[str, str | None] = {}
    for number, handle in enumerate(handles, 1):
        prefix = f"DeleteMessageBatchRequestEntry.{number}"
        gone |= {f"{prefix}.Id": str(number), f"{prefix}.ReceiptHandle": handle}
    deleted = client("DeleteMessageBatch", at, **gone)
    assert len([*deleted.iter(SPACE + "DeleteMessageBatchResultEntry")]) == 2
    empty = client("SendMessageBatch", at, 400, SendMessageBatchRequestEntry="")
    assert text(empty, "Error", "Code") == "AWS.SimpleQueueService.EmptyBatchRequest"


def test_queues_are_described_and_listed(client: QueryClient) -> None:
    """The queue is given by its URL or by a parameter."""
    made = client("CreateQueue", QueueName="work")
    at, url = path_of(made), text(made, "QueueUrl")
    client("SetQueueAttributes", at, **{"Attribute.Name": "DelaySeconds", "Attribute.Value": "5"})
    shown = attributes(client("GetQueueAttributes", QueueUrl=url, **{"AttributeName.1": "All"}))
    assert (shown["DelaySeconds"], shown["VisibilityTimeout"]) == ("5", "30")
    assert [one.text for one in client.get("ListQueues").iter(SPACE + "QueueUrl")] == [url]
    assert text(client.get("GetQueueUrl", at, QueueName="work"), "QueueUrl") == url
    client("AddPermission", at, Label="l", **{"AWSAccountId.1": "1" * 12, "ActionName.1": "SendMessage"})
    client("TagQueue", at, **{"Tag.1.Key": "k", "Tag.1.Value": "<v>"})
    client("UntagQueue", at, **{"TagKey.1": "none"})
    assert attributes(client("ListQueueTags", at), "Tag", "Key") == {"k": "<v>"}
    client.get("DeleteQueue", at)
    assert text(client.get("ReceiveMessage", at, 400), "Error", "Code") == "AWS.SimpleQueueService.NonExistentQueue"


def test_errors_have_code_status_and_fault(client: QueryClient) -> None:
    """The fault is the sender's or the receiver's."""
    at = path_of(client("CreateQueue", QueueName="work"))
    for action, given, status, wanted in (
        ("Nonsense", {}, 400, "InvalidAction"),
        ("ListQueues", {}, 400, "InvalidAction"),
        ("SendMessage", {}, 400, "MissingParameter"),
        ("DeleteMessage", {"ReceiptHandle": "garbage"}, 404, "ReceiptHandleIsInvalid"),
        ("ReceiveMessage", {"MaxNumberOfMessages": "11"}, 400, "InvalidParameterValue"),
        ("ReceiveMessage", {"MaxNumberOfMessages": "ten"}, 400, "SerializationException"),
        ("GetQueueAttributes", {"AttributeName.1": "Foobar"}, 400, "InvalidAttributeName"),
        ("GetQueueUrl", {"QueueName": "none"}, 400, "AWS.SimpleQueueService.NonExistentQueue"),
    ):
        refused = client(action, at, status, **given)
        assert (text(refused, "Error", "Code"), text(refused, "Error", "Type")) == (wanted, "Sender"), action
    client("PurgeQueue", at)
    again = client("PurgeQueue", at, 403)
    assert text(again, "Error", "Code") == "AWS.SimpleQueueService.PurgeQueueInProgress"
