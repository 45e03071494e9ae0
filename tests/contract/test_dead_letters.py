"""Dead letters: exactly max_attempts deliveries, then an atomic move that keeps everything."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.domain import limits
from tenantq.domain.message import Delivery
from tenantq.errors import NotFound
from tenantq.journal.record import decode_record, rows
from tenantq.runtime.clock import ManualClock
from tenantq.store.keys import queue_prefix
from tenantq.store.rows import pack_lease, unpack_lease
from tests.administration import finished, purge, put_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

if TYPE_CHECKING:
    from tenantq.engine.state import DeadLetterEvent

DLQ = f"{Q}-dlq"


async def fail(shard: Shard, clock: ManualClock, how: str, got: Delivery) -> None:
    """End a delivery unsuccessfully."""
    if how == "nack":
        await shard.nack(T, Q, [got.receipt], delay_ms=0)
    else:
        await pass_time(shard, clock, 1_000)


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("how", ["nack", "expiry", "crash"])
async def test_25_max_attempts_n_means_exactly_n_deliveries_before_the_dead_letters(
    open_shard: OpenShard, clock: ManualClock, how: str, attempts: int
) -> None:
    """Deliveries end by nack, by expiry, or by a restart of the shard."""
    shard = await open_shard()
    await put_queue(shard, T, Q, max_attempts=attempts)
    await shard.add(T, Q, [message("poison")])
    seen: list[int] = []
    while got := await shard.poll(T, Q, lease_ms=1_000):
        seen.append(got[0].attempt)
        if how == "crash":
            await shard.close()
            clock.advance(1_000)
            shard = await open_shard()
            await wait_until_idle(shard)
        else:
            await fail(shard, clock, how, got[0])
    assert seen == list(range(1, attempts + 1))
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.in_flight, stats.dead, stats.dead_total) == (0, 0, 1, 1)


@pytest.mark.parametrize(("own", "deliveries"), [(1, 1), (3, 3), (None, 2)])
async def test_25_a_message_may_have_its_own_max_attempts(shard: Shard, own: int | None, deliveries: int) -> None:
    """It overrides the queue's."""
    await put_queue(shard, T, Q, max_attempts=2)
    await shard.add(T, Q, [message(max_attempts=own)])
    count = 0
    while got := await shard.poll(T, Q):
        count += 1
        await shard.nack(T, Q, [got[0].receipt], delay_ms=0)
    assert count == deliveries


@pytest.mark.parametrize("by", ["queue", "message"])
async def test_25_max_attempts_0_means_unlimited(shard: Shard, by: str) -> None:
    """The message returns forever."""
    await put_queue(shard, T, Q, max_attempts=0 if by == "queue" else 1)
    await shard.add(T, Q, [message(max_attempts=0 if by == "message" else None)])
    for attempt in range(1, 30):
        (got,) = await shard.poll(T, Q)
        assert got.attempt == attempt
        await shard.nack(T, Q, [got.receipt], delay_ms=0)
    assert shard.reads.stats(T, Q).dead_total == 0


@pytest.mark.parametrize("end", ["nack", "release"])
async def test_25_history_of_an_unlimited_message_is_limited(shard: Shard, end: str) -> None:
    """It keeps the newest entries; the journal has all."""
    await put_queue(shard, T, Q, max_attempts=0)
    (added,) = await shard.add(T, Q, [message()])
    for n in range(limits.HISTORY_ENTRIES_MAX + 10):
        (got,) = await shard.poll(T, Q)
        if end == "nack":
            await shard.nack(T, Q, [got.receipt], delay_ms=0, reason=f"try {n}")
        else:
            await shard.release(T, Q, [got.receipt])
    history = (await shard.reads.get(T, Q, added.id)).history
    assert len(history) == limits.HISTORY_ENTRIES_MAX
    assert history[-1].reason == (f"try {n}" if end == "nack" else "")
    assert sum(row.op == end for row in await shard.reads.trace(T, Q, added.id)) == limits.HISTORY_ENTRIES_MAX + 10


async def test_25_unlimited_message_survives_more_than_65535_deliveries(shard: Shard) -> None:
    """One poison message must not stop the shard."""
    await put_queue(shard, T, Q, max_attempts=0)
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt], delay_ms=0)
    key = queue_prefix(1, 1) + added.raw_id
    value = shard.state.store.get(shard.state.store.le, key)
    assert value is not None
    row = unpack_lease(value)
    row.attempts = 0xFFFF - 1
    batch = shard.state.store.new_batch()
    batch.put(key, pack_lease(row), shard.state.store.le.handle)
    shard.state.store.write(batch)
    shard.state.leases.rows.clear()
    for _ in range(3):
        (got,) = await shard.poll(T, Q)
        assert got.attempt >= 0xFFFF
        await shard.nack(T, Q, [got.receipt], delay_ms=0)
    assert shard.failure is None


async def test_25_lowering_max_attempts_takes_effect_at_the_next_poll(shard: Shard) -> None:
    """A message with more deliveries than allowed becomes a dead letter instead of being delivered."""
    await shard.add(T, Q, [message()])
    for _ in range(2):
        (got,) = await shard.poll(T, Q)
        await shard.nack(T, Q, [got.receipt], delay_ms=0)
    await put_queue(shard, T, Q, max_attempts=2)
    assert await shard.poll(T, Q) == []
    assert (await shard.reads.get(T, DLQ, got.id)).dead is not None
    assert shard.reads.stats(T, Q).ready == 0


async def test_26_a_dead_letter_keeps_payload_reason_attempts_and_history(shard: Shard, clock: ManualClock) -> None:
    """It has everything needed to understand and retry it."""
    await put_queue(shard, T, Q, max_attempts=3)
    body, attributes = b"\x00payload\xff", {"kind": "mail"}
    (added,) = await shard.add(T, Q, [message(body, attributes=attributes, priority=4)])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await shard.nack(T, Q, [got.receipt], delay_ms=0, reason="no route")
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await pass_time(shard, clock, 1_000)
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await shard.nack(T, Q, [got.receipt], reason="gave up")
    with pytest.raises(NotFound):
        await shard.reads.get(T, Q, added.id)
    facts = await shard.reads.get(T, DLQ, added.id)
    assert (facts.body, facts.attributes, facts.priority) == (body, attributes, 4)
    assert facts.dead is not None
    assert (facts.dead.reason, facts.dead.source, facts.dead.attempts) == ("gave up", Q, 3)
    assert facts.dead.at == clock.wall_ms()
    assert [(entry.attempt, entry.outcome, entry.reason) for entry in facts.history] == [
        (1, "nacked", "no route"),
        (2, "lease_expired", ""),
        (3, "nacked", "gave up"),
    ]


@pytest.mark.parametrize(
    ("how", "reason"), [("nack", "MAX_ATTEMPTS"), ("expiry", "LEASE_EXPIRED"), ("given", "broken invoice")]
)
async def test_26_the_reason_says_how_the_last_delivery_ended(
    shard: Shard, clock: ManualClock, how: str, reason: str
) -> None:
    """It is MAX_ATTEMPTS, LEASE_EXPIRED, or the consumer's reason."""
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    if how == "given":
        await shard.nack(T, Q, [got.receipt], reason=reason)
    else:
        await fail(shard, clock, how, got)
    dead = (await shard.reads.get(T, DLQ, added.id)).dead
    assert dead is not None
    assert dead.reason == reason


async def test_26_dead_letters_can_be_listed_by_page_requeued_and_purged_with_a_reason(shard: Shard) -> None:
    """Covers the lifecycle of a dead-letter queue."""
    await put_queue(shard, T, Q, max_attempts=1)
    added = await shard.add(T, Q, [message(str(n)) for n in range(7)])
    await shard.nack(T, Q, [got.receipt for got in await shard.poll(T, Q, max=7)])
    listed: list[str] = []
    cursor = None
    for _ in range(3):
        page = await shard.reads.peek(T, DLQ, limit=3, cursor=cursor)
        listed += [one.id for one in page.messages]
        cursor = page.cursor
    assert cursor is None
    assert listed == [one.id for one in added]
    task = await shard.redrive(T, Q)
    await finished(shard, task)
    assert (task.progress.state, task.progress.moved) == ("done", 7)
    again = await shard.poll(T, Q, max=9)
    assert [one.attempt for one in again] == [1] * 7
    await shard.nack(T, Q, [one.receipt for one in again])
    assert await purge(shard, T, DLQ, reason="obsolete orders") == 7
    assert shard.reads.stats(T, Q).dead == 0
    _, value = shard.state.store.scan_items(shard.state.store.jn, b"", b"\xff" * 9, 1_000)[-1]
    (row,) = rows(decode_record(value)[1])
    assert (row.op, row.queue, row.details) == ("purge", DLQ, "7 messages: obsolete orders")


@pytest.mark.parametrize("how", ["nack", "expiry"])
async def test_27_dead_letter_callback_fires_once_for_expiry_and_nack(
    shard: Shard, clock: ManualClock, how: str
) -> None:
    """It is called after the move is durable, with all identifying fields."""
    events: list[DeadLetterEvent] = []
    shard.on_dead_letter(events.append)
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await fail(shard, clock, how, got)
    await pass_time(shard, clock, 10_000)
    (event,) = events
    assert (event.raw_id, event.tenant, event.queue, event.dead_letter_queue) == (added.raw_id, T, Q, DLQ)
    assert (event.reason, event.attempts) == ("MAX_ATTEMPTS" if how == "nack" else "LEASE_EXPIRED", 1)


async def test_27_listener_that_raises_affects_neither_replies_nor_other_listeners(shard: Shard) -> None:
    """Later rounds continue, and the shard closes cleanly."""
    heard: list[bytes] = []

    def broken(_: object) -> None:
        raise RuntimeError("listener")

    shard.on_dead_letter(broken)
    shard.on_dead_letter(lambda event: heard.append(event.raw_id))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    await put_queue(shard, T, Q, max_attempts=1)
    await shard.add(T, Q, [message(str(n)) for n in range(3)])
    for got in await shard.poll(T, Q, max=3):
        assert (await shard.nack(T, Q, [got.receipt]))[0].ok
    await asyncio.wait_for(wait_until_idle(shard), 5)
    assert len(heard) == 3


async def test_a_configured_dead_letter_queue_is_used(shard: Shard) -> None:
    """Several queues may share one; each dead letter knows its source."""
    for queue in ("a", "b"):
        await put_queue(shard, T, queue, dead_letter="graveyard", max_attempts=1)
        await shard.add(T, queue, [message(queue)])
        (got,) = await shard.poll(T, queue)
        await shard.nack(T, queue, [got.receipt])
    page = await shard.reads.peek(T, "graveyard")
    assert [(one.body, one.dead.source if one.dead else None) for one in page.messages] == [(b"a", "a"), (b"b", "b")]
    assert shard.reads.stats(T, "a").dead == 2  # the messages in its dead-letter queue


async def test_a_dead_letter_can_be_consumed_like_any_message(shard: Shard) -> None:
    """A dead-letter queue supports poll, ack, and any number of nacks."""
    await put_queue(shard, T, Q, max_attempts=1)
    await shard.add(T, Q, [message("x")])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    for attempt in range(1, 12):
        (letter,) = await shard.poll(T, DLQ)
        assert (letter.body, letter.attempt) == (b"x", attempt)
        await shard.nack(T, DLQ, [letter.receipt], delay_ms=0)
    (letter,) = await shard.poll(T, DLQ)
    assert (await shard.ack(T, DLQ, [letter.receipt]))[0].ok
    assert shard.reads.stats(T, Q).dead == 0
    assert shard.reads.stats(T, DLQ).bytes == 0


async def test_move_is_atomic_in_the_counters_and_survives_a_restart(open_shard: OpenShard) -> None:
    """Bytes leave one queue and arrive in the other."""
    shard = await open_shard()
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message("12345", attributes={"a": "b"})])
    size = shard.reads.stats(T, Q).bytes
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    await shard.close()
    shard = await open_shard()
    assert (shard.reads.stats(T, Q).bytes, shard.reads.stats(T, DLQ).bytes) == (0, size)
    assert shard.reads.stats(T, DLQ).ready == 1
    assert (await shard.reads.get(T, DLQ, added.id)).attributes == {"a": "b"}


async def test_dead_letter_result_is_failed_and_wakes_waiting_callers(shard: Shard) -> None:
    """Nobody keeps waiting for work that will not be done."""
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message()])
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=60_000))
    await wait_until_idle(shard)
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt], reason="bad address")
    result = await waiting
    assert (result.status, result.error) == ("failed", "dead letter: bad address")


async def test_dead_letters_do_not_expire_with_the_message_ttl(shard: Shard, clock: ManualClock) -> None:
    """A TTL applies to waiting work; dead letters are evidence."""
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message(ttl_ms=5_000)])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    await pass_time(shard, clock, 10_000)
    assert (await shard.reads.get(T, DLQ, added.id)).expires_at is None
    assert len(await shard.poll(T, DLQ)) == 1


@pytest.mark.parametrize(
    ("queue", "letters", "left_ms"), [("work", "graves", 6_000), ("work.fifo", "graves.fifo", 10_000)]
)
async def test_dead_on_poll_letters_use_the_ttl_of_their_dead_letter_queue(
    shard: Shard, clock: ManualClock, queue: str, letters: str, left_ms: int
) -> None:
    """It counts from the first visibility, in a FIFO queue from the move; a redrive restarts it."""
    await put_queue(shard, T, letters, ttl_ms=10_000)
    await put_queue(shard, T, queue, ttl_ms=7_000, max_attempts=1, dead_letter=letters, dead_on_poll=True)
    (added,) = await shard.add(T, queue, [message()])
    (got,) = await shard.poll(T, queue)
    await shard.nack(T, queue, [got.receipt], delay_ms=0)
    await pass_time(shard, clock, 4_000)
    assert await shard.poll(T, queue) == []
    assert (await shard.reads.get(T, letters, added.id)).expires_at == clock.wall_ms() + left_ms
    await finished(shard, await shard.redrive(T, letters))
    assert (await shard.reads.get(T, queue, added.id)).expires_at == clock.wall_ms() + 7_000
    (got,) = await shard.poll(T, queue)
    await shard.nack(T, queue, [got.receipt], delay_ms=0)
    await pass_time(shard, clock, 1_000)
    assert await shard.poll(T, queue) == []
    await pass_time(shard, clock, 8_999)
    assert (await shard.reads.get(T, letters, added.id)).state == "ready"
    await pass_time(shard, clock, 1_001)
    with pytest.raises(NotFound):
        await shard.reads.get(T, letters, added.id)
    assert (shard.reads.stats(T, letters).bytes, shard.reads.stats(T, queue).bytes) == (0, 0)


async def test_removing_a_message_that_became_a_dead_letter_names_its_queue(shard: Shard) -> None:
    """Other unknown messages are not found."""
    await put_queue(shard, T, Q, max_attempts=1)
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    dead, unknown = await shard.remove(T, Q, [added.id, bytes(16)])
    assert dead.error is not None
    assert dead.error.message == f"the message is in the dead-letter queue '{Q}-dlq'"
    assert unknown.error is not None
    assert unknown.error.message == "no such message"
