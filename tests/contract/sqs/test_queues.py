"""Queues over Amazon SQS: created, found, changed, tagged, purged, deleted; dead letters and their destinations."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from tenantq.domain.access import VIEWS
from tests.contract.sqs.refusals import code, refusal
from tests.contract.sqs.signed import json_call, send_at_once

if TYPE_CHECKING:
    from tests.contract.sqs.sqs_server import SqsServer

GONE = "AWS.SimpleQueueService.NonExistentQueue"


def attributes_of(sqs: Any, queue: str, *names: str) -> dict[str, str]:
    """Return attributes of a queue."""
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[*names] or ["All"])
    found: dict[str, str] = answer.get("Attributes", {})
    return found


def arn_of(sqs: Any, queue: str) -> str:
    """Return a queue's ARN."""
    return attributes_of(sqs, queue, "QueueArn")["QueueArn"]


def take(sqs: Any, queue: str, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of a receive."""
    messages: list[dict[str, Any]] = sqs.receive_message(QueueUrl=queue, **options).get("Messages", [])
    return messages


def with_letters(sqs: Any, most: int, **attributes: str) -> tuple[str, str]:
    """Return a queue and its dead-letter queue."""
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, letters), "maxReceiveCount": most})
    queue = sqs.create_queue(QueueName="source", Attributes={"RedrivePolicy": policy, **attributes})["QueueUrl"]
    return queue, letters


def test_queue_is_created_once_and_found_by_name_url_and_prefix(server: SqsServer, sqs: Any) -> None:
    """Creating it again succeeds with equal attributes and fails with others."""
    url = sqs.create_queue(QueueName="one", Attributes={"DelaySeconds": "1", "VisibilityTimeout": "69"})["QueueUrl"]
    account = url.split("/")[-2]
    assert url == f"{server.url}/{account}/one"
    for again in ({}, {"DelaySeconds": "1"}, {"DelaySeconds": "1", "VisibilityTimeout": "69"}):
        assert sqs.create_queue(QueueName="one", Attributes=again)["QueueUrl"] == url
    told = refusal(sqs.create_queue, QueueName="one", Attributes={"DelaySeconds": "2"})
    assert told[0] == "QueueAlreadyExists"
    assert told[1].endswith("DelaySeconds")
    sqs.create_queue(QueueName="other")
    assert sqs.get_queue_url(QueueName="one")["QueueUrl"] == url
    assert sqs.get_queue_url(QueueName="one", QueueOwnerAWSAccountId=account)["QueueUrl"] == url
    assert sqs.list_queues(QueueNamePrefix="on")["QueueUrls"] == [url]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="none")
    for address in ("one", url, f"http://elsewhere.example/{account}/one", f"{server.url}/000000000000/one"):
        assert attributes_of(sqs, address, "VisibilityTimeout") == {"VisibilityTimeout": "69"}
    assert code(sqs.get_queue_url, QueueName="none") == GONE
    assert code(sqs.get_queue_attributes, QueueUrl="http://nowhere", AttributeNames=["All"]) == GONE


def test_concurrent_creation_keeps_the_attributes_of_one_caller(server: SqsServer, tenant: str, sqs: Any) -> None:
    """Callers with the same attributes succeed; all others get QueueAlreadyExists."""
    key = server.key(tenant)
    for turn in range(5):
        name = f"race-{turn}"
        calls = [
            json_call(
                key, server.url + "/", "CreateQueue", QueueName=name, Attributes={"DelaySeconds": str(place // 2)}
            )
            for place in range(6)
        ]
        told = [answer.headers.get("x-amzn-query-error", "made") for answer in send_at_once(calls)]
        delay = int(attributes_of(sqs, name, "DelaySeconds")["DelaySeconds"])
        assert told == ["made" if place // 2 == delay else "QueueAlreadyExists;Sender" for place in range(6)]


def test_queues_are_listed_in_pages(sqs: Any) -> None:
    """Each page has a token for the next; without a size there is one page."""
    names = [f"q{number}" for number in range(5)]
    for name in names:
        sqs.create_queue(QueueName=name)
    pages = sqs.get_paginator("list_queues").paginate(PaginationConfig={"PageSize": 2})
    listed = [page["QueueUrls"] for page in pages]
    assert [len(page) for page in listed] == [2, 2, 1]
    assert [url.split("/")[-1] for page in listed for url in page] == names
    assert len(sqs.list_queues()["QueueUrls"]) == 5
    for wrong in ({"MaxResults": 0}, {"MaxResults": 1_001}, {"NextToken": "!", "MaxResults": 2}):
        assert code(sqs.list_queues, **wrong) == "InvalidParameterValue"


def test_names_and_attributes_are_checked(sqs: Any) -> None:
    """Each error has the code of Amazon SQS."""
    value, name = "InvalidAttributeValue", "InvalidAttributeName"
    for queue, attributes, wanted in (
        ("a" * 81, {}, "InvalidParameterValue"),
        ("a b", {}, "InvalidParameterValue"),
        ("a/b", {}, "InvalidParameterValue"),
        ("", {}, "MissingParameter"),
        ("a.fifo", {}, "InvalidParameterValue"),
        ("a", {"FifoQueue": "true"}, "InvalidParameterValue"),
        ("a", {"FifoQueue": "false"}, name),
        ("a", {"ContentBasedDeduplication": "true"}, name),
        ("a", {"Nonsense": "1"}, name),
        ("a", {"QueueArn": "x"}, name),
        ("a", {"VisibilityTimeout": "43201"}, value),
        ("a", {"VisibilityTimeout": "x"}, value),
        ("a", {"DelaySeconds": "901"}, value),
        ("a", {"MessageRetentionPeriod": "59"}, value),
        ("a", {"MessageRetentionPeriod": "1209601"}, value),
        ("a", {"MaximumMessageSize": "1023"}, value),
        ("a", {"MaximumMessageSize": "1048577"}, value),
        ("a", {"ReceiveMessageWaitTimeSeconds": "21"}, value),
        ("a", {"Policy": "{"}, value),
        ("a.fifo", {"FifoQueue": "true", "DeduplicationScope": "all"}, value),
        ("a", {"RedrivePolicy": "{"}, "InvalidParameterValue"),
        ("a", {"RedrivePolicy": '{"maxReceiveCount":1}'}, "InvalidParameterValue"),
        ("a", {"RedrivePolicy": '{"deadLetterTargetArn":"dummy","maxReceiveCount":1}'}, "InvalidParameterValue"),
        ("a", {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}, name),
    ):
        assert code(sqs.create_queue, QueueName=queue, Attributes=attributes) == wanted, (queue, attributes)
    assert "QueueUrls" not in sqs.list_queues()
    assert code(
        sqs.get_queue_attributes, QueueUrl=sqs.create_queue(QueueName="a")["QueueUrl"], AttributeNames=["X"]
    ) == (name)


def test_attributes_are_returned_as_set(sqs: Any) -> None:
    """All are texts, and those never set have their defaults."""
    given = {
        "DelaySeconds": "7", "MaximumMessageSize": "2048", "MessageRetentionPeriod": "600", "VisibilityTimeout": "45",
        "ReceiveMessageWaitTimeSeconds": "3", "Policy": '{"Version":"2012-10-17"}', "FifoQueue": "true",
        "ContentBasedDeduplication": "true", "DeduplicationScope": "messageGroup", "KmsMasterKeyId": "alias/x",
        "FifoThroughputLimit": "perMessageGroupId", "KmsDataKeyReusePeriodSeconds": "60",
    }  # fmt: skip
    url = sqs.create_queue(QueueName="all.fifo", Attributes=given)["QueueUrl"]
    shown = attributes_of(sqs, url)
    assert {name: shown[name] for name in given} == given
    assert shown["SqsManagedSseEnabled"] == "false"
    assert shown["QueueArn"].endswith(":all.fifo")
    assert abs(int(shown["CreatedTimestamp"]) - int(shown["LastModifiedTimestamp"])) <= 1
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0", "Policy": ""})
    again = attributes_of(sqs, url)
    assert (again["DelaySeconds"], "Policy" in again, again["VisibilityTimeout"]) == ("0", False, "45")
    assert code(sqs.set_queue_attributes, QueueUrl=url, Attributes={"FifoQueue": "false"}) == "InvalidAttributeValue"
    plain = attributes_of(sqs, sqs.create_queue(QueueName="plain")["QueueUrl"])
    assert (plain["VisibilityTimeout"], plain["MessageRetentionPeriod"], plain["MaximumMessageSize"]) == (
        "30", "345600", "1048576",
    )  # fmt: skip
    assert not {"FifoQueue", "RedrivePolicy", "Policy", "KmsMasterKeyId"} & set(plain)


def test_tags_are_added_replaced_and_removed(sqs: Any) -> None:
    """They can also be set at creation."""
    url = sqs.create_queue(QueueName="tagged", tags={"a": "1", "b": "2"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"b": "3", "c": ""})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "1", "b": "3", "c": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["a", "c", "none"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"b": "3"}
    assert code(sqs.tag_queue, QueueUrl=url, Tags={str(number): "" for number in range(51)}) == "InvalidParameterValue"


def test_policy_statements_are_added_and_removed(sqs: Any, queue: str) -> None:
    """Labels are unique."""
    grant = {"QueueUrl": queue, "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    sqs.add_permission(**grant, Label="one")
    sqs.add_permission(**{**grant, "Actions": ["SendMessage", "ReceiveMessage"]}, Label="two")
    policy = json.loads(attributes_of(sqs, queue, "Policy")["Policy"])
    assert [(one["Sid"], one["Action"]) for one in policy["Statement"]] == [
        ("one", "SQS:SendMessage"),
        ("two", ["SQS:SendMessage", "SQS:ReceiveMessage"]),
    ]
    assert code(sqs.add_permission, **grant, Label="one") == "InvalidParameterValue"
    for wrong in ({"Actions": ["Nonsense"]}, {"Label": "a b"}):
        assert code(sqs.add_permission, **{**grant, "Label": "x", **wrong}) == "InvalidParameterValue"
    assert code(sqs.add_permission, **{**grant, "Actions": ["SendMessage"] * 8}, Label="x") == "OverLimit"
    for label in ("one", "two"):
        sqs.remove_permission(QueueUrl=queue, Label=label)
    assert attributes_of(sqs, queue, "Policy") == {}
    assert code(sqs.remove_permission, QueueUrl=queue, Label="one") == "InvalidParameterValue"


def test_purge_deletes_everything_and_cannot_be_repeated_at_once(server: SqsServer, sqs: Any) -> None:
    """It covers ready, delayed and in-flight messages, and deduplication IDs."""
    url = sqs.create_queue(QueueName="p.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    send = {"QueueUrl": url, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sqs.send_message(**send)
    assert len(take(sqs, url)) == 1
    sqs.purge_queue(QueueUrl=url)
    assert code(sqs.purge_queue, QueueUrl=url) == "AWS.SimpleQueueService.PurgeQueueInProgress"
    sqs.send_message(**send)
    assert len(take(sqs, url)) == 1
    server.clock.advance(60_000)
    sqs.purge_queue(QueueUrl=url)


def test_deleted_queue_is_gone_at_once_and_its_name_free_after_a_minute(
    server: SqsServer, sqs: Any, queue: str
) -> None:
    """Its messages are deleted, in flight or not."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    assert len(take(sqs, queue)) == 1
    sqs.delete_queue(QueueUrl=queue)
    for call in (sqs.receive_message, sqs.delete_queue, sqs.purge_queue):
        assert code(call, QueueUrl=queue) == GONE
    assert code(sqs.create_queue, QueueName="work") == "AWS.SimpleQueueService.QueueDeletedRecently"
    server.clock.advance(60_000)
    assert sqs.create_queue(QueueName="work")["QueueUrl"] == queue
    assert take(sqs, queue) == []


def test_message_moves_to_the_dlq_on_the_receive_after_the_last_allowed(sqs: Any) -> None:
    """Until then it is in its queue, and can still be deleted there."""
    queue, letters = with_letters(sqs, 2, VisibilityTimeout="0")
    sent = sqs.send_message(QueueUrl=queue, MessageBody="m")
    assert [len(take(sqs, queue)) for _ in range(2)] == [1, 1]
    assert attributes_of(sqs, queue, "ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "1"}
    assert take(sqs, letters) == []
    assert take(sqs, queue) == []
    (letter,) = take(sqs, letters, AttributeNames=["All"])
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, queue)
    assert sqs.list_dead_letter_source_queues(QueueUrl=letters)["queueUrls"] == [queue]
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == []


def test_dead_letters_follow_a_chain_of_queues(sqs: Any) -> None:
    """Each queue's policy names the next."""
    urls = [sqs.create_queue(QueueName=f"c{at}", Attributes={"VisibilityTimeout": "0"})["QueueUrl"] for at in range(3)]
    for url, following in itertools.pairwise(urls):
        policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, following), "maxReceiveCount": "1"})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    sqs.send_message(QueueUrl=urls[0], MessageBody="m")
    for url in urls[:2]:
        assert [len(take(sqs, url)) for _ in range(2)] == [1, 0]
    assert [len(take(sqs, urls[2])) for _ in range(3)] == [1, 1, 1]


def test_dlq_must_exist_have_the_same_type_and_be_another_queue(sqs: Any, queue: str) -> None:
    """Otherwise the policy is refused; an empty policy removes it."""
    fifo = sqs.create_queue(QueueName="f.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for target in (arn_of(sqs, fifo), arn_of(sqs, queue) + "-none", arn_of(sqs, queue)):
        policy = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 1})
        assert code(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"RedrivePolicy": policy}) == (
            "InvalidParameterValue"
        )
    source, _ = with_letters(sqs, 1)
    sqs.set_queue_attributes(QueueUrl=source, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes_of(sqs, source)


def test_dead_letters_are_moved_back_or_to_a_destination(server: SqsServer, tenant: str, sqs: Any) -> None:
    """One task runs at a time, is listed with its progress, and can be cancelled. Dry runs are not listed."""
    queue, letters = with_letters(sqs, 1, VisibilityTimeout="0")
    for number in range(4):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
    for _ in range(2):
        take(sqs, queue, MaxNumberOfMessages=10)
    source = arn_of(sqs, letters)
    handle = sqs.start_message_move_task(SourceArn=source, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    assert code(sqs.start_message_move_task, SourceArn=source) == "InvalidParameterValue"
    (task,) = sqs.list_message_move_tasks(SourceArn=source)["Results"]
    assert (task["Status"], task["TaskHandle"], task["MaxNumberOfMessagesPerSecond"]) == ("RUNNING", handle, 1)
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert moved < 4
    assert code(sqs.cancel_message_move_task, TaskHandle=handle) == "AWS.SimpleQueueService.UnsupportedOperation"
    server.run(server.server.service.redrives.start(server.admin, tenant, "letters", filter=None, dry_run=True))
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    sqs.start_message_move_task(SourceArn=source, DestinationArn=arn_of(sqs, other))
    server.clock.advance(1_000)
    newest, first = sqs.list_message_move_tasks(SourceArn=source, MaxResults=10)["Results"]
    assert (newest["Status"], newest["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 4 - moved)
    assert (newest["DestinationArn"], first["Status"]) == (arn_of(sqs, other), "CANCELLED")
    assert len(take(sqs, other, MaxNumberOfMessages=10)) == 4 - moved
    assert len(take(sqs, queue, MaxNumberOfMessages=10)) == moved
    assert code(sqs.start_message_move_task, SourceArn=arn_of(sqs, queue)) == "InvalidParameterValue"
    assert code(sqs.start_message_move_task, SourceArn=source + "-none") == "ResourceNotFoundException"
    assert code(sqs.cancel_message_move_task, TaskHandle="garbage") == "InvalidParameterValue"


def test_sqs_attributes_and_tags_are_queue_settings(server: SqsServer, sqs: Any, tenant: str) -> None:
    """HTTP shows them, and exports contain them."""
    sqs.create_queue(QueueName="kept", Attributes={"DelaySeconds": "9"}, tags={"team": "a"})
    info = server.run(server.server.service.queues.get(server.admin, tenant, "kept"))
    assert (info.config.tags, info.config.sqs is not None and info.config.sqs.delay_s) == ({"team": "a"}, 9)


def test_reading_attributes_tags_and_names_is_journaled(server: SqsServer, tenant: str, sqs: Any, queue: str) -> None:
    """As over HTTP: the first read of a caller at once, and one row for a call. A URL alone shows no settings."""
    sqs.get_queue_url(QueueName="work")
    for _ in range(3):
        sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["VisibilityTimeout"])
    sqs.list_queue_tags(QueueUrl=queue)
    sqs.list_queues()
    server.run(server.server.service.admission.write_notes())
    page = server.run(server.server.service.audit.query(server.admin, tenant))
    read = [(row.op, row.queue, row.outcome, row.count) for row in page.rows if row.op in VIEWS]
    assert read == [("get_queue", "work", "ok", 1), ("list_queues", "", "ok", 1), ("get_queue", "work", "ok", 3)]
    assert all(row.principal.startswith("key:") for row in page.rows if row.op in VIEWS)
