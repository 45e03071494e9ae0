"""Old segments are removed if nothing needs them; the rest verifies, and truncation does not pass for retention."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.cli.command_line import run
from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import manifest_names, read_manifest
from tenantq.journal.segment_retention import Ingested, SegmentRetention
from tenantq.server import Server
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tests.shards import journal_rows, message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

    from tenantq.runtime.clock import ManualClock

pytestmark = pytest.mark.rocksdb_only("verifies its files and restores a backup")

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")
REASON = "because a court says so"


class Archive:
    """A server with four days of work, and at least one segment of each."""

    def __init__(self, server: Server, clock: ManualClock, path: Path) -> None:
        self.server, self.clock, self.path = server, clock, path
        self.target = DirectoryTarget(path / "journal")

    @property
    def retention(self) -> SegmentRetention:
        """The retention of the server's shard."""
        assert self.server.runtime.retention is not None
        return self.server.runtime.retention

    async def work(self, days: int = 1) -> None:
        """Work on the following days, and export."""
        for _ in range(days):
            self.clock.jump_wall(DAY_MS)
            await self.server.service.messages.add(CALL, "default", "mail", [message("a"), message("b")])
            await self.export()

    async def export(self) -> None:
        """Export and trim."""
        assert self.server.runtime.exporter is not None
        await self.server.runtime.exporter.export_now()

    def spans(self) -> list[tuple[int, int]]:
        """Return the first and last record of each segment, with its file."""
        found = [read_manifest(self.target, name) for name in manifest_names(self.target)]
        assert all((self.path / "journal" / one.file).is_file() for one in found)
        assert len(list((self.path / "journal").rglob("*.parquet"))) == len(found)
        return [(one.first_seq, one.last_seq) for one in found]

    def verify(self, capsys: pytest.CaptureFixture[str], place: Path | None = None) -> tuple[int, dict[str, Any]]:
        """Verify the running server, or a copy of its archive."""
        which = ["--data-dir", str(self.path)] if place is None else ["--segments", str(place)]
        capsys.readouterr()
        code = run(["audit", "verify", *which, "--public-key", str(self.path / "audit_key.pub"), "--json"])
        return code, json.loads(capsys.readouterr().out)


@pytest.fixture
async def archive(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Archive]:
    """Return an archive of four days of which two are kept."""
    export = ExportSettings(keep_days=2, keep_records=0, every_ms=DAY_MS)
    settings = ServerSettings(data_dir=str(tmp_path / "data"), http="127.0.0.1:0", rpc="off", export=export)
    async with Server(settings, admin_token=ADMIN, clock=clock) as server:
        archive = Archive(server, clock, tmp_path / "data")
        await archive.work(4)
        yield archive


async def test_old_segments_are_removed_and_the_rest_verifies(
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    """The removal is journaled, queries use what is left, and the next run removes nothing."""
    before = archive.spans()
    removed = await archive.retention.apply()
    after = archive.spans()
    assert 0 < removed == len(before) - len(after)
    assert after == before[removed:]
    code, shown = archive.verify(capsys)
    assert (code, shown["findings"], shown["removed"]) == (0, [], {"0": after[0][0] - 1})
    (row,) = await journal_rows(archive.server.shard, op="remove_segments")
    assert row.details.startswith(f"{after[0][0] - 1}:")
    assert await archive.retention.apply() == 0
    await archive.work(2)
    assert await archive.retention.apply() > 0
    assert archive.verify(capsys)[0] == 0
    page = await archive.server.service.audit.query_platform(CALL, AuditQuery(action="add"))
    assert page.rows


async def test_internal_error_does_not_end_the_retention(
    archive: Archive, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, and the next hour removes the segments."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug in the selection")

    before = len(archive.spans())
    async with asyncio.timeout(20):
        with monkeypatch.context() as fault:
            fault.setattr(SegmentRetention, "_removable", fail)
            while "a bug in the selection" not in caplog.text:
                archive.clock.advance(HOUR_MS)
                await asyncio.sleep(0.01)
        while len(list((archive.path / "journal").rglob("*.parquet"))) == before:
            archive.clock.advance(HOUR_MS)
            await asyncio.sleep(0.01)


async def test_truncated_archive_is_not_mistaken_for_retention(
    archive: Archive, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Covers a missing statement, a removal beyond it, and a forged, changed or older one."""
    first = archive.spans()[0]
    await archive.retention.apply()
    old = (archive.path / "journal" / "removed" / "shard=0.json").read_bytes()
    await archive.work(2)
    await archive.retention.apply()
    await archive.work(1)

    def copied(name: str) -> DirectoryTarget:
        shutil.copytree(archive.path / "journal", tmp_path / name)
        return DirectoryTarget(tmp_path / name)

    assert archive.verify(capsys, copied("as it is").path)[0] == 0
    target = copied("without a statement")
    target.delete("removed/shard=0.json")
    kept = archive.spans()[0]
    code, shown = archive.verify(capsys, target.path)
    assert (code, shown["findings"][0]["text"]) == (1, f"Records 1 to {kept[0] - 1} are missing.")
    target = copied("beyond it")
    manifest = read_manifest(target, manifest_names(target)[0])
    target.delete(manifest.name)
    target.delete(manifest.file)
    code, shown = archive.verify(capsys, target.path)
    assert (code, shown["findings"][0]["text"]) == (1, f"Records 1 to {kept[1]} are missing.")
    forged = json.loads(target.read("removed/shard=0.json")) | {"upto_seq": kept[1], "link": manifest.last_link}
    target.write("removed/shard=0.json", json.dumps(forged).encode())
    code, shown = archive.verify(capsys, target.path)
    assert code == 1
    assert "no valid signature" in shown["findings"][0]["text"]
    target = copied("with an older one")
    target.write("removed/shard=0.json", old)
    assert first[0] == 1
    assert archive.verify(capsys, target.path)[0] == 1
    target = copied("unreadable")
    target.write("removed/shard=0.json", b"{}")
    assert archive.verify(capsys, target.path)[0] == 1


async def test_needed_segments_are_kept(archive: Archive) -> None:
    """Covers legal holds, backups without segments, and pipelines that have not processed them."""
    service, before = archive.server.service, archive.spans()
    await service.legal_holds.place(CALL, "default", REASON)
    assert await archive.retention.apply() == 0
    await service.legal_holds.release(CALL, "default", REASON)
    await service.backups.create(CALL, "bare", segments=False)
    assert await archive.retention.apply() == 0
    shutil.rmtree(archive.path.with_name("data-backups") / "bare")
    await service.backups.create(CALL, "whole")
    archive.target.write("ingested/shard=0/lake.json", msgspec.json.encode(Ingested("lake", 0)))
    assert await archive.retention.apply() == 0
    archive.target.write("ingested/shard=0/lake.json", msgspec.json.encode(Ingested("lake", before[0][1])))
    assert await archive.retention.apply() == 1
    assert archive.spans() == before[1:]
    archive.target.delete("ingested/shard=0/lake.json")
    assert await archive.retention.apply() > 0


async def test_hold_of_a_newer_tenant_does_not_keep_older_segments(archive: Archive) -> None:
    """They cannot contain anything of it."""
    service = archive.server.service
    await service.tenants.put(CALL, "late", {})
    await archive.export()
    await service.legal_holds.place(CALL, "late", REASON)
    assert await archive.retention.apply() > 0


async def test_interrupted_removal_is_finished(
    archive: Archive, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the meantime the statement covers what is left, and it verifies."""
    before, delete, calls = archive.spans(), DirectoryTarget.delete, []

    def failing(target: DirectoryTarget, name: str) -> None:
        calls.append(name)
        if len(calls) > 2:
            raise OSError("the disk is gone")
        delete(target, name)

    monkeypatch.setattr(DirectoryTarget, "delete", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        await archive.retention.apply()
    monkeypatch.undo()
    assert archive.spans() == before[1:]
    assert archive.verify(capsys)[0] == 0
    archive.server.runtime.retention = SegmentRetention(
        archive.server.runtime._make_index(), archive.server.runtime._audit_key, archive.clock, 2,
        archive.server.shard.journal.note, archive.server.runtime._first_kept,
    )  # fmt: skip
    await archive.retention.apply()
    assert len(archive.spans()) < len(before) - 1
    assert archive.verify(capsys)[0] == 0


async def test_backup_after_a_removal_is_restored_and_verifies(
    archive: Archive, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It contains the statement."""
    await archive.retention.apply()
    await archive.server.service.backups.create(CALL, "one")
    source, place = archive.path.with_name("data-backups") / "one", tmp_path / "restored"
    assert run(["backup", "restore", "--from", str(source), "--data-dir", str(place)]) == 0
    key = str(archive.path / "audit_key.pub")
    assert run(["audit", "verify", "--data-dir", str(place), "--public-key", key]) == 0
    assert "removed records 1 to" in capsys.readouterr().out
