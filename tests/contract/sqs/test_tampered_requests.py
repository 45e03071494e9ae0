"""Signed requests cannot be altered in transit, and unusual forms that real clients send are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.contract.sqs.signed import fetch, json_call, presign, query_call, send

if TYPE_CHECKING:
    from tests.contract.sqs.sqs_server import SqsServer


def test_presigned_url_allows_only_what_was_signed(server: SqsServer, tenant: str, sqs: Any, queue: str) -> None:
    """A header with another action, or any other Amazon header, is refused unless it was signed too."""
    key = server.key(tenant)
    sqs.send_message(QueueUrl=queue, MessageBody="stays")
    url = presign(key, "GET", f"{queue}?Action=GetQueueAttributes&AttributeName.1=ApproximateNumberOfMessages")
    assert fetch("GET", url).status == 200
    for action in ("ReceiveMessage", "PurgeQueue", "DeleteQueue"):
        answer = fetch("GET", url, headers={"X-Amz-Target": f"AmazonSQS.{action}"})
        assert (answer.status, b"IncompleteSignature" in answer.body) == (400, True)
    assert fetch("GET", url, headers={"X-Amz-Anything": "1"}).status == 400
    assert [one["Body"] for one in sqs.receive_message(QueueUrl=queue)["Messages"]] == ["stays"]


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/sqs/aws4_request&X-Amz-SignedHeaders=host;%E2%82%AC&X-Amz-Signature=0&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/sqs/aws4_request&X-Amz-SignedHeaders=host&X-Amz-Signature=0&X-Amz-Date=20260101T000000Z&X-Amz-Expires=000000001" + "9" * 4_400,
    ],
)  # fmt: skip
def test_invalid_presigned_url_is_refused(server: SqsServer, query: str) -> None:
    """It is not a server error."""
    answer = fetch("GET", f"{server.url}/?Action=ListQueues&{query}")
    assert answer.status in {400, 403}
    assert b"InternalFailure" not in answer.body


def test_huge_list_index_is_refused(server: SqsServer, tenant: str, queue: str) -> None:
    """An index of five thousand digits is invalid."""
    answer = send(query_call(server.key(tenant), queue, "TagQueue", **{f"Tag.{'1' * 5_000}.Key": "a"}))
    assert answer.status == 400


@pytest.mark.parametrize(
    ("action", "name", "wanted"),
    [
        ("ReceiveMessage", "AttributeNames", 200), ("ReceiveMessage", "MessageAttributeNames", 200),
        ("GetQueueAttributes", "AttributeName", 200), ("SendMessageBatch", "Entries", 400),
    ],
)  # fmt: skip
def test_empty_list_of_the_query_protocol_is_empty(server: SqsServer, tenant: str, queue: str, action: str, name: str, wanted: int) -> None:  # fmt: skip
    """Botocore writes only its name."""
    answer = send(query_call(server.key(tenant), queue, action, **{name: ""}))
    assert answer.status == wanted
    if wanted == 400:
        assert b"EmptyBatchRequest" in answer.body


def test_empty_fields_are_omitted(server: SqsServer, tenant: str, sqs: Any, queue: str) -> None:
    """Clients check whether lists and mappings are present."""
    key = server.key(tenant)
    entry = {"Id": "a", "MessageBody": "m"}
    sent = send(json_call(key, queue, "SendMessageBatch", QueueUrl=queue, Entries=[entry])).body
    assert b"Successful" in sent
    assert b"Failed" not in sent
    failed = send(
        json_call(key, queue, "SendMessageBatch", QueueUrl=queue, Entries=[{**entry, "MessageBody": ""}])
    ).body
    assert b"Successful" not in failed
    assert b"Tags" not in send(json_call(key, queue, "ListQueueTags", QueueUrl=queue)).body
    asked = send(json_call(key, queue, "GetQueueAttributes", QueueUrl=queue, AttributeNames=["Policy"]))
    assert b"Attributes" not in asked.body
    assert sqs.list_queue_tags(QueueUrl=queue).get("Tags") is None


def test_batch_limit_applies_before_the_limit_of_entries(sqs: Any, queue: str) -> None:
    """A batch is too long even if one of its entries would be refused on its own."""
    entries = [{"Id": "a", "MessageBody": "x" * (1 << 20)}, {"Id": "b", "MessageBody": "yy"}]
    with pytest.raises(sqs.exceptions.BatchRequestTooLong):
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)


def test_callers_request_id_is_escaped(server: SqsServer, tenant: str) -> None:
    """It is text in the XML."""
    call = query_call(server.key(tenant), server.url + "/", "ListQueues")
    answer = send(call, lambda headers: headers.update({"X-Request-Id": "a<b>&c"}))
    assert answer.status == 200
    ET.fromstring(answer.body)  # noqa: S314  # our own server's


def test_missing_group_is_reported_first(sqs: Any) -> None:
    """A FIFO message without group and deduplication ID gets the error about the group."""
    url = sqs.create_queue(QueueName="order.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    with pytest.raises(sqs.exceptions.ClientError) as refused:
        sqs.send_message(QueueUrl=url, MessageBody="m")
    assert refused.value.response["Error"]["Code"] == "MissingParameter"
    assert "MessageGroupId" in refused.value.response["Error"]["Message"]


def test_trace_header_must_be_a_string(sqs: Any, queue: str) -> None:
    """Other types are refused."""
    with pytest.raises(sqs.exceptions.ClientError) as refused:
        sqs.send_message(
            QueueUrl=queue, MessageBody="m",
            MessageSystemAttributes={"AWSTraceHeader": {"DataType": "Number", "StringValue": "1"}},
        )  # fmt: skip
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
