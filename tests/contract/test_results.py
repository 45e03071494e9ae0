"""Results: kept for their TTL, refused when incomplete, and waited for."""

import asyncio
from typing import Any

import pytest

from tenantq.domain.limits import RESULT_BYTES_MAX
from tenantq.domain.message import Result
from tenantq.errors import Invalid, NotFound, TooLarge
from tenantq.runtime.clock import ManualClock
from tests.administration import delete_queue, finished, purge, put_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

DONE = Result("completed", b"42")


def rows(shard: Shard, family: str) -> int:
    """Return the number of rows in a family."""
    return len(shard.state.store.scan(shard.state.store.family(family), b"", b"\xff" * 64, 100_000))


async def done(shard: Shard, result: Result | None = DONE) -> str:
    """Add a message, ack it with a result, and return its ID."""
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    assert (await shard.ack(T, Q, [got.receipt], results=[result]))[0].ok
    return added.id


async def test_34_a_second_result_is_rejected(shard: Shard) -> None:
    """The first one is kept."""
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.ack(T, Q, [got.receipt], results=[DONE])
    (second,) = await shard.ack(T, Q, [got.receipt], results=[Result("completed", b"43")])
    assert not second.ok
    assert await shard.reads.result(T, Q, added.id) == DONE


async def test_34_repeated_receipt_in_a_batch_keeps_the_first_result(shard: Shard) -> None:
    """The second receipt and its result are refused."""
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    outcomes = await shard.ack(T, Q, [got.receipt] * 2, results=[DONE, Result("completed", b"43")])
    assert [outcome.ok for outcome in outcomes] == [True, False]
    assert await shard.reads.result(T, Q, added.id) == DONE


async def test_34_result_expires_after_its_ttl_and_frees_its_bytes(open_shard: OpenShard, clock: ManualClock) -> None:
    """This holds across a restart."""
    shard = await open_shard()
    await put_queue(shard, T, Q, result_ttl_ms=5_000)
    id = await done(shard)
    await pass_time(shard, clock, 2_000)
    await shard.close()
    shard = await open_shard()
    await pass_time(shard, clock, 2_999)
    assert await shard.reads.result(T, Q, id) == DONE
    clock._pass(1)
    with pytest.raises(NotFound):  # before the sweeper ran
        await shard.reads.result(T, Q, id)
    await pass_time(shard, clock, 0)
    assert (rows(shard, "re"), rows(shard, "ex"), rows(shard, "m")) == (0, 0, 0)


async def test_34_results_of_dead_letters_are_collected(shard: Shard, clock: ManualClock) -> None:
    """This includes results written by the sweep that collects others."""
    await put_queue(shard, T, Q, result_ttl_ms=5_000, dedup_ms=1_000, max_attempts=1)
    await shard.add(T, Q, [message(key="k")])
    await shard.poll(T, Q, lease_ms=1_000)
    await pass_time(shard, clock, 1_000)  # the lease ends and the key's window ends
    assert rows(shard, "re") == 1
    await pass_time(shard, clock, 5_000)
    assert (rows(shard, "re"), rows(shard, "ex"), rows(shard, "ik")) == (0, 0, 0)


async def test_34_new_result_after_a_redrive_has_its_own_ttl(shard: Shard, clock: ManualClock) -> None:
    """The expiry of the first failure does not delete it."""
    await put_queue(shard, T, Q, result_ttl_ms=5_000, max_attempts=1)
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    await pass_time(shard, clock, 3_000)
    await finished(shard, await shard.redrive(T, Q))
    assert (await shard.reads.result(T, Q, added.id)).status == "pending"
    (got,) = await shard.poll(T, Q)
    await shard.ack(T, Q, [got.receipt], results=[DONE])
    await pass_time(shard, clock, 4_999)
    assert await shard.reads.result(T, Q, added.id) == DONE
    await pass_time(shard, clock, 1)
    assert (rows(shard, "re"), rows(shard, "ex")) == (0, 0)


@pytest.mark.parametrize(
    "result",
    [
        Result("completed"),
        Result("completed", error="x"),
        Result("completed", "text"),  # type: ignore[arg-type]
        Result("failed"),
        Result("failed", b"x"),
        Result("failed", error=""),
        Result("failed", error="x" * 1_025),
        Result("failed", error="\ud800"),
        Result("pending"),
        Result("done", b"x"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
async def test_35_completed_without_result_or_failed_without_error_is_refused(shard: Shard, result: Result) -> None:
    """The whole batch is refused and the message stays leased."""
    await shard.add(T, Q, [message("a"), message("b")])
    first, second = await shard.poll(T, Q, max=2)
    with pytest.raises(Invalid, match="result"):
        await shard.ack(T, Q, [first.receipt, second.receipt], results=[DONE, result])
    assert shard.reads.stats(T, Q).in_flight == 2


@pytest.mark.parametrize(
    "result",
    [
        Result("completed", b"x" * (RESULT_BYTES_MAX + 1)),
        Result("failed", b"x" * (RESULT_BYTES_MAX + 1), "why"),
        Result("failed", "text", "why"),  # type: ignore[arg-type]
        Result("completed", b"x", "\ud800"),
        Result("completed", b"x", "y" * 5_000),
    ],
    ids=["large", "large-failed", "text", "surrogate", "long-error"],
)
async def test_35_unused_part_of_a_result_is_validated_too(shard: Shard, result: Result) -> None:
    """Whatever is stored must be within limits and must not stop the shard."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    with pytest.raises((Invalid, TooLarge), match="result"):
        await shard.ack(T, Q, [got.receipt], results=[result])
    assert shard.failure is None


async def test_35_number_of_results_must_match_the_receipts(shard: Shard) -> None:
    """None at all is allowed."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    for results in ([], [DONE, DONE]):
        with pytest.raises(Invalid, match="results"):
            await shard.ack(T, Q, [got.receipt], results=results)


async def test_35_empty_value_is_a_value(shard: Shard) -> None:
    """A completed result may have no bytes."""
    assert (await shard.reads.result(T, Q, await done(shard, Result("completed", b"")))).value == b""


async def test_36_a_result_long_poll_returns_on_completion_without_time_passing(shard: Shard) -> None:
    """The clock stands still, so only the ack can have woken it."""
    (added,) = await shard.add(T, Q, [message()])
    waiting = [asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=60_000)) for _ in range(3)]
    await wait_until_idle(shard)
    (got,) = await shard.poll(T, Q)
    assert not any(one.done() for one in waiting)
    await shard.ack(T, Q, [got.receipt], results=[DONE])
    assert [await one for one in waiting] == [DONE] * 3
    assert shard.state.catalog.tenant(T).queues[Q].result_waiters == {}


async def test_36_an_unknown_task_is_not_found_at_once(shard: Shard) -> None:
    """The wait of the caller does not matter."""
    await put_queue(shard, T, Q)
    with pytest.raises(NotFound):
        await shard.reads.result(T, Q, bytes(16), wait_ms=60_000)
    with pytest.raises(NotFound):
        await shard.reads.result(T, "nowhere", bytes(16), wait_ms=60_000)
    with pytest.raises(Invalid):
        await shard.reads.result(T, Q, "no-uuid", wait_ms=60_000)


async def test_36_result_that_is_not_ready_in_time_is_pending(shard: Shard, clock: ManualClock) -> None:
    """The waiter is removed."""
    (added,) = await shard.add(T, Q, [message()])
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=1_000))
    await pass_time(shard, clock, 1_000)
    assert (await waiting).status == "pending"
    assert shard.state.catalog.tenant(T).queues[Q].result_waiters == {}


@pytest.mark.parametrize("end", ["remove", "purge", "delete"])
async def test_36_waiter_gets_not_found_if_the_message_is_deleted(shard: Shard, end: str) -> None:
    """It does not wait any longer."""
    (added,) = await shard.add(T, Q, [message()])
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=60_000))
    await wait_until_idle(shard)
    if end == "remove":
        await shard.remove(T, Q, [added.id])
    elif end == "purge":
        await purge(shard, T, Q)
    else:
        await delete_queue(shard, T, Q)
    with pytest.raises(NotFound):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("end", ["nack", "lease", "waiting"])
async def test_36_expired_message_wakes_waiters_for_its_result(shard: Shard, clock: ManualClock, end: str) -> None:
    """It is discarded on a nack, at the end of its lease, or while it waits."""
    (added,) = await shard.add(T, Q, [message(ttl_ms=1_000)])
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=60_000))
    await wait_until_idle(shard)
    got = [] if end == "waiting" else await shard.poll(T, Q, lease_ms=2_000)
    await pass_time(shard, clock, 1_500)
    if end == "nack":
        await shard.nack(T, Q, [got[0].receipt])
    await pass_time(shard, clock, 500)
    with pytest.raises(NotFound):
        await asyncio.wait_for(waiting, 5)


async def test_message_acked_without_a_result_is_completed(open_shard: OpenShard, clock: ManualClock) -> None:
    """Current and later callers learn it for as long as a result could be read, also after a restart."""
    shard = await open_shard()
    await put_queue(shard, T, Q, result_ttl_ms=5_000)
    (added,) = await shard.add(T, Q, [message()])
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=60_000))
    await wait_until_idle(shard)
    (got,) = await shard.poll(T, Q)
    await shard.ack(T, Q, [got.receipt])
    assert await waiting == Result("completed")
    assert await shard.reads.result(T, Q, added.id) == Result("completed")
    await shard.close()
    shard = await open_shard()
    assert await shard.reads.result(T, Q, added.id, wait_ms=60_000) == Result("completed")
    await pass_time(shard, clock, 5_000)
    with pytest.raises(NotFound):
        await shard.reads.result(T, Q, added.id)


async def test_unknown_id_is_not_found_without_reading_the_whole_journal(
    shard: Shard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only records that could contain its add are read, and none for a known ack."""
    await put_queue(shard, T, Q)
    unknown = shard.state.new_ids(1)[0]
    acked = await done(shard, None)
    for _ in range(400):
        clock.advance(1)
        await shard.add(T, "busy", [message()])
    store = shard.state.store
    scan_items, pages = store.scan_items, list[int]()

    def counted(*args: Any) -> list[tuple[bytes, bytes]]:
        page = scan_items(*args)
        pages.append(len(page))
        return page

    monkeypatch.setattr(store, "scan_items", counted)
    assert await shard.reads.result(T, Q, acked, wait_ms=60_000) == Result("completed")
    assert sum(pages) == 0
    with pytest.raises(NotFound):
        await shard.reads.result(T, Q, unknown, wait_ms=60_000)
    assert sum(pages) <= 300


async def test_recent_ack_is_known_after_a_trim(shard: Shard) -> None:
    """The store's journal may have neither the add nor the ack."""
    acked = await done(shard, None)
    await shard.journal.trim(shard.state.journal.synced_seq)
    assert await shard.reads.result(T, Q, acked) == Result("completed")
    with pytest.raises(NotFound):
        await shard.reads.result(T, "other", acked)
    await put_queue(shard, T, "other")
    with pytest.raises(NotFound):
        await shard.reads.result(T, "other", acked)
