"""Scale: deep queues open, drain and expire in limited steps, and leave nothing behind."""

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest
from rocksdict import BottommostLevelCompaction, CompactOptions, Options, Rdict

from tenantq.domain.message import Result
from tenantq.engine.settings import ShardSettings
from tenantq.journal.record import Record, decode_record
from tenantq.runtime.clock import ManualClock
from tenantq.store import crash_recovery, database
from tenantq.store.interface import Family, Store
from tenantq.store.keys import FAMILIES, be64
from tenantq.store.rocks import RocksStore
from tests.administration import put_queue, put_tenant
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

BATCH = 1_000
Answer = TypeVar("Answer")


async def fill(shard: Shard, count: int, tenant: str = T) -> None:
    """Add ``count`` messages."""
    batch = [message(b"x" * 20)] * BATCH
    for _ in range(count // BATCH):
        await shard.add(tenant, Q, batch)


async def drain(shard: Shard) -> int:
    """Poll and ack until nothing is left, and return the number of different messages."""
    seen: set[bytes] = set()
    while got := await shard.poll(T, Q, max=BATCH):
        seen.update(one.raw_id for one in got)
        await shard.ack(T, Q, [one.receipt for one in got])
    return len(seen)


def row_counts(shard: Shard) -> dict[str, int]:
    """Return the number of rows in each family."""
    store = shard.state.store
    return {name: len(store.scan(store.family(name), b"", b"\xff" * 64, 1_000_000)) for name in FAMILIES}


async def test_61_restart_with_a_deep_queue_reads_no_messages_and_all_are_deliverable(
    open_shard: OpenShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening trusts the counters and reads no message row, so its time depends on the number of queues.

    This test uses 50,000 messages; `make bench` opens and serves a queue of 1,000,000.
    """
    shard = await open_shard()
    await fill(shard, 50_000)
    kind = type(shard.state.store)
    await shard.close()
    touched: set[str] = set()

    def watch(name: str) -> None:
        real = getattr(kind, name)

        def noted(store: Store, family: Family, *rest: object, **options: object) -> object:
            touched.add(family.name)
            return real(store, family, *rest, **options)

        monkeypatch.setattr(kind, name, noted)

    for name in ("get", "get_many", "scan", "scan_items"):
        watch(name)
    shard = await open_shard()
    assert "meta" in touched
    assert touched.isdisjoint({"m", "vi", "le", "li"})
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.bytes) == (50_000, 1_000_000)
    assert await drain(shard) == 50_000
    assert shard.reads.stats(T, Q).ready == 0


@pytest.mark.redis_in_full("takes half a minute there")
async def test_62_a_backlog_of_200k_drains_and_nothing_is_stranded(open_shard: OpenShard, clock: ManualClock) -> None:
    """Priorities, delays and groups are mixed, consumers poll different numbers, and no row is left."""
    shard = await open_shard(settings=ShardSettings(durability="os"))
    added: set[bytes] = set()
    for n in range(200):
        kinds = [
            message(priority=i % 3, delay_ms=i % 2 * (n + 1), group=f"{i}" if i % 10 == 0 else None)
            for i in range(BATCH)
        ]
        added.update(one.raw_id for one in await shard.add(T, Q, kinds))
    assert len(added) == 200_000
    await pass_time(shard, clock, 1_000)
    seen: set[bytes] = set()

    async def consume(size: int) -> None:
        while got := await shard.poll(T, Q, max=size):
            ids = {one.raw_id for one in got}
            assert seen.isdisjoint(ids)
            seen.update(ids)
            await shard.ack(T, Q, [one.receipt for one in got])

    before = -1
    while before < len(seen):  # a consumer also stops if others hold the heads of all remaining groups
        before = len(seen)
        await asyncio.gather(*(consume(size) for size in (1_000, 700, 300)))
    assert seen == added
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed, stats.blocked, stats.in_flight, stats.bytes) == (0, 0, 0, 0, 0)
    assert stats.healed_total == 0
    counts = row_counts(shard)
    assert {name for name, count in counts.items() if count} == {"meta", "qc", "jn"}


class Reading:
    """Counts the deleted rows that RocksDB iterators pass, in the last opened store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._options: list[Options] = []
        open_rocks = database.open_rocks

        def watched(directory: Path, memory_bytes: int, **options: bool) -> Rdict:
            self._options.clear()
            return open_rocks(directory, memory_bytes, **options)

        monkeypatch.setattr(database, "Options", self._make)
        monkeypatch.setattr(crash_recovery, "open_rocks", watched)

    def _make(self, *, raw_mode: bool) -> Options:
        options = Options(raw_mode=raw_mode)
        if not self._options:  # the database's own come first and count for all families
            options.enable_statistics()
        self._options.append(options)
        return options

    def walked_over(self) -> int:
        """Return the count so far."""
        found = re.search(r"rocksdb\.number\.iter\.skip COUNT : (\d+)", self._options[0].get_statistics() or "")
        assert found
        return int(found[1])


def compact_all(shard: Shard) -> None:
    """Flush everything to tables and compact all deleted rows away."""
    store, options = shard.state.store, CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    store.files.flush()
    for name in FAMILIES:
        store.family(name).view.compact_range(None, None, options)


CYCLES = 150


@pytest.mark.rocksdb_only("looks at its files")
async def test_64_add_and_ack_cycles_leave_disk_and_rows_at_their_baseline_and_polls_as_short(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adds and consumes 150,000 messages in 150 cycles, with keys, results, TTLs, groups, extends and nacks.

    The journal is trimmed like by an exporter. Deleted rows make queues on RocksDB slow over time, so polls are measured
    by the deleted rows they pass: at most those of one batch, whatever was consumed before.
    """
    reading = Reading(monkeypatch)
    small = ShardSettings(durability="os", memory_bytes=8 << 20)  # to write tables all the time
    shard = await open_shard(settings=small)
    await put_queue(shard, T, Q, dedup_ms=60_000, result_ttl_ms=60_000, ttl_ms=600_000)
    walks: list[int] = []

    async def poll(wanted: int) -> list[str]:
        before = reading.walked_over()
        got = await shard.poll(T, Q, max=BATCH, lease_ms=5_000)
        walks.append(reading.walked_over() - before)
        assert len(got) == wanted
        return [one.receipt for one in got]

    async def cycle(n: int) -> None:
        batch = [message(f"{i}", key=f"{n}-{i}", group=f"{i}" if i % 4 == 0 else None) for i in range(BATCH)]
        await shard.add(T, Q, batch)
        receipts = await poll(BATCH)
        await shard.extend(T, Q, receipts[:100], lease_ms=10_000)
        await shard.nack(T, Q, receipts[:50], delay_ms=0)
        done: list[Result | None] = [Result("completed", b"r") if i % 2 else None for i in range(BATCH - 50)]
        await shard.ack(T, Q, receipts[50:], results=done)
        await shard.ack(T, Q, await poll(50))
        await pass_time(shard, clock, 1_000)

    async def rest() -> tuple[dict[str, int], int]:
        """Let everything expire; return the remaining rows and the bytes of compacted tables and log."""
        nonlocal shard
        await pass_time(shard, clock, 700_000)
        await shard.journal.trim(shard.journal.span[1])
        rows = row_counts(shard)
        compact_all(shard)
        await shard.close()
        files = [file for file in (tmp_path / "data" / "db").iterdir() if file.suffix in {".sst", ".log"}]
        size = sum(file.stat().st_size for file in files)
        shard = await open_shard(settings=small)
        return rows, size

    await cycle(0)
    baseline, baseline_bytes = await rest()
    for n in range(1, CYCLES):
        await cycle(n)
    rows, size = await rest()
    assert rows == baseline
    assert {name: count for name, count in baseline.items() if count} == {"meta": baseline["meta"], "qc": 1, "jn": 1}
    assert size <= baseline_bytes + 4_096
    await cycle(CYCLES)  # the cursor survives a restart
    assert len(walks) == 2 * (CYCLES + 1)
    assert 0 < max(walks) <= 3 * BATCH  # 0: nothing was counted


def rounds_of(shard: Shard, behind: int) -> list[Record]:
    """Return the journal records after one: what each round did."""
    items = shard.state.store.scan_items(shard.state.store.jn, be64(behind + 1), b"\xff" * 9, 100_000)
    return [decode_record(value)[1] for _, value in items]


@pytest.mark.redis_in_full("takes half a minute there")
async def test_65_100k_simultaneous_expiries_do_not_hold_up_another_tenant(shard: Shard, clock: ManualClock) -> None:
    """While another tenant works, a round sweeps at most 32 rows, and that tenant's operations come between the slices.

    The 50 ms of the promise are counted in rounds: at most one is begun before the one that an operation is in.
    """
    await put_tenant(shard, "calm")
    await put_queue(shard, "calm", Q)
    await fill(shard, 100_000)
    for _ in range(100):
        assert len(await shard.poll(T, Q, max=BATCH, lease_ms=10_000)) == BATCH
    assert shard.reads.stats(T, Q).in_flight == 100_000
    await wait_until_idle(shard)
    start = shard.journal.span[1]
    clock.advance(10_000)
    waits: list[int] = []

    async def counted(call: Awaitable[Answer]) -> Answer:
        before = shard.journal.span[1]
        answer = await call
        own = [one for one in rounds_of(shard, before) if any(entry.tenant == "calm" for entry in one.entries)]
        waits.append(own[-1].seq - before - 1)  # every round writes something here, so it has a record
        return answer

    for _ in range(BATCH):
        if shard.reads.stats(T, Q).in_flight < BATCH:
            break
        await counted(shard.add("calm", Q, [message()]))
        (got,) = await counted(shard.poll("calm", Q))
        (outcome,) = await counted(shard.ack("calm", Q, [got.receipt]))
        assert outcome.ok
    beside_calm = shard.journal.span[1]
    await wait_until_idle(shard)
    slices = [
        sum(len(entry.ids) // 16 for entry in one.entries if entry.op == "lease_expired")
        for one in rounds_of(shard, start)
    ]
    assert max(slices[1 : beside_calm - start]) == 32  # the first round begins before the other tenant has work
    assert max(waits) <= 1
    assert len(waits) > 60  # so the other tenant worked all through the sweep
    assert sum(slices) == 100_000
    assert max(slices) <= ShardSettings().sweep_rows
    stats = shard.reads.stats(T, Q)
    assert (stats.in_flight, stats.ready, stats.lease_expired_total) == (0, 100_000, 100_000)


async def test_many_messages_that_become_due_at_once_are_all_counted(open_shard: OpenShard, clock: ManualClock) -> None:
    """They are counted in slices, also across a restart."""
    shard = await open_shard()
    for _ in range(12):
        await shard.add(T, Q, [message(delay_ms=1_000)] * BATCH)
    await shard.close()
    clock.advance(1_000)
    shard = await open_shard()
    await wait_until_idle(shard)
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.delayed) == (12_000, 0)
    assert await drain(shard) == 12_000


@pytest.mark.rocksdb_only("looks at its files")
async def test_64_tables_of_only_deletions_are_compacted_automatically(
    open_shard: OpenShard, clock: ManualClock
) -> None:
    """The disk keeps no trace of deleted messages, although nobody requests a compaction."""
    shard = await open_shard(settings=ShardSettings(durability="os", memory_bytes=8 << 20))
    for _ in range(60):
        await shard.add(T, Q, [message(b"x" * 100)] * 1_000)
        got = await shard.poll(T, Q, max=1_000)
        await shard.ack(T, Q, [one.receipt for one in got])
        await pass_time(shard, clock, 1_000)
    await pass_time(shard, clock, 3_600_000)

    store = shard.state.store
    assert isinstance(store, RocksStore)

    def leftovers() -> list[object]:
        files = store._db.live_files()
        return [one for one in files if one["level"] and one["num_entries"] == one["num_deletions"]]

    for _ in range(600):  # compactions run in threads of RocksDB, and give way to everything else on the machine
        if len(leftovers()) <= 3:
            break
        await asyncio.sleep(0.1)
        await pass_time(shard, clock, 5_000)
    assert len(leftovers()) <= 3
