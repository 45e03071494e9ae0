"""A backup contains everything acknowledged before it, is complete or absent, and can be restored."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.backup.backups import Backups
from tenantq.backup.manifest import MANIFEST, read_backup_manifest, verify_backup
from tenantq.backup.restore import restore_backup
from tenantq.cli.command_line import run
from tenantq.doctor.store_check import examine
from tenantq.domain.message import Result
from tenantq.engine.ops.redrive import find_redrive
from tenantq.engine.shard import StoreCheckpoint
from tenantq.errors import Conflict, DiskFull, Invalid, NotFound, StoreDamaged
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import open_target
from tenantq.journal.signing import PublicKey, SigningKey
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tenantq.store.crash_recovery import STAGE
from tests.administration import put_data_key, put_queue, put_tenant
from tests.shards import journal_rows, message
from tests.verbs import Shard, verbs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")


def server_of(data_dir: Path, **export: Any) -> Server:
    """Return a server with its administrator."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", export=ExportSettings(**export))
    return Server(settings, admin_token=ADMIN)


async def fill(shard: Shard) -> None:
    """Add some of everything to a shard."""
    await put_tenant(shard, "acme", weight=3)
    await put_queue(shard, "acme", "work", max_attempts=1)
    await shard.add("acme", "work", [message(f"body {n}", key=f"k{n}", priority=n % 10) for n in range(50)])
    await shard.add("acme", "later", [message("delayed", delay_ms=3_600_000, attributes={"a": "b"})])
    await shard.add("acme", "line.fifo", [message("one", group="g"), message("two", group="g")])
    done, failed, *_ = await shard.poll("acme", "work", max=5, lease_ms=600_000)
    await shard.ack("acme", "work", [done.receipt], results=[Result("completed", b"42")])
    await shard.nack("acme", "work", [failed.receipt], reason="broken")


async def saved(tmp_path: Path, **options: Any) -> Path:
    """Return a backup of a server that did some work."""
    async with server_of(tmp_path / "data") as server:
        await fill(verbs(server.shard))
        await server.service.backups.create(CALL, "one", **options)
    return tmp_path / "data-backups" / "one"


async def test_backup_under_load_contains_everything_acknowledged_before_it(tmp_path: Path) -> None:
    """Producers and consumers continue meanwhile, and the restored store is clean."""
    async with server_of(tmp_path / "data") as server:
        shard = verbs(server.shard)
        await fill(shard)
        acknowledged: list[bytes] = []
        stopping, busy = asyncio.Event(), asyncio.Event()

        async def produce(queue: str) -> None:
            while not stopping.is_set():
                added = await shard.add("acme", queue, [message(b"x" * 2_000) for _ in range(20)])
                acknowledged.extend(one.raw_id for one in added)
                if len(acknowledged) > 2_000:
                    busy.set()

        async def consume() -> None:
            while not stopping.is_set():
                got = await shard.poll("acme", "load-0", max=10, wait_ms=50)
                if got:
                    await shard.ack("acme", "load-0", [one.receipt for one in got])

        await put_queue(shard, "acme", "load-0")
        work = [asyncio.ensure_future(produce(f"load-{n}")) for n in range(3)]
        work.append(asyncio.ensure_future(consume()))
        await busy.wait()
        before = len(acknowledged)
        made = await server.service.backups.create(CALL, "loaded")
        after = len(acknowledged)
        stopping.set()
        await asyncio.gather(*work)
        assert after > before  # it blocked nobody
        end = shard.journal.span[1]
    assert made.last_seq <= end
    restored = restore_backup(tmp_path / "data-backups" / "loaded", tmp_path / "again")
    assert restored.manifest.last_seq == made.last_seq
    async with Shard(tmp_path / "again") as copy:
        there = {row.message_id.replace("-", "") for row in await journal_rows(copy, op="add")}
        assert {id.hex() for id in acknowledged[:before]} <= there
        assert len(there) < len(acknowledged) + 100
        assert copy.reads.stats("acme", "work").ready == 45
        for queue in ("load-0", "load-1"):
            assert await copy.poll("acme", queue)


async def test_restored_server_works_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the exported segments, a trimmed journal continues from its anchor, and the same key signs."""
    data = tmp_path / "data"
    async with server_of(data, keep_records=4) as server:
        await fill(verbs(server.shard))
        for _ in range(20):
            await server.shard.add("acme", "work", [message()])
        assert server.runtime.exporter is not None
        await server.runtime.exporter.export_now()
        assert server.shard.journal.span[0] > 1
        made = await server.service.backups.create(CALL, "one")
        lease = await verbs(server.shard).poll("acme", "line.fifo", lease_ms=600_000)
        assert lease
    assert 0 < made.segments_upto <= made.last_seq
    backup = tmp_path / "data-backups" / "one"
    restore_backup(backup, tmp_path / "same", audit_key=data / "audit_key")
    restore_backup(backup, tmp_path / "other")
    for place in ("same", "other"):
        async with server_of(tmp_path / place, keep_records=4) as server:
            rows = await journal_rows(server.shard, made.last_seq, op="restore_backup")
            assert [row.details for row in rows] == [f"one: up to record {made.last_seq}"]
            assert (await server.service.tenants.get(CALL, "acme")).config.weight == 3
            assert [one.body for one in await verbs(server.shard).poll("acme", "line.fifo")] == [b"one"]
            assert server.shard.reads.stats("acme", "later").delayed == 1
            assert server.shard.reads.stats("acme", "work").dead == 1
        async with server_of(tmp_path / place, keep_records=4) as server:
            rows = await journal_rows(server.shard, 0, op="restore_backup")
            assert len(rows) <= 1
        assert run(["doctor", "--data-dir", str(tmp_path / place)]) == 0
        assert run(["audit", "verify", "--data-dir", str(tmp_path / place)]) == 0, capsys.readouterr().out
    assert (tmp_path / "same" / "audit_key").stat().st_mode & 0o777 == 0o600
    assert not [name for name in names_in(tmp_path) if name.startswith(".")]


async def test_a_redrive_continues_in_a_restored_server(tmp_path: Path) -> None:
    """From where it was in the backup: messages and progress are of one moment."""
    async with server_of(tmp_path / "data") as server:
        shard = verbs(server.shard)
        await put_queue(shard, "default", "work", max_attempts=1)
        await shard.add("default", "work", [message(f"{n}") for n in range(30)])
        leased = await shard.poll("default", "work", max=30)
        await shard.nack("default", "work", [one.receipt for one in leased])
        task = await shard.redrive("default", "work", rate=20)
        await server.service.backups.create(CALL, "one")
        await asyncio.wait_for(task.ended.wait(), 10)
    restore_backup(tmp_path / "data-backups" / "one", tmp_path / "restored")
    assert examine(tmp_path / "restored").findings == []
    async with server_of(tmp_path / "restored") as server:
        again = find_redrive(server.shard.state, "default", "work", task.id)
        assert again.is_running
        assert again.progress.moved > 0
        await asyncio.wait_for(again.ended.wait(), 10)
        assert (again.progress.state, again.progress.moved) == ("done", 30)
        assert server.shard.reads.stats("default", "work").ready == 30


async def test_exports_and_trims_during_a_backup_leave_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal is exported and trimmed around the checkpoint, and every record is in a segment or the store."""
    data, backups = tmp_path / "data", tmp_path / "data-backups"
    async with server_of(data, keep_records=2) as server:
        shard, exporter = server.shard, server.runtime.exporter
        assert exporter is not None
        await put_tenant(shard, "acme")
        real = shard.checkpoint

        async def export_and_trim() -> None:
            for _ in range(8):
                await shard.add("acme", "work", [message()])
            await exporter.export_now()

        async def checkpoint() -> StoreCheckpoint:
            await export_and_trim()
            await export_and_trim()
            taken = await real()
            await export_and_trim()
            return taken

        monkeypatch.setattr(shard, "checkpoint", checkpoint)
        for number in range(4):
            made = await server.service.backups.create(CALL, f"b{number}")
            assert made.segments_upto <= made.last_seq < shard.journal.span[0]
    for number in range(4):
        source, again = backups / f"b{number}", tmp_path / f"again{number}"
        assert run(["backup", "verify", "--from", str(source), "--public-key", str(data / "audit_key.pub")]) == 0
        assert "the journal is complete up to record" in capsys.readouterr().out
        restore_backup(source, again, audit_key=data / "audit_key")
        async with server_of(again, keep_records=2) as server:
            await server.shard.add("acme", "work", [message()])
        assert run(["audit", "verify", "--data-dir", str(again)]) == 0, capsys.readouterr().out


async def test_backups_under_constant_exports_verify_and_start(tmp_path: Path) -> None:
    """Exports and trims run freely while many backups are created."""
    data, backups, stopping = tmp_path / "data", tmp_path / "data-backups", asyncio.Event()
    async with server_of(data, keep_records=2) as server:
        shard, exporter = server.shard, server.runtime.exporter
        assert exporter is not None
        await put_tenant(shard, "acme")

        async def export() -> None:
            while not stopping.is_set():
                await shard.add("acme", "work", [message()])
                await exporter.export_now()

        await exporter.export_now()
        exporting = asyncio.ensure_future(export())
        for number in range(12):
            await server.service.backups.create(CALL, f"b{number}")
        stopping.set()
        await exporting
    for number in range(12):
        assert verify_backup(backups / f"b{number}").segments_upto > 0
    restore_backup(backups / "b11", tmp_path / "again")
    async with server_of(tmp_path / "again", keep_records=2) as server:
        await server.shard.add("acme", "work", [message()])


async def test_verify_and_restore_name_missing_journal_records(tmp_path: Path) -> None:
    """A signed backup without a segment, as earlier versions could write, can be restored only with the archive."""
    data, backups = tmp_path / "data", tmp_path / "data-backups"
    async with server_of(data, keep_records=2) as server:
        assert server.runtime.exporter is not None
        for _ in range(3):
            await put_tenant(server.shard, "acme")
            for _ in range(4):
                await server.shard.add("acme", "work", [message()])
            await server.runtime.exporter.export_now()
        made = await server.service.backups.create(CALL, "one")
    *_, last = sorted((backups / "one" / "journal" / "manifest").rglob("0*.json"))
    segment = next((backups / "one" / "journal").rglob(f"{last.stem}.parquet"))
    gone = {file.relative_to(backups / "one").as_posix() for file in (last, segment)}
    for file in (last, segment):
        file.unlink()
    files = {name: file for name, file in read_backup_manifest(backups / "one").files.items() if name not in gone}
    changed = msgspec.structs.replace(read_backup_manifest(backups / "one"), files=files, segments_link=msgspec.UNSET)
    changed = changed.signed(SigningKey.load_or_make(data))
    (backups / "one" / MANIFEST).write_bytes(msgspec.json.encode(changed))
    with pytest.raises(StoreDamaged, match="are neither in a segment nor in the store"):
        verify_backup(backups / "one")
    with pytest.raises(StoreDamaged, match="--segments"):
        restore_backup(backups / "one", tmp_path / "no")
    restore_backup(backups / "one", tmp_path / "yes", segments=open_target(data / "journal"))
    async with server_of(tmp_path / "yes", keep_records=2) as server:
        assert server.shard.journal.span[1] >= made.last_seq


def test_restore_names_the_keyring_that_the_server_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it, serve refuses to start."""

    async def back_up() -> None:
        async with server_of(tmp_path / "data") as server:
            await server.service.tenants.put(CALL, "acme", {"encryption": {"enabled": True}})
            await server.service.messages.add(CALL, "acme", "work", [message("sealed")])
            await server.service.backups.create(CALL, "one")

    asyncio.run(back_up())
    source, again = str(tmp_path / "data-backups" / "one"), str(tmp_path / "again")
    assert run(["backup", "restore", "--from", source, "--data-dir", again]) == 0
    assert f"copy keyring.json and keyring.key of the old server to {again}" in capsys.readouterr().out
    with pytest.raises(Invalid, match="the keyring is missing"):
        asyncio.run(server_of(tmp_path / "again").start())


async def test_restore_fetches_segments_from_the_archive(tmp_path: Path) -> None:
    """It fetches only segments older than the backup, although the archive has grown."""
    data = tmp_path / "data"
    async with server_of(data, keep_records=1, target=str(tmp_path / "archive")) as server:
        await fill(verbs(server.shard))
        assert server.runtime.exporter is not None
        await server.runtime.exporter.export_now()
        await server.runtime.exporter.export_now()
        assert server.shard.journal.span[0] > 1
        made = await server.service.backups.create(CALL, "one")
        await server.shard.add("acme", "work", [message()])
    assert made.segments_upto == 0
    backup = tmp_path / "data-backups" / "one"
    restored = restore_backup(
        backup, tmp_path / "again", audit_key=data / "audit_key", segments=open_target(tmp_path / "archive")
    )
    assert restored.segments >= 1
    async with server_of(tmp_path / "again", keep_records=1) as server:
        await server.shard.add("acme", "work", [message()])
    assert run(["audit", "verify", "--data-dir", str(tmp_path / "again")]) == 0


async def test_backups_contain_no_data_keys_and_destroyed_keys_stay_destroyed(tmp_path: Path) -> None:
    """A restore takes them from the one file that is always the newest."""
    secret = b"a-wrapped-data-key-" + bytes(range(64))
    data, backups = tmp_path / "data", tmp_path / "data-backups"
    async with server_of(data) as server:
        shard = verbs(server.shard)
        await fill(shard)
        tenant = shard.tenant("acme").id
        for number in (0, 1):
            await put_data_key(shard, tenant, number, secret)
        await server.service.backups.create(CALL, "one")
        for file in (backups / "one").rglob("*"):
            assert file.is_dir() or secret not in file.read_bytes(), file
        (keys,) = backups.glob("data-keys-*.json")
        assert keys.stat().st_mode & 0o777 == 0o600
        restored = restore_backup(backups / "one", tmp_path / "with")
        assert restored.data_keys == 2
        await put_tenant(shard, "later")
        await put_data_key(shard, shard.tenant("later").id, 0, secret)
        await shard.erasure.drop_data_keys(tenant)
        assert server.runtime._backups is not None
        await server.runtime._backups.refresh_data_keys()
    async with Shard(tmp_path / "with") as copy:
        assert copy.state.data_keys.by_tenant == {tenant: {0: secret, 1: secret}}
    assert restore_backup(backups / "one", tmp_path / "without").data_keys == 0


async def test_invalid_backups_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    """Covers duplicate and invalid names, a path inside the data directory, concurrent backups and a full disk."""
    data = tmp_path / "data"
    async with server_of(data) as server:
        service, key = server.service, SigningKey.load_or_make(data)
        await service.backups.create(CALL, "one")
        with pytest.raises(Conflict, match="backup one already exists"):
            await service.backups.create(CALL, "one")
        for name in ("", ".hidden", "../up", "a/b", "x" * 81, "-x"):
            with pytest.raises(Invalid, match="name: 1 to 80"):
                await service.backups.create(CALL, name)
        for inside in (data, data / "db", data / ".." / "data" / "backups"):
            with pytest.raises(Invalid, match="inside the data directory"):
                Backups(server.shard, inside, data, key)
        both = await asyncio.gather(
            service.backups.create(CALL, "two"), service.backups.create(CALL, "three"), return_exceptions=True
        )
        assert sum(isinstance(one, Conflict) for one in both) == 1
        full = Backups(server.shard, tmp_path / "full", data, key, reserve_bytes=1 << 60)
        with pytest.raises(DiskFull, match="Nothing was written"):
            await full.create("one")
        assert not (tmp_path / "full").exists()
        assert not (data / STAGE).exists()
        names = [one.name for one in await service.backups.list(CALL)]
        assert names == sorted(["one", *({"two", "three"} & set(names))])
        rows = await journal_rows(server.shard, 0, op="create_backup")
        assert [row.outcome for row in rows].count("ok") == 2


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory."""
    return sorted(path.name for path in directory.iterdir())


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Make every write beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_restore_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """The error says so, and with enough space the restore succeeds."""
    backup = await saved(tmp_path)
    with limit_file_size(2_000), pytest.raises(DiskFull):
        restore_backup(backup, tmp_path / "again")
    assert names_in(tmp_path) == ["data", "data-backups"]
    assert restore_backup(backup, tmp_path / "again").figures.messages == 52


async def test_restore_refuses_an_existing_target(tmp_path: Path) -> None:
    """A non-empty directory, a file and an invalid backup are refused; an empty directory is accepted."""
    backup = await saved(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for there in ("full", "full/x", "data"):
        with pytest.raises(Conflict):
            restore_backup(backup, tmp_path / there)
    with pytest.raises(NotFound, match=r"not a backup: backup\.json is missing"):
        restore_backup(tmp_path / "data", tmp_path / "again")
    other = SigningKey.load_or_make(tmp_path / "full")
    assert other.public.id != PublicKey.load(backup / "audit_key.pub").id
    with pytest.raises(Invalid, match="not the key that signed"):
        restore_backup(backup, tmp_path / "again", audit_key=tmp_path / "full" / "audit_key")
    (tmp_path / "empty").mkdir()
    restore_backup(backup, tmp_path / "empty")
    assert examine(tmp_path / "empty").clean


async def test_tampering_with_a_backup_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers a flipped bit in any file, missing and extra files, a changed manifest and another server's signature."""
    backup = await saved(tmp_path)
    key = PublicKey.load(tmp_path / "data" / "audit_key.pub")
    manifest = verify_backup(backup, key)
    for name in manifest.files:
        copy = tmp_path / "copy"
        shutil.copytree(backup, copy)
        raw = bytearray((copy / name).read_bytes())
        if raw:
            raw[len(raw) // 2] ^= 1
            (copy / name).write_bytes(raw)
        else:
            (copy / name).unlink()
        with pytest.raises(StoreDamaged, match=name.rpartition("/")[2]):
            restore_backup(copy, tmp_path / "again")
        assert not (tmp_path / "again").exists()
        shutil.rmtree(copy)
    (backup / "db" / "more.sst").touch()
    assert run(["backup", "verify", "--from", str(backup)]) == 6
    assert "more.sst" in capsys.readouterr().err
    (backup / "db" / "more.sst").unlink()
    text = json.loads((backup / MANIFEST).read_text())
    for field, value in (("last_seq", 1), ("name", "other")):
        (backup / MANIFEST).write_text(json.dumps({**text, field: value}))
        with pytest.raises(StoreDamaged, match="is not signed by"):
            verify_backup(backup, key)
    (backup / MANIFEST).write_text(json.dumps({**text, "files": {"../../x": {"size": 1, "sha256": ""}}}))
    with pytest.raises(StoreDamaged, match="outside"):
        read_backup_manifest(backup)
    (backup / MANIFEST).write_text("{")
    with pytest.raises(StoreDamaged, match="not a backup manifest"):
        read_backup_manifest(backup)


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tenantq.backup import backups
from tests.contract.backup.test_backup import CALL, fill, server_of, verbs

copied, at, copy_file = [], int(sys.argv[2]), backups.copy_file
def copy_or_die(*files):
    copied.append(files)
    if len(copied) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return copy_file(*files)
backups.copy_file = copy_or_die

async def main():
    async with server_of(Path(sys.argv[1])) as server:
        await fill(verbs(server.shard))
        print("filled", flush=True)
        await server.service.backups.create(CALL, "one")
asyncio.run(main())
"""


@pytest.mark.parametrize("at", [1, 9])
def test_kill_during_a_backup_leaves_no_backup_and_an_intact_store(tmp_path: Path, at: int) -> None:
    """The next start and the next backup remove the leftovers."""
    data, backups = tmp_path / "data", tmp_path / "data-backups"
    command = [sys.executable, "-c", _KILLED, str(data), str(at)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"filled\n"), done.stderr
    assert (data / STAGE).exists()
    assert [path.name for path in backups.iterdir()] == [".one.partial"]

    async def another() -> bool:
        async with server_of(data) as server:
            is_left = (data / STAGE).exists()
            assert await server.service.backups.list(CALL) == []
            await server.service.backups.create(CALL, "two")
        return is_left

    assert not asyncio.run(another())
    assert [path.name for path in backups.iterdir()] == ["two"]
    assert restore_backup(backups / "two", tmp_path / "again").figures.messages == 52
    assert examine(data).clean
