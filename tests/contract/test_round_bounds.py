"""A round stays small however large a call is: large batches, polls and moves take several rounds."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain import limits
from tenantq.engine import poll_matching, round_loop
from tenantq.engine.delivery import deliver
from tenantq.engine.level import NEVER
from tenantq.engine.operation import PART_BYTES, PART_ITEMS, Operation
from tenantq.engine.ops import sweep
from tenantq.engine.round import Round
from tenantq.engine.round_loop import _REST_TURNS
from tenantq.engine.settings import ShardSettings
from tenantq.store.keys import after
from tests.administration import put_queue, put_tenant
from tests.contract.test_scale import rounds_of
from tests.shards import Q, T, freeze, message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from tenantq.engine.effects import Effects
    from tenantq.engine.queue_state import QueueState, WaitingPoll
    from tenantq.runtime.clock import ManualClock
    from tenantq.store.interface import Family, Store
    from tests.conftest import OpenShard
    from tests.verbs import Shard

_MIB = 1 << 20
_UNKNOWN = ["ab" * 24] * 1_000


async def test_a_batch_of_a_thousand_shares_its_rounds_with_other_tenants(shard: Shard) -> None:
    """Adds, acks, nacks, extends and removes alike: no round does all of one, and another tenant's call comes between."""
    await put_tenant(shard, "quiet")
    await put_queue(shard, "quiet", Q)
    await put_queue(shard, T, Q)
    await shard.add("quiet", Q, [message()])
    for name, call in (
        ("add", lambda: shard.add(T, Q, [message()] * 1_000)),
        ("ack", lambda: shard.ack(T, Q, _UNKNOWN)),
        ("nack", lambda: shard.nack(T, Q, _UNKNOWN)),
        ("extend", lambda: shard.extend(T, Q, _UNKNOWN, lease_ms=1_000)),
        ("release", lambda: shard.release(T, Q, _UNKNOWN)),
        ("remove", lambda: shard.remove(T, Q, [bytes(16)] * 1_000)),
    ):
        await wait_until_idle(shard)
        start = shard.journal.span[1]
        large: Awaitable[list[object]] = asyncio.ensure_future(call())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await shard.add("quiet", Q, [message()])
        assert len(await large) == 1_000
        records = rounds_of(shard, start)
        of_large = [place for place, one in enumerate(records) if any(entry.tenant == T for entry in one.entries)]
        of_quiet = [place for place, one in enumerate(records) if any(entry.tenant == "quiet" for entry in one.entries)]
        assert len(of_large) >= 1_000 // PART_ITEMS, name
        assert of_quiet[0] < of_large[2], name


@pytest.mark.rocksdb_only("copies its files")
async def test_crash_between_parts_of_a_keyed_batch_loses_and_repeats_nothing(
    open_shard: OpenShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retrying the batch adds exactly the missing messages."""
    shard = await open_shard()
    await put_tenant(shard, "quiet")
    await shard.add("quiet", Q, [message()])  # to make rounds small and shared
    write, copies = shard.loop._write, list[str]()

    def copied(round: Round) -> None:
        write(round)
        if any(entry.op == "add" for entry in round.effects.entries) and len(copies) < 3:
            shard.state.store.sync()
            copies.append(f"crashed-{len(copies)}")
            freeze(tmp_path / "data", tmp_path / copies[-1])

    monkeypatch.setattr(shard.loop, "_write", copied)
    batch = [message(str(n)) for n in range(1_000)]
    added = await shard.add(T, Q, batch, batch_key="once")
    assert not any(one.duplicate for one in added)
    assert [one.duplicate for one in await shard.add(T, Q, batch, batch_key="once")] == [True] * 1_000
    for number, name in enumerate(copies, 1):
        crashed = await open_shard(name)
        again = await crashed.add(T, Q, batch, batch_key="once")
        assert sum(one.duplicate for one in again) == number * PART_ITEMS
        assert [one.raw_id for one in again[: number * PART_ITEMS]] == [
            one.raw_id for one in added[: number * PART_ITEMS]
        ]
        assert crashed.reads.stats(T, Q).ready == 1_000


async def test_poll_respects_the_reply_size_limit(shard: Shard) -> None:
    """Small messages before large ones make no difference, and the rest stays ready."""
    await shard.add(T, Q, [message()] * 500)
    for _ in range(2):
        await shard.add(T, Q, [message(bytes(_MIB))] * 15)
    got = await shard.poll(T, Q, max=1_000)
    assert 500 < len(got) < 530
    assert sum(len(one.body) for one in got) < limits.REPLY_BYTES_MAX + _MIB
    assert shard.reads.stats(T, Q).ready == 530 - len(got)
    seen = {one.raw_id for one in got}
    while got := await shard.poll(T, Q, max=1_000):
        assert sum(len(one.body) for one in got) < limits.REPLY_BYTES_MAX + _MIB
        seen.update(one.raw_id for one in got)
    assert len(seen) == 530


async def test_poll_of_a_thousand_small_messages_gets_all(shard: Shard) -> None:
    """It takes several rounds, also next to other tenants."""
    await put_tenant(shard, "quiet")
    for _ in range(2):
        await shard.add(T, Q, [message()] * 1_000)
        await shard.add("quiet", Q, [message()])
    start = shard.journal.span[1]
    got = await shard.poll(T, Q, max=1_000)
    assert len({one.raw_id for one in got}) == 1_000
    assert max(sum(len(entry.ids) // 16 for entry in one.entries) for one in rounds_of(shard, start)) <= PART_ITEMS


@pytest.mark.parametrize(("step_ms", "rounds"), [(0, 1), (2, 2), (5, 4)])
async def test_lone_tenant_gets_deliveries_until_the_time_of_the_round_is_over(
    shard: Shard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, step_ms: int, rounds: int
) -> None:
    """A fast machine needs one round for a thousand messages, a slow one several; the loop is never held for long."""
    await shard.add(T, Q, [message()] * 1_000)

    def slow_delivery(effects: Effects, queue: QueueState, polls: list[WaitingPoll], count: int) -> int:
        delivered = deliver(effects, queue, polls, count)
        clock.advance(step_ms)
        return delivered

    monkeypatch.setattr(poll_matching, "deliver", slow_delivery)
    start = shard.journal.span[1]
    got = await asyncio.gather(*(shard.poll(T, Q, max=10) for _ in range(100)))
    assert len({one.raw_id for mine in got for one in mine}) == 1_000
    assert len([one for one in rounds_of(shard, start) if one.entries[0].op == "poll"]) == rounds


async def test_dead_letters_move_a_few_megabytes_per_round(shard: Shard) -> None:
    """Any number of large messages may fail together; redrives are limited too."""
    await put_queue(shard, T, Q, max_attempts=1)
    receipts: list[str] = []
    await shard.add(T, Q, [message(bytes(_MIB))] * 12)
    while got := await shard.poll(T, Q, max=100):
        receipts += [one.receipt for one in got]
    start = shard.journal.span[1]
    assert all(one.ok for one in await shard.nack(T, Q, receipts))
    assert _moved_max(shard, start, "dead_letter") < PART_BYTES + _MIB
    start = shard.journal.span[1]
    task = await shard.redrive(T, Q)
    await task.ended.wait()
    assert task.progress.moved == 12
    await wait_until_idle(shard)
    assert _moved_max(shard, start, "redrive") < PART_BYTES + _MIB
    assert shard.reads.stats(T, Q).ready == 12


def _moved_max(shard: Shard, start: int, op: str) -> int:
    """Return the most bytes that one round moved."""

    def size(one: object) -> int:
        return sum(one) if isinstance(one, list) else int(one)  # type: ignore[call-overload]

    return max(
        sum(size(entry.size) for entry in one.entries if entry.op == op and entry.ids)
        for one in rounds_of(shard, start)
    )


async def test_rounds_write_about_a_megabyte_of_bodies(shard: Shard) -> None:
    """A tenant alone gets larger rounds, but none that writes for milliseconds."""
    start = shard.journal.span[1]
    await asyncio.gather(*[shard.add(T, Q, [message(bytes(_MIB // 4))] * 8) for _ in range(4)])
    assert shard.reads.stats(T, Q).bytes == 8 * _MIB
    assert _moved_max(shard, start, "add") <= 2 * _MIB


async def test_peek_reads_one_slice_at_a_time(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small first message says nothing about the size of the others."""
    await shard.add(T, Q, [message(b"small")])
    await shard.add(T, Q, [message(bytes(_MIB))] * 12)
    read, sizes = type(shard.state.store).get_many, list[int]()

    def counted(store: object, family: object, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = read(store, family, keys)  # type: ignore[arg-type]
        sizes.append(sum(len(one) for one in found if one is not None))
        return found

    monkeypatch.setattr(type(shard.state.store), "get_many", counted)
    page = await shard.reads.peek(T, Q, limit=1_000)
    assert len(page.messages) == 5
    assert max(sizes) < 2 * _MIB


async def test_event_loop_runs_between_long_shared_rounds(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short requests are served in these turns."""
    await put_tenant(shard, "quiet")
    await put_queue(shard, "quiet", Q)
    await shard.add(T, Q, [message()] * 1_000)
    await shard.add("quiet", Q, [message()])
    monkeypatch.setattr(round_loop, "_LONG_ROUND_US", 0)
    turn, turns = 0, list[int]()
    run = Round.run

    def note(round: Round, operations: list[Operation[Any]], end_ms: int) -> list[Operation[Any]]:
        turns.append(turn)
        return run(round, operations, end_ms)

    monkeypatch.setattr(Round, "run", note)
    polling = asyncio.ensure_future(shard.poll(T, Q, max=1_000))
    while not polling.done():
        turn += 1
        await asyncio.sleep(0)
    assert len(await polling) == 1_000
    assert len(turns) >= 7
    assert min(later - earlier for earlier, later in pairwise(turns)) > _REST_TURNS


async def test_sweep_continues_after_the_rows_it_deleted(
    open_shard: OpenShard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan from the start would pass all deleted rows in every slice."""
    shard = await open_shard(settings=ShardSettings(sweep_rows=16))
    await shard.add(T, Q, [message(ttl_ms=5_000)] * 200)
    await shard.poll(T, Q, max=100, lease_ms=1_000)
    scan, scanned = type(shard.state.store).scan, list[tuple[str, bytes]]()

    def noted(store: Store, family: Family, lower: bytes, upper: bytes, limit: int, **options: int) -> list[bytes]:
        found: list[bytes] = scan(store, family, lower, upper, limit, **options)
        if found and limit > 1:
            assert lower > max((last for name, last in scanned if name == family.name), default=b"")
            scanned.append((family.name, found[-1]))
        return found

    monkeypatch.setattr(type(shard.state.store), "scan", noted)
    await pass_time(shard, clock, 1_000)
    assert [name for name, _ in scanned].count("li") == 7
    await pass_time(shard, clock, 4_000)
    assert [name for name, _ in scanned].count("ex") == 13
    assert shard.tenant(T).queues[Q].messages == 0


async def test_row_that_expires_behind_a_running_sweep_is_collected(open_shard: OpenShard, clock: ManualClock) -> None:
    """One example is a dead letter whose TTL, counted from its first queue, has ended."""
    shard = await open_shard(settings=ShardSettings(sweep_rows=2))
    await put_queue(shard, T, "letters", ttl_ms=1_000)
    await put_queue(shard, T, Q, max_attempts=1, dead_letter="letters", dead_on_poll=True)
    await shard.add(T, Q, [message()])
    assert await shard.poll(T, Q, lease_ms=100)
    await pass_time(shard, clock, 4_000)
    await shard.add(T, "letters", [message()] * 50)
    await wait_until_idle(shard)
    letters = shard.tenant(T).queues["letters"]
    clock.advance(1_000)
    for _ in range(1_000):
        if letters.messages < 50:
            break
        await asyncio.sleep(0)
    assert 0 < letters.messages < 50
    assert not await shard.poll(T, Q)
    await wait_until_idle(shard)
    assert letters.messages == 0
    store = shard.state.store
    assert not store.scan(store.ex, letters.prefix, after(letters.prefix), 1)


@pytest.mark.rocksdb_only("Redis keeps no deleted rows")
async def test_sweep_scans_few_deleted_rows_for_the_next_lease(
    shard: Shard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy queue has thousands of deleted rows before the next lease that ends."""
    monkeypatch.setattr(sweep, "_DELETED_MAX", 10)
    await shard.add(T, Q, [message()] * 52)
    queue = shard.tenant(T).queues[Q]
    await shard.poll(T, Q, lease_ms=500)
    acked = await shard.poll(T, Q, max=50, lease_ms=9_000)
    await shard.poll(T, Q, lease_ms=10_000)
    await shard.ack(T, Q, [one.receipt for one in acked])
    await pass_time(shard, clock, 500)
    assert queue.in_flight == 1
    assert queue.next_lease == shard.state.shard_clock.now_ms() + 100
    await pass_time(shard, clock, 8_600)
    assert queue.next_lease == shard.state.shard_clock.now_ms() + 900
    await pass_time(shard, clock, 900)
    assert (queue.in_flight, queue.ready, queue.next_lease) == (0, 2, NEVER)


async def test_delayed_messages_of_all_priorities_become_visible_in_bounded_slices(
    shard: Shard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slice is for all priorities of a queue together, and the tenant is charged for it."""
    monkeypatch.setattr(sweep, "_ADVANCE_ROWS", 50)
    execute, counted = sweep.Advance.execute, list[int]()

    def noted(advance: sweep.Advance, effects: Effects) -> None:
        before, time = advance.queue.ready, advance.line.time
        execute(advance, effects)
        counted.append(advance.queue.ready - before)
        assert advance.line.time - time == pytest.approx(counted[-1] / 64)

    monkeypatch.setattr(sweep.Advance, "execute", noted)
    for priority in range(10):
        await shard.add(T, Q, [message(delay_ms=1_000, priority=priority)] * 70)
    await pass_time(shard, clock, 1_000)
    assert shard.reads.stats(T, Q).ready == 700
    assert sum(counted) == 700
    assert max(counted) == 50
