"""The doctor finds no problem in a consistent store, and names every inconsistency."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from rocksdict import WriteBatch

from tenantq.doctor.report import DoctorReport
from tenantq.doctor.store_check import examine
from tenantq.domain.message import LOCAL, NewMessage, Result
from tenantq.engine.catalog import QUEUE_ROW
from tenantq.engine.redrive_registry import REDRIVE_ROW
from tenantq.engine.redrive_task import RedriveOrder, RedriveProgress
from tenantq.errors import StoreFormat
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_RESULT,
    EXPIRES_TTL,
    be64,
    deadline_key,
    expiry_key,
    queue_prefix,
    waiting_key,
)
from tenantq.store.rocks import RocksStore
from tenantq.store.rows import pack_counters, pack_lease, unpack_counters, unpack_lease, unpack_message
from tests.administration import finished, put_queue, put_tenant, queues, tenants
from tests.shards import Q, T, message, pass_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.verbs import Shard

FIFO = "orders.fifo"


async def _fill(shard: Shard, clock: ManualClock) -> None:
    """Create messages in every state."""
    await put_tenant(shard, "acme", weight=3)
    await put_queue(shard, T, Q, max_attempts=2, lease_ms=5_000)
    await shard.add(T, Q, [message(f"m{i}", priority=i % 3, key=f"k{i}", ttl_ms=60_000 + i) for i in range(20)])
    await shard.add(T, Q, [message("later", delay_ms=90_000), message("soon", delay_ms=50)])
    await shard.add(T, FIFO, [message(f"f{i}", group=f"g{i % 2}") for i in range(6)])
    await shard.add("acme", Q, [message("other tenant", attributes={"a": "b"})])
    first = await shard.poll(T, Q, max=6)
    await shard.ack(T, Q, [first[0].receipt], results=[Result("completed", b"42")])
    await shard.nack(T, Q, [first[1].receipt], delay_ms=10)
    await shard.release(T, Q, [first[2].receipt])
    await shard.extend(T, Q, [first[3].receipt], lease_ms=70_000)
    await shard.poll(T, FIFO, max=5)
    await pass_time(shard, clock, 5_000)  # the other leases expire
    await pass_time(shard, clock, 10)
    for _ in range(3):
        got = await shard.poll(T, Q, max=4, lease_ms=1_000)
        await shard.nack(T, Q, [one.receipt for one in got], delay_ms=0, reason="no good")
        await pass_time(shard, clock, 1_000)
    await shard.add(T, Q, [message(f"n{i}", ttl_ms=100_000, key=f"n{i}") for i in range(5)])
    await shard.poll(T, Q, max=2, lease_ms=500_000)


@pytest.fixture
async def stopped(open_shard: OpenShard, clock: ManualClock, tmp_path: Path) -> Path:
    """Return the directory of a filled shard after it was closed."""
    shard = await open_shard()
    await _fill(shard, clock)
    await shard.close()
    return tmp_path / "data"


Q_PREFIX = queue_prefix(1, 1)
FIFO_PREFIX = queue_prefix(1, 2)
TASK = b"0123456789abcdef"


def _drift(path: Path, change: Callable[[RocksStore, WriteBatch], None]) -> DoctorReport:
    """Change rows behind the engine's back, then run the doctor."""
    store = RocksStore(path)
    batch = WriteBatch(raw_mode=True)
    change(store, batch)
    store.write(batch)
    store.sync()
    store.close()
    return examine(path)


def _kinds(report: DoctorReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def _first_leased(store: RocksStore, prefix: bytes = Q_PREFIX) -> tuple[bytes, bytes]:
    """Return (id, le value) of a message in flight."""
    for key, value in store.scan_items(store.le, prefix, prefix + b"\xff" * 17, 1_000):
        if unpack_lease(value).token:
            return key[8:], value
    raise AssertionError


async def test_a_store_with_messages_in_every_state_has_no_findings(stopped: Path) -> None:
    """Everything the engine writes is consistent."""
    steps: list[tuple[str, int]] = []
    report = examine(stopped, lambda where, rows: steps.append((where, rows)))
    assert report.findings == []
    assert report.clean
    figures = report.figures
    assert figures.messages == figures.ready + figures.delayed + figures.blocked + figures.in_flight
    assert min(figures.ready, figures.delayed, figures.blocked, figures.in_flight, figures.keys, figures.results) > 0
    assert (figures.tenants, figures.queues) == (2, 4)
    assert steps[-1][0] == "journal"
    assert [rows for _, rows in steps] == sorted(rows for _, rows in steps)


async def test_a_store_after_cleanup_has_no_findings(open_shard: OpenShard, clock: ManualClock, tmp_path: Path) -> None:
    """Sweeps, redrives and a trimmed journal leave nothing behind."""
    shard = await open_shard()
    await _fill(shard, clock)
    for _ in range(5):
        await pass_time(shard, clock, 1_000_000)
    task = await shard.redrive(T, Q)
    await finished(shard, task)
    await shard.journal.trim(shard.journal.span[1] - 2)
    await shard.add(T, Q, [message("after the trim")])
    count = sum(
        shard.reads.stats(t, q).ready + shard.reads.stats(t, q).delayed
        for t in tenants(shard)
        for q in queues(shard, t)
    )
    in_flight = sum(shard.reads.stats(t, q).in_flight for t in tenants(shard) for q in queues(shard, t))
    await shard.close()
    report = examine(tmp_path / "data")
    assert report.findings == []
    assert report.figures.messages == count + in_flight


async def test_a_message_in_flight_past_its_ttl_is_no_finding(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """Its TTL row is gone because the sweeper ignores messages in flight."""
    shard = await open_shard()
    await shard.add(T, Q, [message(ttl_ms=100)])
    await shard.poll(T, Q, lease_ms=10_000)
    await pass_time(shard, clock, 1_000)
    await shard.close()
    assert examine(tmp_path / "data").findings == []


async def test_the_doctor_changes_nothing(stopped: Path) -> None:
    """Every file of the database has the same bytes as before."""

    def content() -> dict[str, bytes]:
        files = sorted(p for p in stopped.rglob("*") if p.is_file() and p.name not in {"lock", "LOG"})
        return {str(p): p.read_bytes() for p in files if not p.name.startswith("LOG")}

    before = content()
    examine(stopped)
    assert content() == before


async def test_a_running_shard_can_be_examined_in_every_round(shard: Shard, clock: ManualClock, tmp_path: Path) -> None:
    """Each checkpoint is consistent, and is removed afterwards."""
    await _fill(shard, clock)
    for number in range(5):
        await shard.add(T, Q, [message(f"more {number}")])
        report = examine(tmp_path / "data")
        assert report.findings == []
        assert report.figures.messages > number
    assert not list((tmp_path / "data").glob("checkpoint*"))


def test_a_directory_without_a_store_is_refused_and_unchanged(tmp_path: Path) -> None:
    """A mistyped path does not become a store."""
    with pytest.raises(StoreFormat, match="no tenantq store"):
        examine(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


# ---- one kind of inconsistency after the other ----


def _lose_place(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(store.scan(store.vi, Q_PREFIX, Q_PREFIX + b"\xff" * 33, 1)[0], store.vi.handle)


def _lose_body(store: RocksStore, batch: WriteBatch) -> None:
    key = store.scan(store.vi, Q_PREFIX, Q_PREFIX + b"\xff" * 33, 1)[0]
    batch.delete(Q_PREFIX + key[-16:], store.m.handle)


def _wrong_marker(store: RocksStore, batch: WriteBatch) -> None:
    key, value = store.scan_items(store.vi, Q_PREFIX, Q_PREFIX + b"\xff" * 33, 1)[0]
    batch.put(key, b"" if value else b"\x01", store.vi.handle)


def _second_place(store: RocksStore, batch: WriteBatch) -> None:
    key = store.scan(store.vi, Q_PREFIX, Q_PREFIX + b"\xff" * 33, 1)[0]
    batch.put(waiting_key(Q_PREFIX, 7, 12, key[-16:]), b"", store.vi.handle)


def _leased_and_waiting(store: RocksStore, batch: WriteBatch) -> None:
    id, value = _first_leased(store)
    lease = unpack_lease(value)
    batch.put(waiting_key(Q_PREFIX, lease.priority, lease.visible_at, id), b"\x01", store.vi.handle)


def _lose_deadline(store: RocksStore, batch: WriteBatch) -> None:
    id, value = _first_leased(store)
    batch.delete(deadline_key(Q_PREFIX, unpack_lease(value).deadline, id), store.li.handle)


def _stray_deadline(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(deadline_key(Q_PREFIX, 1 << 50, bytes(16)), b"", store.li.handle)


def _other_deadline(store: RocksStore, batch: WriteBatch) -> None:
    id, _ = _first_leased(store)
    batch.put(deadline_key(Q_PREFIX, 1 << 50, id), b"", store.li.handle)


def _stray_lease(store: RocksStore, batch: WriteBatch) -> None:
    _, value = _first_leased(store)
    batch.put(Q_PREFIX + bytes(16), value, store.le.handle)


def _other_size(store: RocksStore, batch: WriteBatch) -> None:
    id, value = _first_leased(store)
    lease = unpack_lease(value)
    lease.size += 1
    batch.put(Q_PREFIX + id, pack_lease(lease), store.le.handle)


def _group_rows(store: RocksStore) -> tuple[tuple[bytes, bytes], list[bytes]]:
    """Return (head key, head id) and the member keys of the first group."""
    head = store.scan_items(store.gr, FIFO_PREFIX, FIFO_PREFIX + b"\xff" * 33, 1)[0]
    members = store.scan(store.gr, head[0] + b"\0", head[0] + b"\xff" * 17, 100)
    return head, members


def _lose_head(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(_group_rows(store)[0][0], store.gr.handle)


def _lose_head_member(store: RocksStore, batch: WriteBatch) -> None:
    (key, id), _ = _group_rows(store)
    batch.delete(key + id, store.gr.handle)


def _lose_member(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(_group_rows(store)[1][-1], store.gr.handle)


def _stray_member(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(_group_rows(store)[0][0] + bytes(16), b"", store.gr.handle)


def _blocked_and_waiting(store: RocksStore, batch: WriteBatch) -> None:
    id = _group_rows(store)[1][-1][-16:]
    value = store.get(store.m, FIFO_PREFIX + id)
    assert value is not None
    row = unpack_message(value)
    batch.put(waiting_key(FIFO_PREFIX, row.priority, row.visible_at, id), b"", store.vi.handle)


def _expiry(store: RocksStore, kind: bytes) -> bytes:
    keys = store.scan(store.ex, Q_PREFIX, Q_PREFIX + b"\xff" * 33, 1_000)
    return next(key for key in reversed(keys) if key[16:17] == kind)


def _lose_ttl(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(_expiry(store, EXPIRES_TTL), store.ex.handle)


def _lose_key_expiry(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(_expiry(store, EXPIRES_KEY), store.ex.handle)


def _lose_result_expiry(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(_expiry(store, EXPIRES_RESULT), store.ex.handle)


def _stray_ttl(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(expiry_key(Q_PREFIX, 1 << 50, EXPIRES_TTL, bytes(16)), b"", store.ex.handle)


def _stray_key_expiry(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(expiry_key(Q_PREFIX, 1 << 50, EXPIRES_KEY, bytes(16)), b"", store.ex.handle)


def _unknown_queue(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(queue_prefix(9, 9) + bytes(16), b"who", store.m.handle)


def _lose_counters(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(Q_PREFIX, store.qc.handle)


def _queue_without_tenant(store: RocksStore, batch: WriteBatch) -> None:
    value = store.get(store.meta, QUEUE_ROW + Q_PREFIX)
    assert value is not None
    batch.put(QUEUE_ROW + queue_prefix(77, 1), value, store.meta.handle)


def _torn_message(store: RocksStore, batch: WriteBatch) -> None:
    key = store.scan(store.m, Q_PREFIX, Q_PREFIX + b"\xff" * 17, 1)[0]
    batch.put(key, b"torn", store.m.handle)


def _torn_counters(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(Q_PREFIX, b"torn", store.qc.handle)


def _journal_gap(store: RocksStore, batch: WriteBatch) -> None:
    batch.delete(be64(4), store.jn.handle)


def _stray_redrive(store: RocksStore, batch: WriteBatch) -> None:
    order = RedriveOrder(None, None, None, None, None, None, dry_run=False, caller=LOCAL, found=1, started_at=1)
    batch.put(REDRIVE_ROW + queue_prefix(9, 9) + TASK, msgspec.msgpack.encode(order), store.meta.handle)


def _lose_order(store: RocksStore, batch: WriteBatch) -> None:
    progress = msgspec.msgpack.encode(RedriveProgress())
    batch.put(REDRIVE_ROW + Q_PREFIX + TASK + b"/progress", progress, store.meta.handle)


def _torn_redrive(store: RocksStore, batch: WriteBatch) -> None:
    batch.put(REDRIVE_ROW + Q_PREFIX + TASK, b"torn", store.meta.handle)


def _journal_edit(store: RocksStore, batch: WriteBatch) -> None:
    value = store.get(store.jn, be64(4))
    assert value is not None
    batch.put(be64(4), value.replace(b"local", b"loCal"), store.jn.handle)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (_lose_place, "index", "is missing from the delivery order"),
        (_lose_body, "orphan", "A row of the delivery order has no message"),
        (_wrong_marker, "index", "does not match the message's earlier deliveries"),
        (_second_place, "index", "at the wrong position"),
        (_leased_and_waiting, "index", "is in_flight but is listed in the delivery order"),
        (_lose_deadline, "lease", "no deadline row"),
        (_stray_deadline, "orphan", "A deadline row has no lease"),
        (_other_deadline, "lease", "does not match the message's lease"),
        (_stray_lease, "orphan", "A lease row has no message"),
        (_other_size, "lease", "differs from the message"),
        (_lose_head, "group", "members but no head"),
        (_lose_head_member, "group", "the group is blocked"),
        (_lose_member, "group", "is not a member of its group"),
        (_stray_member, "orphan", "A member of a group has no message"),
        (_blocked_and_waiting, "index", "is blocked but is listed in the delivery order"),
        (_lose_ttl, "expiry", "a TTL but no expiry row"),
        (_lose_key_expiry, "expiry", "idempotency key of the message has no expiry row"),
        (_lose_result_expiry, "expiry", "result has no expiry row"),
        (_stray_ttl, "orphan", "A TTL row has no message"),
        (_stray_key_expiry, "orphan", "no idempotency key"),
        (_unknown_queue, "orphan", "do not belong to any known queue"),
        (_stray_redrive, "orphan", "does not belong to any known queue"),
        (_lose_order, "catalog", "the row that says what it moves is missing"),
        (_torn_redrive, "damaged", "Redrive 0123456789abcdef cannot be read"),
        (_lose_counters, "counters", "has rows but no counters"),
        (_queue_without_tenant, "catalog", "does not belong to any tenant"),
        (_torn_message, "damaged", "cannot be read"),
        (_torn_counters, "damaged", "cannot be read"),
        (_journal_gap, "journal", "Records 4 to 4 are missing"),
        (_journal_edit, "journal", "hash chain"),
    ],
)
async def test_each_inconsistency_is_named(
    stopped: Path, change: Callable[[RocksStore, WriteBatch], None], kind: str, text: str
) -> None:
    """Each broken rule is reported under its kind."""
    report = _drift(stopped, change)
    assert not report.clean
    assert any(finding.kind == kind and text in finding.text for finding in report.findings), report.findings


async def test_redrives_are_no_orphans_if_the_catalog_cannot_be_read(stopped: Path) -> None:
    """Their queues may exist."""

    def change(store: RocksStore, batch: WriteBatch) -> None:
        _stray_redrive(store, batch)
        batch.put(QUEUE_ROW + Q_PREFIX, b"torn", store.meta.handle)

    found = [one.text for one in _drift(stopped, change).findings]
    assert any("the catalog cannot be read" in text for text in found)
    assert not any("Redrive" in text for text in found)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("blocked", 3, "blocked is 3"),
        ("in_flight", 99, "in_flight is 99"),
        ("bytes", 1, "bytes is 1"),
        ("next_lease", 1 << 60, "before next_lease"),
        ("next_expiry", 1 << 60, "before next_expiry"),
    ],
)
async def test_a_counter_that_differs_from_the_recount_is_named(
    stopped: Path, field: str, value: int, text: str
) -> None:
    """The queue's counters are compared one by one."""
    report = _change_counters(stopped, lambda row: row | {field: value})
    assert _kinds(report) == {"counters"}
    assert text in report.findings[0].text


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("ready", 77, "ready of priority"),
        ("delayed", 77, "delayed of priority"),
        ("cursor", b"\xff" * 24, "past a waiting message"),
        ("next_due", 1 << 60, "before next_due"),
        ("horizon", b"", "ready of priority"),
    ],
)
async def test_a_priority_counter_that_differs_from_the_recount_is_named(
    stopped: Path, field: str, value: object, text: str
) -> None:
    """The counters of each priority are compared too."""

    def change(row: dict[str, object]) -> dict[str, object]:
        levels = row["levels"]
        assert isinstance(levels, list)
        for level in levels:
            if level["priority"] == 0:
                level[field] = value
        return row

    report = _change_counters(stopped, change)
    assert _kinds(report) == {"counters"}
    assert any(text in finding.text for finding in report.findings), report.findings
    assert {(finding.tenant, finding.queue) for finding in report.findings} == {(T, Q)}


def _change_counters(path: Path, change: Callable[[dict[str, object]], dict[str, object]]) -> DoctorReport:
    def write(store: RocksStore, batch: WriteBatch) -> None:
        value = store.get(store.qc, Q_PREFIX)
        assert value is not None
        row = unpack_counters(value)
        fields = msgspec.structs.asdict(row) | {"levels": [msgspec.structs.asdict(level) for level in row.levels]}
        changed = change(fields)
        levels = [type(row.levels[0])(**level) for level in changed.pop("levels")]  # type: ignore[attr-defined]
        batch.put(Q_PREFIX, pack_counters(type(row)(levels=levels, **changed)), store.qc.handle)  # type: ignore[arg-type]

    return _drift(path, write)


@pytest.mark.parametrize("how", ["cut", "gone", "flipped"])
async def test_a_damaged_table_is_a_finding_not_a_traceback(stopped: Path, how: str) -> None:
    """So is a store that cannot be opened or read to its end."""
    for table in (stopped / "db").glob("*.sst"):
        content = table.read_bytes()
        if how == "gone":
            table.unlink()
        else:
            table.write_bytes(content[:100] if how == "cut" else bytes(b ^ 0x55 for b in content[:60]) + content[60:])
    report = examine(stopped)
    assert _kinds(report) == {"damaged"}
    assert report.findings_total >= 1


async def test_a_database_that_lost_synced_records_is_a_finding(open_shard: OpenShard, tmp_path: Path) -> None:
    """The sync marker knows how far the journal was synced."""
    shard = await open_shard()
    await shard.add(T, Q, [message("kept?")])
    await shard.close()
    for file in (tmp_path / "data" / "db").iterdir():
        file.unlink()
    report = examine(tmp_path / "data")
    assert [finding.kind for finding in report.findings] == ["damaged"]
    assert "it had 2 journal records" in report.findings[0].text


async def test_long_lists_of_findings_are_truncated_and_counted(tmp_path: Path, open_shard: OpenShard) -> None:
    """The count stays exact."""
    shard = await open_shard()
    for _ in range(2):
        await shard.add(T, Q, [NewMessage(body=b"x") for _ in range(600)])
    await shard.close()
    await asyncio.sleep(0)

    def lose_all(store: RocksStore, batch: WriteBatch) -> None:
        batch.delete_range(Q_PREFIX, Q_PREFIX + b"\xff" * 40, store.vi.handle)

    report = _drift(tmp_path / "data", lose_all)
    assert len(report.findings) == 1_000
    assert report.findings_total > 1_200
