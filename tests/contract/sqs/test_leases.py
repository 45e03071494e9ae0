"""Leases over Amazon SQS: zero timeouts, old handles, the maximum time, groups, and dead letters."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tenantq.service.call import Call
from tenantq.sqs.cooldowns import REMEMBERED_MAX, Cooldowns
from tenantq.testing import FakeClock
from tests.contract.sqs.refusals import NO_QUEUE, code, refusal
from tests.contract.sqs.sqs_server import REGION, client_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.sqs.sqs_server import SqsServer


def receive(sqs: Any, queue: str, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of a receive, with all attributes."""
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"], **options).get(
        "Messages", []
    )
    return found


def arn(url: str) -> str:
    """Return the ARN of a queue by its URL."""
    *_, account, name = url.split("/")
    return f"arn:aws:sqs:{REGION}:{account}:{name}"


def queue_with_letters(sqs: Any, name: str, letters: str, most: int = 1, **attributes: Any) -> str:
    """Create a queue with a dead-letter queue."""
    policy = json.dumps({"maxReceiveCount": most, "deadLetterTargetArn": arn(letters)})
    url: str = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy, **attributes})["QueueUrl"]
    return url


def figure(sqs: Any, queue: str) -> int:
    """Return the number of messages that wait in a queue."""
    name = "ApproximateNumberOfMessages"
    return int(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])["Attributes"][name])


def rows(server: SqsServer, tenant: str, outcome: str) -> Iterator[tuple[str, str, str]]:
    """Yield action, queue and code of refused calls in the journal."""
    server.clock.advance(1_500)
    for row in server.run(server.server.service.audit.query(server.admin, tenant)).rows:
        if row.outcome == outcome:
            yield row.op, row.queue, row.error_code


def test_group_on_a_standard_queue_neither_orders_nor_blocks(sqs: Any, queue: str) -> None:
    """All messages of one group can be in flight at once, and each has its group."""
    entries = [{"Id": str(at), "MessageBody": str(at), "MessageGroupId": "one"} for at in range(5)]
    sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    got = receive(sqs, queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert [one["Body"] for one in got] == ["0", "1", "2", "3", "4"]
    assert {one["Attributes"]["MessageGroupId"] for one in got} == {"one"}
    assert not any("MessageAttributes" in one for one in got)


def test_consumer_may_receive_with_a_zero_timeout(server: SqsServer, sqs: Any, tenant: str) -> None:
    """Each receive counts, and after the last one the message moves to the dead letters."""
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    url = queue_with_letters(sqs, "main", letters, most=2)
    sqs.send_message(QueueUrl=url, MessageBody="m")
    key = server.key(tenant, None, actions=("poll", "ack"))
    consumer = client_of(server.url, key.key_id, key.secret)
    assert [len(receive(consumer, url, VisibilityTimeout=0)) for _ in range(3)] == [1, 1, 0]
    assert figure(sqs, letters) == 1


def test_right_to_extend_allows_a_zero_timeout(server: SqsServer, sqs: Any, queue: str, tenant: str) -> None:
    """A change to zero is a change of visibility like any other."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    key = server.key(tenant, None, actions=("poll", "extend"))
    consumer = client_of(server.url, key.key_id, key.secret)
    (got,) = receive(consumer, queue)
    consumer.change_message_visibility(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    assert len(receive(consumer, queue)) == 1


def test_old_handle_changes_the_visibility_of_a_message_in_flight(server: SqsServer, sqs: Any, queue: str) -> None:
    """On a standard queue it changes the current lease; on a FIFO queue it is refused."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (old,) = receive(sqs, queue, VisibilityTimeout=1)
    server.clock.advance(2_000)
    change = {"QueueUrl": queue, "ReceiptHandle": old["ReceiptHandle"]}
    sqs.change_message_visibility(**change, VisibilityTimeout=5)  # not in flight: no effect
    assert len(receive(sqs, queue, VisibilityTimeout=5)) == 1
    sqs.change_message_visibility(**change, VisibilityTimeout=100)
    server.clock.advance(50_000)
    assert receive(sqs, queue) == []
    sqs.change_message_visibility(**change, VisibilityTimeout=0)
    assert len(receive(sqs, queue)) == 1
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    ordered = sqs.create_queue(QueueName="ordered.fifo", Attributes=fifo)["QueueUrl"]
    sqs.send_message(QueueUrl=ordered, MessageBody="m", MessageGroupId="g")
    (old,) = receive(sqs, ordered, VisibilityTimeout=1)
    server.clock.advance(2_000)
    (new,) = receive(sqs, ordered)
    change = {"QueueUrl": ordered, "VisibilityTimeout": 5}
    assert code(sqs.change_message_visibility, **change, ReceiptHandle=old["ReceiptHandle"]) == "InvalidParameterValue"
    sqs.change_message_visibility(**change, ReceiptHandle=new["ReceiptHandle"])


def test_visibility_is_limited_to_twelve_hours(server: SqsServer, sqs: Any, queue: str) -> None:
    """Repeated changes do not extend it, and a refused change keeps the current timeout."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (got,) = receive(sqs, queue, VisibilityTimeout=120)
    server.clock.advance(100_000)
    change = {"QueueUrl": queue, "ReceiptHandle": got["ReceiptHandle"]}
    told = refusal(sqs.change_message_visibility, **change, VisibilityTimeout=43_200)
    assert told[0] == "InvalidParameterValue"
    assert "Total VisibilityTimeout for the message is beyond the limit" in told[1]
    sqs.change_message_visibility(**change, VisibilityTimeout=43_000)
    server.clock.advance(42_000_000)
    assert receive(sqs, queue) == []


def test_concurrent_tags_and_statements_are_all_kept(server: SqsServer, sqs: Any, queue: str) -> None:
    """No change overwrites another."""
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda at: sqs.tag_queue(QueueUrl=queue, Tags={f"t{at}": "x"}), range(10)))
        label = {"QueueUrl": queue, "AWSAccountIds": ["000000000001"], "Actions": ["SendMessage"]}
        list(pool.map(lambda at: sqs.add_permission(**label, Label=f"l{at}"), range(10)))
        assert len(sqs.list_queue_tags(QueueUrl=queue)["Tags"]) == 10
        policy = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])["Attributes"]["Policy"]
        assert {one["Sid"] for one in json.loads(policy)["Statement"]} == {f"l{at}" for at in range(10)}
        list(pool.map(lambda at: sqs.untag_queue(QueueUrl=queue, TagKeys=[f"t{at}"]), range(9)))
        list(pool.map(lambda at: sqs.remove_permission(QueueUrl=queue, Label=f"l{at}"), range(9)))
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"t9": "x"}
    policy = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert [one["Sid"] for one in json.loads(policy)["Statement"]] == ["l9"]
    assert code(sqs.add_permission, **label, Label="l9") == "InvalidParameterValue"
    assert code(sqs.remove_permission, QueueUrl=queue, Label="l0") == "InvalidParameterValue"


def test_queue_of_another_account_looks_unknown_and_is_audited(
    server: SqsServer, sqs: Any, queue: str, tenant: str
) -> None:
    """By URL, owner or ARN, the reply is the same whether it exists or not."""
    server.tenant("stranger")
    other = server.client("stranger")
    mine = other.create_queue(QueueName="mine")["QueueUrl"]
    account = queue.split("/")[-2]
    for url in (queue, queue + "-none", queue.replace(account, "999999999999")):
        assert code(other.send_message, QueueUrl=url, MessageBody="m") == NO_QUEUE
        assert code(other.get_queue_attributes, QueueUrl=url, AttributeNames=["All"]) == NO_QUEUE
    assert code(other.get_queue_url, QueueName="work", QueueOwnerAWSAccountId=account) == NO_QUEUE
    assert code(other.start_message_move_task, SourceArn=arn(queue)) == "ResourceNotFoundException"
    told = code(queue_with_letters, sqs=other, name="more", letters=queue)
    assert told == "InvalidParameterValue"
    assert {("add", "work", "forbidden"), ("get_queue", "work", "forbidden"), ("put_queue", "work", "forbidden")} <= {
        *rows(server, tenant, "denied")
    }
    key = server.key("stranger", "producer")
    producer = client_of(server.url, key.key_id, key.secret)
    assert code(producer.receive_message, QueueUrl=mine) == "AccessDenied"


def test_handle_of_another_tenant_is_refused_and_audited(server: SqsServer, sqs: Any, queue: str, tenant: str) -> None:
    """Covers deletes and visibility changes, single and in batches."""
    server.tenant("burglar")
    burglar = server.client("burglar")
    own = burglar.create_queue(QueueName="work")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    (got,) = receive(sqs, queue)
    stolen = {"QueueUrl": own, "ReceiptHandle": got["ReceiptHandle"]}
    assert code(burglar.delete_message, **stolen) == "ReceiptHandleIsInvalid"
    assert code(burglar.change_message_visibility, **stolen, VisibilityTimeout=0) == "ReceiptHandleIsInvalid"
    entry = {"Id": "a", "ReceiptHandle": got["ReceiptHandle"]}
    assert len(burglar.delete_message_batch(QueueUrl=own, Entries=[entry])["Failed"]) == 1
    noted = [*rows(server, "burglar", "refused")]
    assert noted.count(("ack", "work", "lease_lost")) == 2
    assert noted.count(("extend", "work", "lease_lost")) == 1
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])


def test_deleted_dead_letter_queue_is_not_recreated(server: SqsServer, sqs: Any) -> None:
    """Messages that would move there stay until it exists again."""
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    url = queue_with_letters(sqs, "main", letters, VisibilityTimeout="0")
    sqs.send_message(QueueUrl=url, MessageBody="m")
    sqs.delete_queue(QueueUrl=letters)
    assert [len(receive(sqs, url)) for _ in range(3)] == [1, 0, 0]
    assert code(sqs.get_queue_url, QueueName="letters") == NO_QUEUE
    server.clock.advance(61_000)
    sqs.create_queue(QueueName="letters")
    assert receive(sqs, url) == []
    assert [one["Body"] for one in receive(sqs, letters)] == ["m"]


def test_move_with_a_destination_takes_messages_sent_directly_to_the_dlq(server: SqsServer, sqs: Any) -> None:
    """Without a destination, only messages with a source queue move."""
    letters = sqs.create_queue(QueueName="letters", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
    url = queue_with_letters(sqs, "main", letters, VisibilityTimeout="0")
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    sqs.send_message(QueueUrl=letters, MessageBody="seen")
    receive(sqs, letters)
    sqs.send_message(QueueUrl=letters, MessageBody="unseen")
    sqs.send_message(QueueUrl=url, MessageBody="dead")
    receive(sqs, url)
    receive(sqs, url)
    assert figure(sqs, letters) == 3
    sqs.start_message_move_task(SourceArn=arn(letters))
    server.run(server._settled())
    assert (figure(sqs, letters), figure(sqs, url)) == (2, 1)
    sqs.start_message_move_task(SourceArn=arn(letters), DestinationArn=arn(other))
    server.run(server._settled())
    assert figure(sqs, letters) == 0
    assert {one["Body"] for one in receive(sqs, other, MaxNumberOfMessages=10)} == {"seen", "unseen"}


def test_fifo_dead_letter_has_its_message_id_as_deduplication_id(sqs: Any) -> None:
    """The move to the dead letters sets it."""
    fifo: dict[str, Any] = {"FifoQueue": "true", "VisibilityTimeout": "0"}
    letters = sqs.create_queue(QueueName="letters.fifo", Attributes=fifo)["QueueUrl"]
    url = queue_with_letters(sqs, "main.fifo", letters, **fifo)
    sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="g", MessageDeduplicationId="d")
    assert receive(sqs, url)[0]["Attributes"]["MessageDeduplicationId"] == "d"
    receive(sqs, url)
    (letter,) = receive(sqs, letters)
    assert letter["Attributes"]["MessageDeduplicationId"] == letter["MessageId"]


def test_metadata_reads_count_towards_the_read_rate(server: SqsServer) -> None:
    """Names and attributes count like messages; sending is not affected."""
    server.tenant("curious", limits={"read": {"ops_per_sec": 1, "burst": 3}})
    sqs = server.client("curious")
    url = sqs.create_queue(QueueName="work")["QueueUrl"]
    sqs.list_queues()
    sqs.get_queue_url(QueueName="work")
    sqs.list_queue_tags(QueueUrl=url)
    assert code(sqs.get_queue_url, QueueName="work") == "RequestThrottled"
    assert code(sqs.list_queues) == "RequestThrottled"
    sqs.send_message(QueueUrl=url, MessageBody="m")
    server.clock.advance(1_000)
    sqs.list_queues()


async def test_cooldowns_of_one_tenant_do_not_evict_those_of_another() -> None:
    """A tenant that deletes many queues only loses its own oldest cooldowns."""
    clock = FakeClock()
    pauses = Cooldowns(clock, 60_000)
    await pauses.note(Call(), "one", 1, "work")
    for number in range(REMEMBERED_MAX + 1):
        await pauses.note(Call(), "two", 2, f"q{number}")
    assert await pauses.is_on(Call(), "one", 1, "work")
    assert [await pauses.is_on(Call(), "two", 2, f"q{number}") for number in (0, 1, REMEMBERED_MAX)] == [
        False,
        True,
        True,
    ]
    await pauses.note(Call(), "three", 3, "work")
    assert await pauses.is_on(Call(), "three", 3, "work")


def test_redrive_allow_policy_decides_who_may_use_a_dlq(sqs: Any, queue: str) -> None:
    """All queues, none, or those named; an invalid policy is refused."""
    letters = sqs.create_queue(QueueName="letters")["QueueUrl"]
    setting = {"QueueUrl": letters}
    policies: list[tuple[dict[str, Any], bool]] = [
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn(letters)]}, False),
        ({"redrivePermission": "byQueue", "sourceQueueArns": [arn(letters), arn(queue)]}, True),
        ({"redrivePermission": "allowAll"}, True),
    ]
    redrive = json.dumps({"maxReceiveCount": 1, "deadLetterTargetArn": arn(letters)})
    for policy, taken in policies:
        sqs.set_queue_attributes(**setting, Attributes={"RedriveAllowPolicy": json.dumps(policy)})
        wanted = {"QueueUrl": queue, "Attributes": {"RedrivePolicy": redrive}}
        if taken:
            sqs.set_queue_attributes(**wanted)
        else:
            assert code(sqs.set_queue_attributes, **wanted) == "InvalidParameterValue", policy
    for wrong in (
        "{",
        "[]",
        "{}",
        '{"redrivePermission": "some"}',
        '{"redrivePermission": "byQueue"}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": ["x"]}',
        json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn(queue)] * 11}),
        json.dumps({"redrivePermission": "allowAll", "sourceQueueArns": [arn(queue)]}),
    ):
        told = code(sqs.set_queue_attributes, **setting, Attributes={"RedriveAllowPolicy": wrong})
        assert told == "InvalidParameterValue", wrong


def test_receive_attempt_id_is_for_fifo_queues_and_well_formed(sqs: Any, queue: str) -> None:
    """On standard queues it would promise what does not hold."""
    assert code(sqs.receive_message, QueueUrl=queue, ReceiveRequestAttemptId="a") == "InvalidParameterValue"
    ordered = sqs.create_queue(QueueName="ordered.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    assert code(sqs.receive_message, QueueUrl=ordered, ReceiveRequestAttemptId="a b") == "InvalidParameterValue"
    assert receive(sqs, ordered, ReceiveRequestAttemptId="a") == []


def test_throughput_limit_per_group_needs_deduplication_per_group(sqs: Any) -> None:
    """This is checked at creation and on later changes."""
    by_group = {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}
    making = {"QueueName": "ordered.fifo", "Attributes": by_group}
    assert code(sqs.create_queue, **making) == "InvalidAttributeValue"
    url = sqs.create_queue(QueueName="ordered.fifo", Attributes={**by_group, "DeduplicationScope": "messageGroup"})[
        "QueueUrl"
    ]
    told = code(sqs.set_queue_attributes, QueueUrl=url, Attributes={"DeduplicationScope": "queue"})
    assert told == "InvalidAttributeValue"


def test_sent_and_first_receive_times_are_stable(sqs: Any, queue: str) -> None:
    """They are exact to the millisecond on every receive."""
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    names = ("SentTimestamp", "ApproximateFirstReceiveTimestamp")
    told = set()
    for _ in range(30):
        (got,) = receive(sqs, queue, VisibilityTimeout=0)
        told.add(tuple(got["Attributes"][name] for name in names))
    assert len(told) == 1


def test_retention_continues_in_the_dlq_and_restarts_with_a_move_task(server: SqsServer, sqs: Any) -> None:
    """As in Amazon SQS, the retention is that of the queue that holds the message."""
    letters = sqs.create_queue(QueueName="kept", Attributes={"MessageRetentionPeriod": "100"})["QueueUrl"]
    queue = queue_with_letters(sqs, "work", letters, MessageRetentionPeriod="90")

    def die() -> None:
        receive(sqs, queue, VisibilityTimeout=0)
        assert receive(sqs, queue) == []
        assert figure(sqs, letters) == 1

    sqs.send_message(QueueUrl=queue, MessageBody="m")
    server.clock.advance(60_000)
    die()
    server.clock.advance(30_000)  # 90 seconds old: its source queue would have expired it
    sqs.start_message_move_task(SourceArn=arn(letters))
    assert figure(sqs, queue) == 1
    server.clock.advance(80_000)
    die()
    server.clock.advance(10_000)
    assert figure(sqs, letters) == 1
    server.clock.advance(10_001)
    assert figure(sqs, letters) == 0
