"""Replies of AWS itself, recorded by other projects, in both protocols."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from tests.acceptance.command import call
from tests.contract.sqs.refusals import refusal
from tests.contract.sqs.signed import JSON, json_call, query_call, send, sign
from tests.contract.sqs.test_leases import arn, figure, queue_with_letters, receive

if TYPE_CHECKING:
    from tests.contract.sqs.sqs_server import SqsServer

_ID_RULE = "can only include alphanumeric and punctuation characters. 1 to 128 in length."


def dead_letter(sqs: Any) -> tuple[str, str]:
    """Return a queue and its dead-letter queue, which holds two messages."""
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    url = queue_with_letters(sqs, "main", letters, VisibilityTimeout="0")
    for body in ("one", "two"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    for _ in range(4):
        receive(sqs, url)
    assert figure(sqs, letters) == 2
    return url, letters


def test_a_late_change_of_visibility_succeeds_on_a_standard_queue(server: SqsServer, sqs: Any, queue: str) -> None:
    """It succeeds after the timeout has ended, alone and in a batch, but not for a deleted message."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (got,) = receive(sqs, queue, VisibilityTimeout=1)
    server.clock.advance(2_000)
    change = {"ReceiptHandle": got["ReceiptHandle"], "VisibilityTimeout": 5}
    sqs.change_message_visibility(QueueUrl=queue, **change)
    sqs.change_message_visibility(QueueUrl=queue, **{**change, "VisibilityTimeout": 0})
    done = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[{"Id": "a", **change}])
    assert [one["Id"] for one in done["Successful"]] == ["a"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])
    assert refusal(sqs.change_message_visibility, QueueUrl=queue, **change)[0] == "InvalidParameterValue"


def test_a_move_task_fails_when_its_destination_is_deleted(server: SqsServer, sqs: Any, tenant: str) -> None:
    """ListMessageMoveTasks reports FAILED with the reason; the remaining messages stay, and the command exits with 1."""
    _, letters = dead_letter(sqs)
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    begun = sqs.start_message_move_task(
        SourceArn=arn(letters), DestinationArn=arn(other), MaxNumberOfMessagesPerSecond=1
    )
    server.run(server._settled())
    sqs.delete_queue(QueueUrl=other)
    server.clock.advance(2_000)
    server.run(server._settled())
    (task,) = sqs.list_message_move_tasks(SourceArn=arn(letters))["Results"]
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert figure(sqs, letters) == 1
    id = json.loads(base64.b64decode(begun["TaskHandle"]))["taskId"]
    token = server.key(tenant, "tenant-admin").token
    shown = call("redrive", "letters", "--status", id, "--wait", TENANTQ_URL=server.url, TENANTQ_TOKEN=token)
    assert (shown.code, shown.out) == (1, "failed: moved 1, skipped 0; queue 'other' does not exist\n")


def test_a_move_task_fails_when_the_source_of_a_message_is_deleted(server: SqsServer, sqs: Any) -> None:
    """Without a destination, messages return to their source. The failure reason names those that cannot."""
    url, letters = dead_letter(sqs)
    queue_with_letters(sqs, "second", letters)
    sqs.delete_queue(QueueUrl=url)
    sqs.start_message_move_task(SourceArn=arn(letters))
    server.run(server._settled())
    (task,) = sqs.list_message_move_tasks(SourceArn=arn(letters))["Results"]
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert figure(sqs, letters) == 2


def test_a_second_move_task_of_a_queue_is_an_invalid_parameter(server: SqsServer, sqs: Any) -> None:
    """The handle of the first decodes to its task id and source."""
    _, letters = dead_letter(sqs)
    start = {"SourceArn": arn(letters), "MaxNumberOfMessagesPerSecond": 1}
    handle = sqs.start_message_move_task(**start)["TaskHandle"]
    assert refusal(sqs.start_message_move_task, **start) == (
        "InvalidParameterValue",
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
    )
    decoded = json.loads(base64.b64decode(handle))
    assert sorted(decoded) == ["sourceArn", "taskId"]
    assert decoded["sourceArn"] == arn(letters)
    for changed, message in (
        ({"taskId": "none"}, "Task does not exist."),
        (
            {"sourceArn": arn(letters) + "x"},
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
    ):
        forged = base64.b64encode(json.dumps({**decoded, **changed}).encode()).decode()
        assert refusal(sqs.cancel_message_move_task, TaskHandle=forged) == ("ResourceNotFoundException", message)
    told = refusal(sqs.cancel_message_move_task, TaskHandle="garbage")
    assert told == ("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")
    missing = "The resource that you specified for the DestinationArn parameter doesn't exist."
    told = refusal(sqs.start_message_move_task, SourceArn=arn(letters), DestinationArn=arn(letters) + "x")
    assert told == ("ResourceNotFoundException", missing)
    sqs.cancel_message_move_task(TaskHandle=handle)


def test_the_receive_count_continues_in_the_dead_letter_queue(sqs: Any) -> None:
    """A message received twice before it died is received for the third time there."""
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    url = queue_with_letters(sqs, "main", letters, most=2, VisibilityTimeout="0")
    sqs.send_message(QueueUrl=url, MessageBody="m")
    assert [len(receive(sqs, url)) for _ in range(3)] == [1, 1, 0]
    counts = [receive(sqs, letters, VisibilityTimeout=0)[0]["Attributes"]["ApproximateReceiveCount"] for _ in range(2)]
    assert counts == ["3", "4"]


def test_errors_over_json_have_their_own_statuses(server: SqsServer, sqs: Any, queue: str, tenant: str) -> None:
    """A purge in progress is 403, an unknown resource 404."""
    key = server.key(tenant)
    sqs.purge_queue(QueueUrl=queue)
    assert send(json_call(key, server.url, "PurgeQueue", QueueUrl=queue)).status == 403
    assert send(json_call(key, server.url, "StartMessageMoveTask", SourceArn=arn(queue) + "x")).status == 404


def test_attribute_names_are_ascii(sqs: Any, queue: str) -> None:
    """Letters of other alphabets are refused."""
    named = {"größe": {"DataType": "String", "StringValue": "x"}}
    told = refusal(sqs.send_message, QueueUrl=queue, MessageBody="m", MessageAttributes=named)
    assert told[0] == "InvalidParameterValue"


def test_empty_ids_are_invalid(sqs: Any, queue: str) -> None:
    """An empty group id on a standard queue and an empty deduplication id on a FIFO queue are refused."""
    told = refusal(sqs.send_message, QueueUrl=queue, MessageBody="m", MessageGroupId="")
    reason = f"Value  for parameter MessageGroupId is invalid. Reason: MessageGroupId {_ID_RULE}"
    assert told == ("InvalidParameterValue", reason)
    for attributes in ({}, {"ContentBasedDeduplication": "true"}):
        name = f"ordered{len(attributes)}.fifo"
        ordered = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true", **attributes})["QueueUrl"]
        sent = {"QueueUrl": ordered, "MessageBody": "m", "MessageGroupId": "g"}
        told = refusal(sqs.send_message, **sent, MessageDeduplicationId="")
        reason = f"Value  for parameter MessageDeduplicationId is invalid. Reason: MessageDeduplicationId {_ID_RULE}"
        assert told == ("InvalidParameterValue", reason)


def test_a_query_that_accepts_json_gets_json(server: SqsServer, sqs: Any, queue: str, tenant: str) -> None:
    """The reply and the error have the form of the XML ones; without the header they are XML."""
    key = server.key(tenant)
    sqs.send_message(QueueUrl=queue, MessageBody="m")

    def ask(action: str, url: str, **parameters: str) -> tuple[int, str, Any]:
        target = f"{url}?{urlencode({'Action': action, 'Version': '2012-11-05', **parameters})}"
        answer = send(sign(key, "GET", target, headers={"Accept": "application/json"}))
        return answer.status, answer.headers["content-type"], json.loads(answer.body)

    status, kind, found = ask("ReceiveMessage", server.url + "/", QueueUrl=queue)
    assert (status, kind) == (200, "application/json")
    reply = found["ReceiveMessageResponse"]
    assert reply["ReceiveMessageResult"]["messages"][0]["Body"] == "m"
    assert reply["ResponseMetadata"]["RequestId"]
    _, _, found = ask("GetQueueAttributes", queue, **{"AttributeName.1": "QueueArn"})
    attributes = found["GetQueueAttributesResponse"]["GetQueueAttributesResult"]["Attributes"]
    assert attributes == [{"Name": "QueueArn", "Value": arn(queue)}]
    status, _, found = ask("ListQueues", queue)
    assert (status, found["Error"]["Code"]) == (400, "InvalidAction")
    assert found["Error"]["Message"] == "The action ListQueues is not valid for this endpoint."
    assert send(query_call(key, server.url, "ListQueues")).body.startswith(b"<?xml")


def test_the_trace_header_of_the_request_travels_with_the_message(
    server: SqsServer, sqs: Any, queue: str, tenant: str
) -> None:
    """X-Amzn-Trace-Id becomes AWSTraceHeader, unless the message has one itself."""
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=2"}}
    for system in ({}, own):
        request = json_call(
            server.key(tenant),
            server.url,
            "SendMessage",
            QueueUrl=queue,
            MessageBody="m",
            MessageSystemAttributes=system,
        )
        assert send(request, lambda headers: headers.update({"X-Amzn-Trace-Id": "Root=1"})).status == 200
    got = receive(sqs, queue, MaxNumberOfMessages=10)
    assert [one["Attributes"]["AWSTraceHeader"] for one in got] == ["Root=1", "Root=2"]


@pytest.mark.parametrize("name", ["DeduplicationScope", "FifoThroughputLimit"])
def test_fifo_attributes_on_a_standard_queue_name_the_condition(sqs: Any, name: str) -> None:
    """The error says that FifoQueue must be true."""
    value = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}[name]
    told = refusal(sqs.create_queue, QueueName="plain", Attributes={name: value})
    assert told == ("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true.")


def test_more_than_fifty_tags_are_refused(sqs: Any, queue: str) -> None:
    """The limit applies at creation and later, and existing tags count."""
    tags = {f"t{at}": "x" for at in range(50)}
    sqs.tag_queue(QueueUrl=queue, Tags=tags)
    told = refusal(sqs.tag_queue, QueueUrl=queue, Tags={"more": "x"})
    assert told == ("InvalidParameterValue", "Too many tags added for queue work.")
    told = refusal(sqs.create_queue, QueueName="tagged", tags={**tags, "more": "x"})
    assert told == ("InvalidParameterValue", "Too many tags added for queue tagged.")


def test_an_oversized_entry_of_a_batch_cannot_be_validated(sqs: Any) -> None:
    """Only that entry fails."""
    url = sqs.create_queue(QueueName="small", Attributes={"MaximumMessageSize": "1024"})["QueueUrl"]
    entries = [{"Id": "a", "MessageBody": "x" * 1_025}, {"Id": "b", "MessageBody": "x"}]
    done = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in done["Successful"]] == ["b"]
    reason = "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    assert [one["Message"] for one in done["Failed"]] == [reason]


def test_the_host_in_a_queue_url_is_escaped(server: SqsServer, queue: str, tenant: str) -> None:
    """A Host header cannot put markup into the replies."""
    headers = {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.GetQueueUrl", "Host": 'host"><script>:80'}
    answer = send(sign(server.key(tenant), "POST", server.url, b'{"QueueName": "work"}', headers))
    assert answer.status == 200
    url = json.loads(answer.body)["QueueUrl"]
    assert url == "http://host%22%3E%3Cscript%3E:80/" + "/".join(queue.split("/")[-2:])
