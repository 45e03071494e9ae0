"""Scale: deep queues open, drain and expire in bounded steps, and leave nothing behind."""

import asyncio

import pytest

from tenantq.clock import ManualClock
from tenantq.engine.shard import Shard
from tenantq.message import Result
from tenantq.store.keys import FAMILIES
from tenantq.store.rocks import Family, Store
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, settled

BATCH = 1_000


async def fill(shard: Shard, count: int, tenant: str = T) -> None:
    """Add ``count`` messages."""
    batch = [message(b"x" * 20)] * BATCH
    for _ in range(count // BATCH):
        await shard.add(tenant, Q, batch)


async def drain(shard: Shard) -> int:
    """Poll and ack until nothing is left, and return how many different messages there were."""
    seen: set[bytes] = set()
    while got := await shard.poll(T, Q, max=BATCH):
        seen.update(one.raw_id for one in got)
        await shard.ack(T, Q, [one.receipt for one in got])
    return len(seen)


def row_counts(shard: Shard) -> dict[str, int]:
    """Return how many rows each family holds."""
    store = shard._store
    return {name: len(store.scan(store.family(name), b"", b"\xff" * 64, 1_000_000)) for name in FAMILIES}


async def test_61_restart_with_a_deep_queue_reads_no_messages_and_all_are_deliverable(
    open_shard: OpenShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening takes the counters' word, so its time is bounded by the queues; a million is for the bench."""
    shard = await open_shard()
    await fill(shard, 50_000)
    await shard.close()
    touched: set[str] = set()

    def watch(name: str) -> None:
        real = getattr(Store, name)

        def noted(store: Store, family: Family, *rest: object) -> object:
            touched.add(family.name)
            return real(store, family, *rest)

        monkeypatch.setattr(Store, name, noted)

    for name in ("get", "get_many", "scan", "scan_items"):
        watch(name)
    shard = await open_shard()
    assert "meta" in touched
    assert touched.isdisjoint({"m", "vi", "le", "li"})
    stats = shard.stats(T, Q)
    assert (stats.ready, stats.bytes) == (50_000, 1_000_000)
    assert await drain(shard) == 50_000
    assert shard.stats(T, Q).ready == 0


async def test_62_a_backlog_drains_and_nothing_is_stranded(shard: Shard, clock: ManualClock) -> None:
    """Over priorities, delays and groups mixed, by consumers of different appetite."""
    for n in range(50):
        kinds = [
            message(priority=i % 3, delay_ms=i % 2 * (n + 1), group=f"{i}" if i % 10 == 0 else None)
            for i in range(BATCH)
        ]
        await shard.add(T, Q, kinds)
    await pass_time(shard, clock, 1_000)
    seen: set[bytes] = set()

    async def consume(size: int) -> None:
        while got := await shard.poll(T, Q, max=size):
            assert seen.isdisjoint(one.raw_id for one in got)
            seen.update(one.raw_id for one in got)
            await shard.ack(T, Q, [one.receipt for one in got])

    while shard.stats(T, Q).ready:
        await asyncio.gather(*(consume(size) for size in (1_000, 700, 300)))
    assert len(seen) == 50_000
    stats = shard.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.blocked, stats.in_flight, stats.bytes) == (0, 0, 0, 0, 0)
    assert stats.healed_total == 0


async def test_64_add_and_ack_cycles_leave_the_row_counts_at_their_baseline(shard: Shard, clock: ManualClock) -> None:
    """Keys, results, lifetimes, groups, extends and nacks included; the journal is trimmed as an exporter does."""
    await shard.put_queue(T, Q, dedup_ms=60_000, result_ttl_ms=60_000, ttl_ms=600_000)

    async def cycle(n: int) -> None:
        batch = [message(f"{i}", key=f"{n}-{i}", group=f"{i}" if i % 4 == 0 else None) for i in range(BATCH)]
        await shard.add(T, Q, batch)
        got = await shard.poll(T, Q, max=BATCH, lease_ms=5_000)
        assert len(got) == BATCH
        receipts = [one.receipt for one in got]
        await shard.extend(T, Q, receipts[:100], lease_ms=10_000)
        await shard.nack(T, Q, receipts[:50], delay_ms=0)
        done: list[Result | None] = [Result("completed", b"r") if i % 2 else None for i in range(BATCH - 50)]
        await shard.ack(T, Q, receipts[50:], results=done)
        again = await shard.poll(T, Q, max=BATCH)
        assert len(again) == 50
        await shard.ack(T, Q, [one.receipt for one in again])
        await pass_time(shard, clock, 1_000)

    async def rest() -> dict[str, int]:
        await pass_time(shard, clock, 700_000)
        await shard.trim_journal(shard.journal_span[1])
        return row_counts(shard)

    await cycle(0)
    baseline = await rest()
    for n in range(1, 20):
        await cycle(n)
    assert await rest() == baseline
    assert {name: count for name, count in baseline.items() if count} == {"meta": baseline["meta"], "qc": 1, "jn": 1}


async def test_65_100k_simultaneous_expiries_do_not_hold_up_another_tenant(shard: Shard, clock: ManualClock) -> None:
    """Its operations come through while most of the expiries still wait, each within a few rounds."""
    await shard.put_tenant("calm")
    await shard.put_queue("calm", Q)
    await fill(shard, 100_000)
    for _ in range(100):
        assert len(await shard.poll(T, Q, max=BATCH, lease_ms=10_000)) == BATCH
    assert shard.stats(T, Q).in_flight == 100_000
    await settled(shard)
    clock.advance(10_000)
    waits: list[int] = []
    for _ in range(20):
        start = shard.rounds
        await shard.add("calm", Q, [message()])
        (got,) = await shard.poll("calm", Q)
        assert (await shard.ack("calm", Q, [got.receipt]))[0].ok
        waits.append(shard.rounds - start)
    assert shard.stats(T, Q).in_flight > 10_000  # they are not all swept yet
    assert max(waits) <= 12  # three operations
    await settled(shard)
    stats = shard.stats(T, Q)
    assert (stats.in_flight, stats.ready, stats.lease_expired_total) == (0, 100_000, 100_000)


async def test_many_delayed_messages_that_fall_due_at_once_are_all_counted(
    open_shard: OpenShard, clock: ManualClock
) -> None:
    """In slices, and across a restart in between."""
    shard = await open_shard()
    for _ in range(12):
        await shard.add(T, Q, [message(delay_ms=1_000)] * BATCH)
    await shard.close()
    clock.advance(1_000)
    shard = await open_shard()
    await settled(shard)
    stats = shard.stats(T, Q)
    assert (stats.ready, stats.delayed) == (12_000, 0)
    assert await drain(shard) == 12_000
