"""Export: every record once, in order, in segments of one hour, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import DirectoryTarget, open_target
from tenantq.journal.exporter import Exporter
from tenantq.journal.manifest import HEAD, manifest_names, read_manifest
from tenantq.journal.record import decode_record, rows
from tenantq.journal.segment import decode
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.verify import verify_segments
from tests.administration import put_queue
from tests.shards import Q, T, message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tenantq.journal.signing import SigningKey
    from tenantq.journal.verify import AuditReport
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.contract.journal.conftest import MakeExporter
    from tests.verbs import Shard


def live_rows(shard: Shard) -> list[dict[str, Any]]:
    """Return all rows of the live journal."""
    first, last = shard.journal.span
    return [
        msgspec.structs.asdict(row)
        for _, stored in shard.journal.scan(first, last, last)
        for row in rows(decode_record(stored)[1])
    ]


def exported_rows(target: DirectoryTarget) -> list[dict[str, Any]]:
    """Return all rows of all segments with a manifest, in order."""
    found: list[dict[str, Any]] = []
    for name in manifest_names(target):
        for _, _, stored in decode(target.read(read_manifest(target, name).file)):
            found += stored
    return found


async def until(happened: Callable[[], object]) -> None:
    """Wait for an effect of another thread."""
    while not happened():  # noqa: ASYNC110  # a thread sets no event of this loop
        await asyncio.sleep(0.01)


async def some_work(shard: Shard, count: int = 5) -> None:
    """Add, deliver and ack a few messages, one round each."""
    for number in range(count):
        await shard.add(T, Q, [message(f"{number}", priority=number % 3)])
    for one in await shard.poll(T, Q, max=count):
        await shard.ack(T, Q, [one.receipt])


async def test_segments_contain_the_journal_row_for_row(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """They verify."""
    await some_work(shard)
    exporter = make_exporter(shard)
    assert exporter.lag_records == shard.journal.span[1]
    await exporter.start()
    await exporter.close()
    assert exported_rows(target) == live_rows(shard)
    report = verify()
    assert report.clean
    assert (report.rows, report.records) == (exporter.rows_total, shard.journal.span[1])
    assert exporter.lag_records == 0


async def test_records_are_exported_within_every_ms(
    shard: Shard, make_exporter: MakeExporter, clock: ManualClock, target: DirectoryTarget
) -> None:
    """Nobody has to request it."""
    exporter = make_exporter(shard, every_ms=1_000)
    await exporter.start()
    await some_work(shard)
    assert exported_rows(target) == []
    await pass_time(shard, clock, 1_000)
    await until(lambda: not exporter.lag_records)
    assert exported_rows(target) == live_rows(shard)
    await exporter.close()


async def test_segments_are_limited_and_of_one_hour(
    shard: Shard,
    make_exporter: MakeExporter,
    clock: ManualClock,
    target: DirectoryTarget,
    verify: Callable[[], AuditReport],
) -> None:
    """Limits are rows, bytes and the hour of the clock."""
    exporter = make_exporter(shard, segment_rows=4)
    await some_work(shard, 10)
    await pass_time(shard, clock, 3_600_000)
    await some_work(shard, 2)
    await exporter.export_now()
    manifests = [read_manifest(target, name) for name in manifest_names(target)]
    assert max(one.rows for one in manifests) <= 10  # one round may exceed the limit of a segment, but not two
    assert all(one.min_ts // 3_600_000 == one.max_ts // 3_600_000 for one in manifests)
    assert len({one.file.split("/shard=")[0] for one in manifests}) == 2
    assert exported_rows(target) == live_rows(shard)
    assert verify().clean


@pytest.mark.parametrize("left", ["segment", "half a segment", "segment and manifest"])
async def test_crash_between_the_steps_exports_nothing_twice(
    left: str,
    shard: Shard,
    make_exporter: MakeExporter,
    target: DirectoryTarget,
    verify: Callable[[], AuditReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It crashes after the segment, during it, or after its manifest."""
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
    assert segments_without_manifest(target) == []


def segments_without_manifest(target: DirectoryTarget) -> list[str]:
    """Return the segments that no manifest names."""
    listed = {read_manifest(target, name).file for name in manifest_names(target)}
    return [name for name in target.names("") if name.endswith(".parquet") and name not in listed]


async def test_failing_attempt_leaves_no_segment_behind(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt has more records, so its segment has another name."""
    exporter = make_exporter(shard)
    await some_work(shard)
    write = target.write

    def refuse_manifests(name: str, data: bytes) -> None:
        if not name.endswith(".parquet"):
            raise OSError(28, "No space left on device")
        write(name, data)

    with monkeypatch.context() as patch:
        patch.setattr(target, "write", refuse_manifests)
        with pytest.raises(OSError, match="No space"):
            await exporter.export_now()
    assert len(segments_without_manifest(target)) == 1
    await some_work(shard)
    await exporter.export_now()
    assert segments_without_manifest(target) == []
    assert exported_rows(target) == live_rows(shard)


async def test_segment_whose_head_could_not_be_written_is_in_the_index_and_the_totals(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is exported, so audit queries, retention and metrics have to know it."""
    index = SegmentIndex(target, shard.name)
    exporter = make_exporter(shard, index)
    await some_work(shard)
    await exporter.export_now()
    assert index.at(1) is not None  # it is listed now
    write = target.write

    def refuse_heads(name: str, data: bytes) -> None:
        if name.endswith(HEAD):
            raise OSError(28, "No space left on device")
        write(name, data)

    await some_work(shard)
    with monkeypatch.context() as patch:
        patch.setattr(target, "write", refuse_heads)
        with pytest.raises(OSError, match="No space"):
            await exporter.export_now()
    await some_work(shard)
    await exporter.export_now()
    manifests = [read_manifest(target, name) for name in manifest_names(target)]
    assert len(manifests) == 3
    found = [span.file for one in manifests if (span := index.at(one.first_seq)) is not None]
    assert found == [one.file for one in manifests]
    assert (exporter.segments_total, exporter.rows_total) == (3, sum(one.rows for one in manifests))
    again = make_exporter(shard, index)
    await again.start()
    assert (again.segments_total, again.rows_total) == (0, 0)
    await again.close(to_end=False)


async def test_start_lists_no_segments_of_other_shards_or_hours(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that share a target move often, and each start would otherwise list all that was ever exported."""
    await some_work(shard)
    await make_exporter(shard).export_now()
    await some_work(shard)
    names, listed = target.names, list[str]()

    def list_names(under: str) -> list[str]:
        listed.append(under)
        return names(under)

    monkeypatch.setattr(target, "names", list_names)
    exporter = make_exporter(shard)
    await exporter.start()
    await exporter.close(to_end=False)
    assert listed[0] == f"manifest/shard={shard.name}"
    assert [one.rpartition("/")[2] for one in listed[1:]] == [f"shard={shard.name}"]


async def test_failing_target_loses_nothing_and_is_retried(
    shard: Shard,
    make_exporter: MakeExporter,
    clock: ManualClock,
    target: DirectoryTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pauses grow, and the reason is visible."""

    def refuse(name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    exporter = make_exporter(shard, every_ms=1_000)
    await exporter.start()
    await some_work(shard)
    monkeypatch.setattr(target, "write", refuse)
    await pass_time(shard, clock, 1_000)
    await until(lambda: exporter.failure)
    assert "No space left" in exporter.failure
    assert exporter.lag_records == shard.journal.span[1]
    monkeypatch.undo()
    await pass_time(shard, clock, 2_000)
    await until(lambda: not exporter.lag_records)
    assert exported_rows(target) == live_rows(shard)
    await until(lambda: not exporter.failure)
    await exporter.close()


async def test_exported_records_are_trimmed_and_the_chain_continues(
    open_shard: OpenShard, make_exporter: MakeExporter, target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """This holds across a restart, and the number of kept records is limited."""
    shard = await open_shard()
    for _ in range(3):
        await some_work(shard, 20)
        exporter = make_exporter(shard, keep_records=8)
        await exporter.start()
        await exporter.close()
        first, last = shard.journal.span
        assert last - first <= 12
        assert first > 1
        await shard.close()
        shard = await open_shard()
    report = verify()
    assert report.clean
    assert report.rows == len(exported_rows(target))
    assert [row["seq"] for row in exported_rows(target)] == sorted(row["seq"] for row in exported_rows(target))


async def test_segments_of_another_journal_are_refused(open_shard: OpenShard, make_exporter: MakeExporter) -> None:
    """A new store must not write into the archive of an old one."""
    old = await open_shard("old")
    await some_work(old)
    await make_exporter(old).export_now()
    new = await open_shard("new")
    with pytest.raises(StoreDamaged, match="the journal ends at"):
        await make_exporter(new).start()
    await some_work(new, 9)
    with pytest.raises(StoreDamaged, match="another journal"):
        await make_exporter(new).start()


async def test_trimmed_journal_without_its_segments_is_refused(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """A gap in the archive must not go unnoticed."""
    await some_work(shard)
    await shard.journal.trim(3)
    with pytest.raises(Invalid, match="no earlier segments"):
        await make_exporter(shard).start()


async def test_signing_key_is_readable_by_its_owner_only(
    tmp_path: Path, shard: Shard, make_exporter: MakeExporter
) -> None:
    """It stays the same across restarts."""
    await wait_until_idle(shard)
    make_exporter(shard)
    assert (tmp_path / "audit_key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "audit_key.pub").read_bytes()
    make_exporter(shard)
    assert (tmp_path / "audit_key.pub").read_bytes() == before


async def test_long_journal_is_encoded_in_another_process(
    shard: Shard, make_exporter: MakeExporter, target: DirectoryTarget, verify: Callable[[], AuditReport]
) -> None:
    """The segments are the same as without it."""
    await asyncio.gather(*(put_queue(shard, T, f"q{number}") for number in range(40)))
    for number in range(600):
        await shard.add(T, Q, [message(f"{number}")])
    await make_exporter(shard).export_now()
    assert exported_rows(target) == live_rows(shard)
    assert verify().clean


async def test_unexpected_error_does_not_end_the_export(
    shard: Shard,
    make_exporter: MakeExporter,
    clock: ManualClock,
    target: DirectoryTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It shows in readiness, without paths, and the next attempt follows."""

    def refuse(name: str, data: bytes) -> None:
        raise RuntimeError(f"no idea what happened at {target.path}")

    exporter = make_exporter(shard, every_ms=1_000)
    await exporter.start()
    await some_work(shard)
    monkeypatch.setattr(target, "write", refuse)
    await pass_time(shard, clock, 1_000)
    await until(lambda: exporter.failure)
    assert exporter.failure == "RuntimeError; see the server log"
    monkeypatch.undo()
    await pass_time(shard, clock, 2_000)
    await until(lambda: not exporter.lag_records)
    assert exported_rows(target) == live_rows(shard)
    await exporter.close()


async def test_two_servers_on_one_target_do_not_overwrite_each_other(
    shard: Shard, open_shard: OpenShard, make_exporter: MakeExporter, verify: Callable[[], AuditReport]
) -> None:
    """Both started when it was empty. The second is refused, and the first archive stays unchanged."""
    other = await open_shard("other")
    mine, theirs = make_exporter(shard), make_exporter(other)
    await mine.start()
    await theirs.start()
    await some_work(shard)
    await some_work(other)
    await mine.export_now()
    with pytest.raises(StoreDamaged, match="another server writes"):
        await theirs.export_now()
    assert theirs.lag_records
    await some_work(shard)
    await mine.export_now()
    assert verify().clean
    await mine.close()


def test_new_archive_directories_are_synced_before_a_trim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could lose the directory of a whole day."""
    synced: set[str] = set()
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    DirectoryTarget(tmp_path / "journal").write("date=2026-01-01/hour=00/shard=0/a.parquet", b"x")
    home = tmp_path / "journal" / "date=2026-01-01"
    assert synced >= {str(place) for place in (tmp_path, tmp_path / "journal", home, home / "hour=00")}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nonsense://user:hunter2@host/path?secret=hunter2", "nonsense://host/path"),
        ("s3://AKIA:hunter2@bucket/prefix?no_such_option=hunter2", "s3://bucket/prefix"),
    ],
)
def test_target_password_is_not_in_the_error(url: str, shown: str) -> None:
    """It would be in the log and on the screen."""
    with pytest.raises(Invalid) as caught:
        open_target(url)
    assert "hunter2" not in str(caught.value)
    assert shown in str(caught.value)


async def test_journal_is_exported_to_any_fsspec_target(
    shard: Shard, key: SigningKey, clock: ManualClock, open_shard: OpenShard
) -> None:
    """The next start finds the archive, which verifies and is refused to another journal."""
    target = open_target("memory://tenantq-tests/archive")
    settings = ExportSettings(keep_records=2)
    await some_work(shard)
    exporter = Exporter(shard.journal, target, key, clock, settings)
    await exporter.start()
    await exporter.export_now()
    assert shard.journal.span[0] > 1
    await exporter.close()
    await some_work(shard)
    again = Exporter(shard.journal, target, key, clock, settings)
    await again.start()
    assert again.exported_seq == exporter.exported_seq
    await again.close()
    report = verify_segments(target, key.public)
    assert (report.findings, report.last_seq) == ([], {"0": again.exported_seq})
    with pytest.raises(FileNotFoundError):
        target.read("no-such-file")
    name = manifest_names(target)[0]
    target.delete(read_manifest(target, name).file)
    assert "missing" in verify_segments(target, key.public).findings[0].text
    other = await open_shard("other")
    await some_work(other, 30)
    with pytest.raises(StoreDamaged, match="another journal"):
        await Exporter(other.journal, target, key, clock, settings).start()
