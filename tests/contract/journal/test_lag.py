"""Back-pressure: records that wait for export are counted exactly, shown and limited; nothing is ever dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.engine.shard_journal import ShardJournal
from tenantq.errors import JournalBehind
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.exporter import Exporter
from tenantq.journal.manifest import HEAD
from tenantq.service.service import Service
from tests.contract.gates.harness import ServiceHarness
from tests.contract.journal.test_export import exported_rows, live_rows, some_work, until
from tests.shards import pass_time

if TYPE_CHECKING:
    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.signing import SigningKey
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.contract.journal.conftest import MakeExporter
    from tests.verbs import Shard


def bytes_behind(shard: Shard, seq: int) -> int:
    """Return the bytes of all records after one."""
    return sum(len(value) for _, value in shard.journal.scan(seq + 1, shard.journal.span[1], 100_000))


async def test_lag_is_counted_to_the_byte(open_shard: OpenShard, make_exporter: MakeExporter) -> None:
    """This holds while records are written, exported and trimmed, and across a restart."""
    shard = await open_shard()
    await some_work(shard)
    exporter = make_exporter(shard, keep_records=4, segment_rows=9)
    await exporter.start()
    assert exporter.lag_bytes == bytes_behind(shard, 0) > 500
    await exporter.export_now()
    assert exporter.lag_bytes == bytes_behind(shard, exporter.exported_seq)
    await some_work(shard)
    behind = bytes_behind(shard, exporter.exported_seq)
    assert exporter.lag_bytes == behind > 500
    await shard.close()
    shard = await open_shard()
    exporter = make_exporter(shard)
    await exporter.start()
    assert exporter.lag_bytes == behind
    await exporter.close()
    assert exporter.lag_bytes == 0


async def test_unreachable_target_at_the_start_counts_everything_as_lag(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown how far the export was."""

    def away(under: str) -> list[str]:
        raise OSError(113, "No route to host")

    await some_work(shard)
    monkeypatch.setattr(target, "names", away)
    exporter = make_exporter(shard)
    await exporter.start()
    assert "No route" in exporter.failure
    assert exporter.lag_bytes == bytes_behind(shard, 0)
    assert exporter.failures_total == 1
    monkeypatch.undo()
    await exporter.close()
    assert (exporter.lag_bytes, exporter.lag_records) == (0, 0)


@pytest.mark.parametrize("exported", [False, True])
async def test_failed_attempts_neither_read_the_lag_again_nor_count_exported_records(
    shard: Shard,
    make_exporter: MakeExporter,
    target: DirectoryTarget,
    monkeypatch: pytest.MonkeyPatch,
    *,
    exported: bool,
) -> None:
    """The lag can be several GiB, and exported records stay in the store for a while."""

    def away(*_: object) -> list[str]:
        raise OSError(113, "No route to host")

    await some_work(shard)
    exporter = make_exporter(shard)
    if exported:
        await exporter.start()
        await exporter.export_now()
        await some_work(shard)
    with monkeypatch.context() as outage:
        outage.setattr(target, "write", away)
        outage.setattr(target, "names", away)
        with pytest.raises(OSError, match="No route"):
            await exporter.export_now()
        await some_work(shard)
        scan, scanned = ShardJournal.scan, list[tuple[int, int]]()

        def note(journal: ShardJournal, first: int, last: int, limit: int) -> list[tuple[int, bytes]]:
            scanned.append((first, last))
            return scan(journal, first, last, limit)

        outage.setattr(ShardJournal, "scan", note)
        for _ in range(3):
            with pytest.raises(OSError, match="No route"):
                await exporter.export_now()
        assert scanned == []
    assert exporter.lag_bytes == bytes_behind(shard, exporter.exported_seq) > 500
    await exporter.close()
    assert (exporter.lag_bytes, exporter.lag_records) == (0, 0)


async def test_lag_excludes_a_segment_whose_head_could_not_be_written(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt finds it exported."""
    write = target.write

    def refuse_heads(name: str, data: bytes) -> None:
        if name.endswith(HEAD):
            raise OSError(28, "No space left on device")
        write(name, data)

    await some_work(shard)
    exporter = make_exporter(shard, segment_rows=4)
    with monkeypatch.context() as outage:
        outage.setattr(target, "write", refuse_heads)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                await exporter.export_now()
    assert exporter.exported_seq
    assert exporter.lag_bytes == bytes_behind(shard, exporter.exported_seq) > 0
    await exporter.close()
    assert (exporter.lag_bytes, exporter.lag_records) == (0, 0)


async def test_target_outage_refuses_adds_at_the_limit_and_drops_nothing(
    shard: Shard, key: SigningKey, clock: ManualClock, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls and acks continue, readiness and metrics show it, and adds resume when the target is back."""
    harness = await ServiceHarness(shard, clock).open()
    settings = ExportSettings(every_ms=1_000, journal_lag_max_bytes=20_000)
    exporter = Exporter(shard.journal, target, key, clock, settings)
    harness.service = service = Service(shard, harness.admission, clock, harness.encryption, exporter=exporter)
    await exporter.start()
    owner = await harness.key("default")

    def refuse(name: str, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(target, "write", refuse)
    added = 0
    while not exporter.is_behind:
        await harness.add(owner, "work", *("m" for _ in range(10)))
        added += 10
        await pass_time(shard, clock, 100)
    with pytest.raises(JournalBehind, match="wait for their export") as caught:
        await harness.add(owner, "work", "one too many")
    assert (caught.value.code, caught.value.retry_after_ms) == ("unavailable", 10_000)
    assert exporter.lag_bytes > 20_000
    receipts = [one.receipt for one in await harness.take(owner, "work", max=5)]
    assert [one.ok for one in await service.settlement.ack(owner, None, "work", receipts)] == [True] * 5
    await pass_time(shard, clock, 60_000)
    await until(lambda: exporter.failure)
    shown = service.status.readiness()
    assert shown["ready"]
    assert shown["adds"].startswith("refused")
    assert shown["journal_lag_bytes"] == exporter.lag_bytes
    assert "Input/output error" in shown["journal_export"]
    text = (await service.status.metrics(harness.admin)).decode()
    assert f"tenantq_journal_lag_bytes {float(exporter.lag_bytes)}" in text
    assert "tenantq_journal_export_failures_total 0.0" not in text
    refused = await harness.rows(op="add", result="DENIED")
    assert {(row.outcome, row.error_code, row.queue) for row in refused} == {("throttled", "unavailable", "work")}
    monkeypatch.undo()
    await exporter.export_now()
    await harness.add(owner, "work", "again")
    assert service.status.readiness()["adds"] == "accepted"
    assert shard.reads.stats("default", "work").ready == added - 5 + 1
    await exporter.close()
    assert exported_rows(target) == live_rows(shard)
    await harness.close()
