"""Messages through the blocking client: the whole life, over the fake and over a socket."""

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
def test_a_body_arrives_as_it_was_sent(client: Client, body: object, arrives: bytes) -> None:
    """Bytes, text or JSON."""
    queue = client.queue("mail")
    queue.add(body)
    (message,) = queue.poll()
    assert message.body == arrives
    message.ack()


def test_a_message_arrives_with_everything_it_was_given(client: Client) -> None:
    """Priority, attributes, group; and what the server knows of it."""
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


def test_the_length_of_a_lease_is_known_without_asking_for_one(client: Client) -> None:
    """It is the queue's, to within the time the answer took."""
    queue = client.queue("mail")
    queue.configure(lease_ms=45_000)
    queue.add("x")
    (message,) = queue.poll()
    assert message.lease_ms is not None
    assert 40_000 <= message.lease_ms <= 45_000


def test_a_block_that_ends_well_acks_with_its_result(client: Client) -> None:
    """Whoever waits for it gets it."""
    queue = client.queue("mail")
    ids = [queue.add(f"{n}").id for n in range(3)]
    for message in queue.poll(3):
        with message:
            message.result = {"length": len(message.body)}
    assert queue.stats().acked_total == 3
    assert queue.wait_result(ids[0]).json() == {"length": 1}
    assert {one.id for one in queue.iter_results(ids)} == set(ids)


def test_a_result_may_be_nothing(client: Client) -> None:
    """None is a result like any other. Without a result, the message is completed and has no value."""
    queue = client.queue("mail")
    with_none, without = queue.add("a"), queue.add("b")
    first, second = queue.poll(2)
    first.ack(None)
    second.ack()
    assert queue.result(with_none.id).json() is None
    assert (queue.wait_result(without.id).status, queue.result(without.id).value) == ("completed", None)


def test_a_block_that_fails_nacks_with_the_exceptions_name(client: Client) -> None:
    """And the exception goes on."""
    queue = client.queue("mail")
    added = queue.add("x")
    (message,) = queue.poll()
    with pytest.raises(ValueError, match="bad input"), message:
        raise ValueError("bad input")
    (entry,) = queue.get(added.id).history
    assert (entry.outcome, entry.reason) == ("nacked", "ValueError: bad input")


@pytest.mark.parametrize(("result", "error"), [(object(), Invalid), ("x" * (2 << 20), TooLarge)])
def test_a_block_whose_result_is_refused_has_failed(client: Client, result: object, error: type[Exception]) -> None:
    """What cannot be written, or is too large, is an error like any other: the message is nacked, and the error raised."""
    queue = client.queue("mail")
    added = queue.add("x")
    (message,) = queue.poll()
    with pytest.raises(error, match="result"), message:
        message.result = result
    (entry,) = queue.get(added.id).history
    assert entry.outcome == "nacked"
    assert entry.reason.startswith(f"{error.__name__}: result")
    assert message.settled


def test_a_block_that_is_interrupted_releases(client: Client) -> None:
    """Nobody's fault uses up no attempt."""
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll()
    with pytest.raises(KeyboardInterrupt), message:
        raise KeyboardInterrupt
    (again,) = queue.poll()
    assert again.attempt == 1


def test_a_message_settled_inside_its_block_is_left_alone(client: Client) -> None:
    """By any of the ways."""
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


def test_failing_for_good_tells_who_waits(client: Client) -> None:
    """No further attempt, and the error is the result."""
    queue = client.queue("mail")
    added = queue.add("x")
    (message,) = queue.poll()
    message.fail("no such address")
    result = queue.wait_result(added.id)
    assert (result.status, result.error, result.done) == ("failed", "no such address", True)
    with pytest.raises(Invalid, match="no such address"):
        result.json()


def test_after_its_deadline_a_lease_is_lost(server: ServerUnderTest, client: Client) -> None:
    """And the message is delivered again."""
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
    """From now on, for as long as asked."""
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll(lease_ms=1_000)
    until = message.lease_until
    message.extend(60_000)
    assert message.lease_until > until
    assert message.lease_ms == 60_000
    server.clock.advance(30_000)
    message.ack()


def test_a_heartbeat_keeps_the_lease_alive_while_the_block_runs(client: Client) -> None:
    """A block of two leases' length ends with an ack. In real time: a client's clock is its own."""
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


def test_many_are_added_in_order_and_one_bad_one_keeps_nobody_out(client: Client) -> None:
    """Its error is raised after all were tried, or returned in its place."""
    queue = client.queue("mail")
    big = b"x" * ((1 << 20) + 1)
    added = queue.add_many(["a", big, NewMessage(body=b"c", priority=0), {"d": 1}], errors="return")
    assert [type(one.error) for one in added] == [type(None), TooLarge, type(None), type(None)]
    assert [message.body for message in queue.poll(10)] == [b"a", b"c", b'{"d":1}']
    with pytest.raises(TooLarge) as caught:
        queue.add_many(["a", big, "b"])
    assert "item 1 (from 0)" in caught.value.__notes__[0]
    assert queue.add_many([]) == []


def test_any_number_is_added_in_as_many_requests_as_it_takes(client: Client) -> None:
    """More than a request may hold, in messages and in bytes, in order."""
    queue = client.queue("mail")
    added = queue.add_many(str(n) for n in range(2_345))
    assert len({one.id for one in added}) == 2_345
    assert [one.id for one in added] == sorted(one.id for one in added)
    large = client.queue("large")
    large.add_many(bytes(900_000) for _ in range(12))
    assert large.stats().bytes == 12 * 900_000


def test_many_are_acked_together(server: ServerUnderTest, client: Client) -> None:
    """Each with its own result and its own fate."""
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


def test_a_key_adds_once(client: Client) -> None:
    """The same key gives the same id; with another body it is a conflict."""
    queue = client.queue("mail")
    first = queue.add("x", key="order-7")
    again = queue.add("x", key="order-7")
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    with pytest.raises(Conflict):
        queue.add("y", key="order-7")


def test_equal_messages_without_a_key_are_different_messages(client: Client) -> None:
    """A made-up key is nobody else's."""
    queue = client.queue("mail")
    assert len({queue.add("same").id for _ in range(10)}) == 10
    assert queue.stats().ready == 10


def test_a_delay_is_kept(server: ServerUnderTest, client: Client) -> None:
    """Not a moment earlier."""
    queue = client.queue("mail")
    queue.add("x", delay_ms=60_000)
    server.clock.advance(50_000)
    assert queue.poll() == []
    server.clock.advance(10_000)
    assert len(queue.poll()) == 1


def test_a_long_poll_is_woken_by_an_add(client: Client) -> None:
    """From another thread, over the same client."""
    queue = client.queue("mail")
    queue.configure()
    timer = threading.Timer(0.05, lambda: queue.add("x"))
    timer.start()
    (message,) = queue.poll(wait_ms=20_000)
    assert message.body == b"x"
    timer.join()


def test_waiting_for_a_result_that_does_not_come_is_timed_out(client: Client) -> None:
    """And one of a message that never was is not found."""
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
    """Before they are sent, where a limit is everybody's; by the server otherwise."""
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


def test_looking_leaves_everything_as_it_is(client: Client) -> None:
    """Peek by pages, and trace the history."""
    queue = client.queue("mail")
    added = queue.add_many([f"{n}" for n in range(25)])
    page = queue.peek(10)
    rest = queue.peek(100, cursor=page.cursor)
    assert [one.text for one in page.messages + rest.messages] == [f"{n}" for n in range(25)]
    assert rest.cursor is None
    assert queue.stats().in_flight == 0
    assert [row["op"] for row in queue.trace(added[0].id)] == ["add"]


def test_messages_can_be_removed_and_a_queue_emptied(client: Client) -> None:
    """By id; or all, with its name and a reason."""
    queue = client.queue("mail")
    added = queue.add_many(["a", "b", "c"])
    assert queue.remove(added[0].id, "0192f0c1-2f6a-7cc3-98c4-dc0c0c07398f") == [True, False]
    assert queue.remove() == []
    with pytest.raises(Invalid):
        queue.purge(confirm="other", reason="a good enough reason")
    assert queue.purge(confirm="mail", reason="a good enough reason") == 2
    assert queue.stats().ready == 0


def test_dead_letters_can_be_sent_back(client: Client) -> None:
    """With their reason, filtered, and after a look at how many it would be."""
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


def test_a_queue_can_be_paused_and_deleted(client: Client) -> None:
    """Nothing is handed out meanwhile; a deleted queue is gone."""
    queue = client.queue("mail")
    queue.add("x")
    assert queue.pause().status == "paused"
    assert queue.poll() == []
    assert queue.resume().status == "active"
    assert len(queue.poll()) == 1
    queue.delete(confirm="mail", reason="a good enough reason", force=True)
    with pytest.raises(NotFound):
        queue.stats()
