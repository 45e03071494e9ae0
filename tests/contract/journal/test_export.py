"""Export: every record once, in order, in segments of one hour, whatever happens in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.manifest import manifest_names, read_manifest
from tenantq.journal.record import rows
from tenantq.journal.segment import decode
from tests.shards import Q, T, message, pass_time, settled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from tenantq.clock import ManualClock
    from tenantq.engine.shard import Shard
    from tenantq.journal.target import DirectoryTarget
    from tenantq.journal.verify import AuditReport
    from tests.conftest import OpenShard
    from tests.contract.journal.conftest import MakeExporter


def live_rows(shard: Shard) -> list[dict[str, Any]]:
    """Return every row of the live journal."""
    first, last = shard.journal_span
    return [
        msgspec.structs.asdict(row)
        for sealed in shard.read_journal(first, last, 1 << 30)
        for row in rows(sealed.record)
    ]


def exported_rows(target: DirectoryTarget) -> list[dict[str, Any]]:
    """Return every row of every segment that has a manifest, in order."""
    found: list[dict[str, Any]] = []
    for name in manifest_names(target):
        for _, _, stored in decode(target.read(read_manifest(target, name).file)):
            found += stored
    return found


async def until(happened: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    while not happened():  # noqa: ASYNC110  # a thread sets no event of this loop
        await asyncio.sleep(0.01)


async def some_work(shard: Shard, count: int = 5) -> None:
    """Add, deliver and finish a few messages, one round each."""
    for number in range(count):
        await shard.add(T, Q, [message(f"{number}", priority=number % 3)])
    for one in await shard.poll(T, Q, max=count):
        await shard.ack(T, Q, [one.receipt])


async def test_the_segments_hold_the_journal_row_for_row(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """And they verify."""
    await some_work(shard)
    exporter = make_exporter(shard)
    assert exporter.lag_records == shard.journal_span[1]
    await exporter.start()
    await exporter.close()
    assert exported_rows(target) == live_rows(shard)
    report = verify()
    assert report.clean
    assert (report.rows, report.records) == (exporter.rows_total, shard.journal_span[1])
    assert exporter.lag_records == 0


async def test_records_are_exported_in_time_without_being_asked(
    shard: Shard, make_exporter: MakeExporter, clock: ManualClock, target: DirectoryTarget
) -> None:
    """No later than every_ms after they were written."""
    exporter = make_exporter(shard, every_ms=1_000)
    await exporter.start()
    await some_work(shard)
    assert exported_rows(target) == []
    await pass_time(shard, clock, 1_000)
    await until(lambda: not exporter.lag_records)
    assert exported_rows(target) == live_rows(shard)
    await exporter.close()


async def test_a_segment_is_bounded_and_of_one_hour(
    shard: Shard,
    make_exporter: MakeExporter,
    clock: ManualClock,
    target: DirectoryTarget,
    verify: Callable[[], AuditReport],
) -> None:
    """By rows, by bytes and by the clock's hour."""
    exporter = make_exporter(shard, segment_rows=4)
    await some_work(shard, 10)
    await pass_time(shard, clock, 3_600_000)
    await some_work(shard, 2)
    await exporter.export_now()
    manifests = [read_manifest(target, name) for name in manifest_names(target)]
    assert max(one.rows for one in manifests) <= 10  # one round may add more than a segment should have, never two
    assert all(one.min_ts // 3_600_000 == one.max_ts // 3_600_000 for one in manifests)
    assert len({one.file.split("/shard=")[0] for one in manifests}) == 2
    assert exported_rows(target) == live_rows(shard)
    assert verify().clean


@pytest.mark.parametrize("left", ["segment", "half a segment", "segment and manifest"])
async def test_a_crash_between_the_steps_exports_nothing_twice(
    left: str,
    shard: Shard,
    make_exporter: MakeExporter,
    target: DirectoryTarget,
    verify: Callable[[], AuditReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the segment, in its middle, or after its manifest."""
    await some_work(shard)
    steps = {"segment": 1, "half a segment": 0, "segment and manifest": 2}[left]
    write, written = target.write, list[str]()

    def crash(name: str, data: bytes) -> None:
        if len(written) == steps:
            if left == "half a segment":
                write(name, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        written.append(name)
        write(name, data)

    monkeypatch.setattr(target, "write", crash)
    with pytest.raises(OSError, match="No space"):
        await make_exporter(shard).export_now()
    monkeypatch.undo()
    await some_work(shard, 3)
    exporter = make_exporter(shard)
    await exporter.start()
    await exporter.close()
    assert exported_rows(target) == live_rows(shard)
    assert verify().clean


async def test_a_target_that_fails_loses_nothing_and_is_tried_again(
    shard: Shard,
    make_exporter: MakeExporter,
    clock: ManualClock,
    target: DirectoryTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a growing pause, and the reason is visible."""

    def refuse(name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    exporter = make_exporter(shard, every_ms=1_000)
    await exporter.start()
    await some_work(shard)
    monkeypatch.setattr(target, "write", refuse)
    await pass_time(shard, clock, 1_000)
    await until(lambda: exporter.failure)
    assert "No space left" in exporter.failure
    assert exporter.lag_records == shard.journal_span[1]
    monkeypatch.undo()
    await pass_time(shard, clock, 2_000)
    await until(lambda: not exporter.lag_records)
    assert exported_rows(target) == live_rows(shard)
    await until(lambda: not exporter.failure)
    await exporter.close()


async def test_what_is_exported_is_trimmed_and_the_chain_goes_on(
    open_shard: OpenShard, make_exporter: MakeExporter, target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """Over a restart too; what is kept is bounded."""
    shard = await open_shard()
    for _ in range(3):
        await some_work(shard, 20)
        exporter = make_exporter(shard, keep_records=8)
        await exporter.start()
        await exporter.close()
        first, last = shard.journal_span
        assert last - first <= 12
        assert first > 1
        await shard.close()
        shard = await open_shard()
    report = verify()
    assert report.clean
    assert report.rows == len(exported_rows(target))
    assert [row["seq"] for row in exported_rows(target)] == sorted(row["seq"] for row in exported_rows(target))


async def test_segments_of_another_journal_are_refused(open_shard: OpenShard, make_exporter: MakeExporter) -> None:
    """A new store must not go on writing into an old one's archive."""
    old = await open_shard("old")
    await some_work(old)
    await make_exporter(old).export_now()
    new = await open_shard("new")
    with pytest.raises(StoreDamaged, match="the journal ends at"):
        await make_exporter(new).start()
    await some_work(new, 9)
    with pytest.raises(StoreDamaged, match="another journal"):
        await make_exporter(new).start()


async def test_a_trimmed_journal_without_its_segments_is_refused(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """A gap in the archive must not go unnoticed."""
    await some_work(shard)
    await shard.trim_journal(3)
    with pytest.raises(Invalid, match="no segment of the earlier ones"):
        await make_exporter(shard).start()


async def test_the_signing_key_is_for_its_owner_only(tmp_path: Path, shard: Shard, make_exporter: MakeExporter) -> None:
    """And stays the same over restarts."""
    await settled(shard)
    make_exporter(shard)
    assert (tmp_path / "audit_key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "audit_key.pub").read_bytes()
    make_exporter(shard)
    assert (tmp_path / "audit_key.pub").read_bytes() == before


async def test_a_long_journal_is_encoded_in_another_process_and_is_the_same(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """More records than are encoded beside the callers' own work."""
    await asyncio.gather(*(shard.put_queue(T, f"q{number}") for number in range(40)))
    for number in range(600):
        await shard.add(T, Q, [message(f"{number}")])
    await make_exporter(shard).export_now()
    assert exported_rows(target) == live_rows(shard)
    assert verify().clean
