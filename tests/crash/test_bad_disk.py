"""Disks that are full, fail to sync, or belong to another program: nothing is confirmed that did not happen."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tenantq.engine.settings import ShardSettings
from tenantq.errors import DiskFull, StoreDamaged, StoreFailed, StoreFormat, StoreLocked
from tenantq.store.rocks import RocksStore
from tests.crash import chaos, events
from tests.crash.damage import fingerprint
from tests.crash.oracle import Oracle
from tests.crash.recount import JournalTally, recount
from tests.crash.worker import STOPPED
from tests.shards import Q, T, message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import OpenShard


def judge(directory: Path, log: Path) -> Oracle:
    """Compare a stopped worker's replies with the reopened store."""
    oracle = Oracle()
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    oracle.read(lines)
    oracle.compare(recount(directory, JournalTally()))
    assert not oracle.wrongs, oracle.wrongs[:5]
    return oracle


def error_output(log: Path) -> str:
    """Return the end of what the worker wrote to stderr."""
    return log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")[-2_000:]


# ---- full ----


@pytest.mark.parametrize("body_bytes", [300, 30_000])
def test_writes_beyond_a_file_size_limit_stop_the_shard(tmp_path: Path, body_bytes: int) -> None:
    """Writes really fail. The shard stops with a typed error, and a reopen finds all that was confirmed."""
    directory, log = tmp_path / "data", tmp_path / "events"
    options = ["--seed", "7", "--consumers", "1", "--body-bytes", str(body_bytes), "--file-bytes-max", "400000"]
    status = chaos.run_worker(directory, log, options)
    assert status == STOPPED, (status, error_output(log))
    oracle = judge(directory, log)
    assert oracle.failure is not None
    assert oracle.failure[0] == "DiskFull", oracle.failure
    assert oracle.figures["adds confirmed"] > 5
    again = chaos.run_worker(directory, log, ["--seed", "8", "--seconds", "0.3"])  # now there is space again
    assert again == 0, error_output(log)


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path]:
    """Mount an in-memory file system of ``mib`` MiB; requires the right to mount."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip(
            "mounting a small file system needs root and the right to mount; the file size limit covers the rest"
        )
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_full_file_system_stops_the_shard_and_loses_nothing(tmp_path: Path) -> None:
    """The same with ENOSPC from a full file system. With free space, everything is there and work continues."""
    log = tmp_path / "events"
    with small_disk(tmp_path / "disk", 6) as disk:
        options = ["--seed", "9", "--consumers", "1", "--body-bytes", "20000"]
        status = chaos.run_worker(disk / "data", log, options)
        assert status == STOPPED, (status, error_output(log))
        shutil.copytree(disk / "data", tmp_path / "roomy")
    oracle = judge(tmp_path / "roomy", log)
    assert oracle.failure is not None
    assert oracle.failure[0] == "DiskFull", oracle.failure
    assert oracle.figures["adds confirmed"] > 5
    again = chaos.run_worker(tmp_path / "roomy", log, ["--seed", "10", "--seconds", "0.3"])
    assert again == 0, error_output(log)


async def test_adds_are_refused_below_the_disk_reserve(open_shard: OpenShard) -> None:
    """Messages that are stored can still be consumed."""
    shard = await open_shard()
    await shard.add(T, Q, [message("one"), message("two")])
    await shard.close()
    tight = await open_shard(settings=ShardSettings(disk_reserve_bytes=1 << 50))
    before = tight.reads.stats(T, Q), tight.journal.span
    with pytest.raises(DiskFull):
        await tight.add(T, Q, [message("three")])
    assert (tight.reads.stats(T, Q), tight.journal.span) == before
    got = await tight.poll(T, Q, max=2)
    assert [one.body for one in got] == [b"one", b"two"]
    assert all(outcome.ok for outcome in await tight.ack(T, Q, [one.receipt for one in got]))


# ---- fsync fails ----


def _can_trace() -> bool:
    command = ["strace", "-f", "-e", "trace=none", "-e", "inject=fdatasync:error=EIO:when=9999+", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.parametrize("good", [3, 25])
def test_fsync_error_stops_the_process(tmp_path: Path, good: int) -> None:
    """After EIO from the system's fdatasync, no reply says "added" or "acked"."""
    if not _can_trace():
        pytest.skip("needs strace and the right to trace; the next test fails the sync inside the process instead")
    directory, log, trace = tmp_path / "data", tmp_path / "events", tmp_path / "trace"
    first = chaos.run_worker(directory, log, ["--seed", "1", "--seconds", "0.2"])
    assert first == 0, error_output(log)
    tally, oracle = JournalTally(), Oracle()
    oracle.read(log.read_text(encoding="utf-8").splitlines(keepends=True))
    oracle.compare(recount(directory, tally))
    inject = f"inject=fdatasync,fsync:error=EIO:when={good}+"
    command = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=fdatasync,fsync", "-e", inject]
    command += [sys.executable, "-m", "tests.crash.worker", str(directory), "--seed", "2", "--name", "second"]
    with log.open("wb") as out:
        ran = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=chaos.PROJECT, timeout=60, check=False)
    assert "EIO" in trace.read_text(encoding="utf-8")
    assert ran.returncode not in {0, -9}, ran.stderr[-1_000:]
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    oracle.read(lines)
    oracle.compare(recount(directory, tally))
    assert not oracle.wrongs, oracle.wrongs[:5]
    if any(line.startswith(events.OPENED) for line in lines):
        assert oracle.failure is not None
        assert ran.returncode == STOPPED


async def test_failed_sync_confirms_nothing(
    open_shard: OpenShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later call raises StoreFailed, and a reopened store has what was confirmed before."""
    shard = await open_shard("data")
    await shard.add(T, Q, [message("confirmed")])

    def fail(_: RocksStore) -> None:
        raise StoreFailed("IO error: fdatasync: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(RocksStore, "sync", fail)
        with pytest.raises(StoreFailed):
            await shard.add(T, Q, [message("not confirmed")])
    for call in (shard.add(T, Q, [message("later")]), shard.poll(T, Q), shard.reads.peek(T, Q)):
        with pytest.raises(StoreFailed):
            await call
    assert shard.loop.stopped.is_set()
    await shard.close()
    again = await open_shard("data")
    bodies = [one.body for one in await again.poll(T, Q, max=10)]
    assert bodies[:1] == [b"confirmed"]
    assert set(bodies) <= {b"confirmed", b"not confirmed"}


# ---- directories of others ----


def test_second_process_is_refused(tmp_path: Path) -> None:
    """The error names the directory and the process that holds it, and nothing changes."""
    directory = tmp_path / "data"
    code = (
        "import sys\nfrom pathlib import Path\nfrom tenantq.store.rocks import RocksStore\n"
        "store = RocksStore(Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"open\n"
        before = fingerprint(directory)
        with pytest.raises(StoreLocked) as refused:
            RocksStore(directory)
        assert str(directory) in str(refused.value)
        assert str(holder.pid) in str(refused.value)
        assert fingerprint(directory) == before
        holder.stdin.close()
    RocksStore(directory).close()


def test_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    """It is not turned into a store."""
    (tmp_path / "thesis.txt").write_text("do not touch", encoding="ascii")
    with pytest.raises(StoreFormat, match=r"thesis\.txt"):
        RocksStore(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "lock") == ["thesis.txt"]


async def test_newer_store_format_is_refused(open_shard: OpenShard, tmp_path: Path) -> None:
    """The error names the unknown format, and no file changes."""
    await (await open_shard("data")).close()
    (tmp_path / "data" / "format").write_text('{"format": 999, "product": "tenantq"}', encoding="ascii")
    before = fingerprint(tmp_path / "data")
    with pytest.raises(StoreFormat, match="999"):
        await open_shard("data")
    assert fingerprint(tmp_path / "data") == before


@pytest.mark.parametrize("gone", ["db", "db/CURRENT", "db/*.sst", "db/MANIFEST-*"])
async def test_missing_database_is_refused(open_shard: OpenShard, tmp_path: Path, gone: str) -> None:
    """The sync marker records that there was data, so no empty store replaces it."""
    shard = await open_shard("data")
    await shard.add(T, Q, [message("precious")])
    shard.state.store.files.flush()
    await shard.close()
    for path in list((tmp_path / "data").glob(gone)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    before = fingerprint(tmp_path / "data")
    with pytest.raises(StoreDamaged):
        await open_shard("data")
    assert fingerprint(tmp_path / "data") == before
