"""Messages through the blocking client: the whole lifecycle, on the fake and over a socket."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.client import UNSET, NewMessage
from tenantq.errors import Conflict, Invalid, LeaseLost, NotFound, TimedOut, TooLarge

if TYPE_CHECKING:
    from tenantq.client import Client
    from tenantq.client.queue_calls import LeaseSettlement
    from tests.contract.client.conftest import ServerUnderTest


class Mail(msgspec.Struct):
    to: str


@dataclasses.dataclass
class Job:
    name: str


@pytest.mark.parametrize(
    ("body", "arrives"),
    [(b"\x00\xff", b"\x00\xff"), ("grüß", "grüß".encode()), ({"a": 1}, b'{"a":1}'), (Mail("x"), b'{"to":"x"}'),
     (Job("x"), b'{"name":"x"}'), (b"", b"")],
)  # fmt: skip
def test_body_arrives_as_it_was_sent(client: Client, body: object, arrives: bytes) -> None:
    """It may be bytes, text or JSON."""
    queue = client.queue("mail")
    queue.add(body)
    (message,) = queue.poll()
    assert message.body == arrives
    message.ack()


def test_message_arrives_with_all_its_fields(client: Client) -> None:
    """These are priority, attributes and group, and what the server adds."""
    queue = client.queue("mail")
    added = queue.add({"to": "x"}, priority=7, attributes={"lang": "de"}, group="g", max_attempts=2, ttl_ms=60_000)
    stored = queue.get(added.id)
    assert (stored.state, stored.json(), stored.max_attempts, stored.hidden) == ("ready", {"to": "x"}, 2, False)
    (message,) = queue.poll(lease_ms=5_000)
    assert message.id == added.id
    assert message.json(Mail) == Mail("x")
    assert (message.text, message.attempt, message.priority) == ('{"to":"x"}', 1, 7)
    assert (message.attributes, message.group) == ({"lang": "de"}, "g")
    assert (message.tenant, message.queue, message.lease_ms) == ("default", "mail", 5_000)
    assert message.lease_until > message.added_at
    assert message.result is UNSET
    message.ack()
    assert message.settled
    with pytest.raises(NotFound):
        queue.get(added.id)


def test_lease_time_is_known_without_asking_for_one(client: Client) -> None:
    """It is the queue's, minus the time that the reply took."""
    queue = client.queue("mail")
    queue.configure(lease_ms=45_000)
    queue.add("x")
    (message,) = queue.poll()
    assert message.lease_ms is not None
    assert 40_000 <= message.lease_ms <= 45_000


def test_successful_block_acks_with_its_result(client: Client) -> None:
    """Callers that wait for the result get it."""
    queue = client.queue("mail")
    ids = [queue.add(f"{n}").id for n in range(3)]
    for message in queue.poll(3):
        with message:
            message.result = {"length": len(message.body)}
    assert queue.stats().acked_total == 3
    assert queue.wait_result(ids[0]).json() == {"length": 1}
    assert {one.id for one in queue.iter_results(ids)} == set(ids)


def test_result_may_be_none(client: Client) -> None:
    """None is a valid result. Without a result, the message is completed and has no value."""
    queue = client.queue("mail")
    with_none, without = queue.add("a"), queue.add("b")
    first, second = queue.poll(2)
    first.ack(None)
    second.ack()
    assert queue.result(with_none.id).json() is None
    assert (queue.wait_result(without.id).status, queue.result(without.id).value) == ("completed", None)


def test_failed_block_nacks_with_the_exception_name(client: Client) -> None:
    """The exception propagates."""
    queue = client.queue("mail")
    added = queue.add("x")
    (message,) = queue.poll()
    with pytest.raises(ValueError, match="bad input"), message:
        raise ValueError("bad input")
    (entry,) = queue.get(added.id).history
    assert (entry.outcome, entry.reason) == ("nacked", "ValueError: bad input")


@pytest.mark.parametrize(("result", "error"), [(object(), Invalid), ("x" * (2 << 20), TooLarge)])
def test_block_with_an_invalid_result_fails(client: Client, result: object, error: type[Exception]) -> None:
    """A result that cannot be serialized or is too large nacks the message and raises."""
    queue = client.queue("mail")
    added = queue.add("x")
    (message,) = queue.poll()
    with pytest.raises(error, match="result"), message:
        message.result = result
    (entry,) = queue.get(added.id).history
    assert entry.outcome == "nacked"
    assert entry.reason.startswith(f"{error.__name__}: result")
    assert message.settled


def test_interrupted_block_releases_its_message(client: Client) -> None:
    """An interrupt is nobody's failure, so it uses no attempt."""
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll()
    with pytest.raises(KeyboardInterrupt), message:
        raise KeyboardInterrupt
    (again,) = queue.poll()
    assert again.attempt == 1


def test_message_settled_inside_its_block_is_not_settled_again(client: Client) -> None:
    """This holds for every way of settling."""
    queue = client.queue("mail")
    queue.add_many(["a", "b", "c", "d"])
    first, second, third, fourth = queue.poll(4)
    with first:
        first.nack(delay_ms=60_000, reason="later")
    with second:
        second.release()
    with third:
        third.ack()
    with fourth:
        fourth.fail("hopeless")
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.in_flight, stats.acked_total) == (1, 1, 0, 2)


def test_permanent_failure_is_the_result(client: Client) -> None:
    """There is no further attempt, and callers that wait get the error."""
    queue = client.queue("mail")
    added = queue.add("x")
    (message,) = queue.poll()
    message.fail("no such address")
    result = queue.wait_result(added.id)
    assert (result.status, result.error, result.done) == ("failed", "no such address", True)
    with pytest.raises(Invalid, match="no such address"):
        result.json()


def test_lease_is_lost_after_its_deadline(server: ServerUnderTest, client: Client) -> None:
    """The message is delivered again."""
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll(lease_ms=1_000)
    server.clock.advance(1_001)
    for settle in (message.ack, message.nack, message.release, message.extend):
        with pytest.raises(LeaseLost):
            settle()
    assert not message.settled
    (again,) = queue.poll()
    assert again.attempt == 2


def test_extending_a_lease_keeps_the_message(server: ServerUnderTest, client: Client) -> None:
    """The new deadline counts from now."""
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll(lease_ms=1_000)
    until = message.lease_until
    message.extend(60_000)
    assert message.lease_until > until
    assert message.lease_ms == 60_000
    server.clock.advance(30_000)
    message.ack()


def test_heartbeat_extends_the_lease_while_the_block_runs(client: Client) -> None:
    """A block of two lease times ends with an ack. It runs in real time, because clients have their own clock."""
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll(lease_ms=300)
    beats = threading.Event()
    settle = message._inner._calls.settle
    count = 0

    async def counted(operation: tuple[object, ...], settlement: LeaseSettlement) -> int | None:
        nonlocal count
        count += operation[0] == "extend"
        if count == 6:
            beats.set()
        return await settle(operation, settlement)

    message._inner._calls.settle = counted  # type: ignore[method-assign]  # to hear the beats
    with message:
        assert beats.wait(10)
    assert not message.lost
    assert queue.stats().acked_total == 1


def test_add_many_keeps_order_and_adds_all_valid_messages(client: Client) -> None:
    """An error is raised after all were tried, or returned in its place."""
    queue = client.queue("mail")
    big = b"x" * ((1 << 20) + 1)
    added = queue.add_many(["a", big, NewMessage(body=b"c", priority=0), {"d": 1}], errors="return")
    assert [type(one.error) for one in added] == [type(None), TooLarge, type(None), type(None)]
    assert [message.body for message in queue.poll(10)] == [b"a", b"c", b'{"d":1}']
    with pytest.raises(TooLarge) as caught:
        queue.add_many(["a", big, "b"])
    assert "item 1 (from 0)" in caught.value.__notes__[0]
    assert queue.add_many([]) == []


def test_add_many_splits_large_lists_into_requests(client: Client) -> None:
    """Limits on messages and bytes are respected, and the order is kept."""
    queue = client.queue("mail")
    added = queue.add_many(str(n) for n in range(2_345))
    assert len({one.id for one in added}) == 2_345
    assert [one.id for one in added] == sorted(one.id for one in added)
    large = client.queue("large")
    large.add_many(bytes(900_000) for _ in range(12))
    assert large.stats().bytes == 12 * 900_000


def test_ack_many(server: ServerUnderTest, client: Client) -> None:
    """Each receipt has its own result and outcome."""
    queue = client.queue("mail")
    added = queue.add_many(["a", "b", "c"])
    (late,) = queue.poll(lease_ms=100)
    server.clock.advance(200)
    others = queue.poll(2, lease_ms=60_000)
    others[0].result = "done"
    fates = queue.ack_many([others[0], late, others[1]], errors="return")
    assert [type(fate) for fate in fates] == [type(None), LeaseLost, type(None)]
    assert others[0].settled
    assert not late.settled
    assert queue.wait_result(next(one.id for one in added if one.id == others[0].id)).text == "done"
    with pytest.raises(LeaseLost):
        queue.ack_many([late])
    queue.add_many(["d", "e"])
    bad, good = queue.poll(2)
    bad.result = object()
    fates = queue.ack_many([bad, good], errors="return")
    assert [type(fate) for fate in fates] == [Invalid, type(None)]
    assert (bad.settled, good.settled) == (False, True)
    with pytest.raises(Invalid, match="other"):
        client.queue("other").ack_many([late])


def test_idempotency_key_adds_once(client: Client) -> None:
    """The same key returns the same ID; with another body it is a conflict."""
    queue = client.queue("mail")
    first = queue.add("x", key="order-7")
    again = queue.add("x", key="order-7")
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    with pytest.raises(Conflict):
        queue.add("y", key="order-7")


def test_equal_messages_without_a_key_are_different_messages(client: Client) -> None:
    """Generated keys are unique."""
    queue = client.queue("mail")
    assert len({queue.add("same").id for _ in range(10)}) == 10
    assert queue.stats().ready == 10


def test_delayed_message_is_never_early(server: ServerUnderTest, client: Client) -> None:
    """It is delivered when the delay ends."""
    queue = client.queue("mail")
    queue.add("x", delay_ms=60_000)
    server.clock.advance(50_000)
    assert queue.poll() == []
    server.clock.advance(10_000)
    assert len(queue.poll()) == 1


def test_add_wakes_a_long_poll(client: Client) -> None:
    """The add comes from another thread, over the same client."""
    queue = client.queue("mail")
    queue.configure()
    timer = threading.Timer(0.05, lambda: queue.add("x"))
    timer.start()
    (message,) = queue.poll(wait_ms=20_000)
    assert message.body == b"x"
    timer.join()


def test_waiting_for_a_missing_result_times_out(client: Client) -> None:
    """The result of an unknown message is not found."""
    queue = client.queue("mail")
    added = queue.add("x")
    assert queue.result(added.id).status == "pending"
    with pytest.raises(TimedOut) as caught:
        queue.wait_result(added.id, timeout_ms=20)
    assert caught.value.id == added.id
    with pytest.raises(NotFound):
        queue.wait_result("0192f0c1-2f6a-7cc3-98c4-dc0c0c07398f")
    with pytest.raises(Invalid):
        queue.result("not an id")


def test_arguments_out_of_range_are_refused_by_name(client: Client) -> None:
    """The client checks limits that are the same everywhere; the server checks the others."""
    queue = client.queue("mail")
    with pytest.raises(Invalid, match="priority"):
        queue.add("x", priority=10)
    with pytest.raises(Invalid, match="max"):
        queue.poll(0)
    with pytest.raises(Invalid, match="wait_ms"):
        queue.poll(wait_ms=-1)
    with pytest.raises(Invalid, match="lease_ms"):
        queue.poll(lease_ms=0)
    with pytest.raises(TooLarge):
        queue.add(b"x" * ((1 << 20) + 1))
    with pytest.raises(Invalid, match="lease_ms"):
        queue.configure(lease_ms=-5)


def test_peek_and_trace_change_nothing(client: Client) -> None:
    """Peek works page by page, and trace shows the history."""
    queue = client.queue("mail")
    added = queue.add_many([f"{n}" for n in range(25)])
    page = queue.peek(10)
    rest = queue.peek(100, cursor=page.cursor)
    assert [one.text for one in page.messages + rest.messages] == [f"{n}" for n in range(25)]
    assert rest.cursor is None
    assert queue.stats().in_flight == 0
    assert [row["op"] for row in queue.trace(added[0].id)] == ["add"]


def test_messages_can_be_removed_and_queues_purged(client: Client) -> None:
    """A purge needs the queue's name and a reason."""
    queue = client.queue("mail")
    added = queue.add_many(["a", "b", "c"])
    assert queue.remove(added[0].id, "0192f0c1-2f6a-7cc3-98c4-dc0c0c07398f") == [True, False]
    assert queue.remove() == []
    with pytest.raises(Invalid):
        queue.purge(confirm="other", reason="a good enough reason")
    assert queue.purge(confirm="mail", reason="a good enough reason") == 2
    assert queue.stats().ready == 0


def test_dead_letters_can_be_redriven(client: Client) -> None:
    """They have their reason, can be filtered, and a dry run counts them."""
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.add_many(["a", "b"])
    for message in queue.poll(2):
        message.nack(reason="no luck")
    dead = client.queue("mail-dlq")
    assert {one.dead.reason for one in dead.peek().messages if one.dead is not None} == {"no luck"}
    assert queue.redrive(dry_run=True).dry_run
    task = queue.redrive(reason="no luck")
    while queue.redrive_status(task.task).state == "running":
        time.sleep(0.01)
    assert queue.redrive_status(task.task).moved == 2
    assert queue.cancel_redrive(task.task).state == "done"
    assert queue.stats().ready == 2


def test_queue_can_be_paused_and_deleted(client: Client) -> None:
    """A paused queue delivers nothing, and a deleted one is not found."""
    queue = client.queue("mail")
    queue.add("x")
    assert queue.pause().status == "paused"
    assert queue.poll() == []
    assert queue.resume().status == "active"
    assert len(queue.poll()) == 1
    queue.delete(confirm="mail", reason="a good enough reason", force=True)
    with pytest.raises(NotFound):
        queue.stats()
