"""Power cuts: whatever was not synced is lost or torn, and everything that was confirmed is intact.

The worker reports the size of every log file before and after each sync. After the kill the logs are cut back to what
a completed sync had covered, which is the most that a power cut can lose. The sync marker stays as it is: it is written only
after syncs, so it is never ahead of what survives.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import StoreDamaged
from tenantq.store.framing import walk
from tenantq.store.sync_marker import SyncMarkerFile, read_beat
from tests.crash import chaos, events
from tests.crash.oracle import Oracle
from tests.crash.recount import JournalTally, Recount, recount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEED = 59


class Crash(msgspec.Struct):
    """A dead worker, and what its last completed sync covered."""

    directory: Path
    lines: list[str]
    covered: dict[str, int]  # log file -> bytes
    synced_line: int  # events before this one were written before that sync began

    def cut_power(self, tail: Callable[[bytes], bytes]) -> int:
        """Replace the unsynced bytes with ``tail``; return how many were unsynced."""
        unsynced = 0
        for log in (self.directory / "db").glob("*.log"):
            raw = log.read_bytes()
            end = walk(raw)[0]
            keep = min(end, self.covered.get(log.name, 0))
            unsynced += end - keep
            left = raw[:keep] + tail(raw[keep:end])
            log.write_bytes(left + bytes(len(raw) - len(left)))  # the preallocated space exists already
        return unsynced


def crash(scratch: Path, seed: int, point: str, after: int, options: Sequence[str] = ()) -> Crash:
    """Run a worker until it kills itself."""
    directory, log = scratch / f"data-{seed}", scratch / f"events-{seed}"
    wanted = ["--seed", str(seed), "--crash-point", point, "--crash-after", str(after), "--sizes", *options]
    status = chaos.run_worker(directory, log, wanted)
    assert status == -signal.SIGKILL, log.with_suffix(".err").read_text(encoding="utf-8")
    lines = log.read_text(encoding="utf-8").splitlines()
    covered: dict[str, int] = {}
    asked: dict[str, int] = {}
    asked_at = synced_line = 0
    for number, line in enumerate(lines):
        kind, *fields = line.split()
        if kind == events.SIZES and fields[0] == "before":
            asked = {name: int(size) for name, _, size in (field.partition(":") for field in fields[1:])}
            asked_at = number
        elif kind == events.SIZES:
            covered, synced_line = asked, asked_at
    return Crash(directory, lines, covered, synced_line)


def nothing(_: bytes) -> bytes:
    """Lose all unsynced bytes."""
    return b""


def torn(tail: bytes) -> bytes:
    """Keep the part that reached the disk."""
    return tail[: random.Random(SEED).randrange(len(tail) + 1)]


def zeros(tail: bytes) -> bytes:
    """Leave zeros: the file had grown, but its pages were never written."""
    return bytes(len(tail))


def with_a_hole(tail: bytes) -> bytes:
    """Leave a hole: later pages reached the disk before earlier ones."""
    third = len(tail) // 3
    return tail[:third] + bytes(third) + tail[2 * third :]


@pytest.mark.parametrize("tail", [nothing, torn, zeros, with_a_hole])
@pytest.mark.parametrize(("point", "after"), [("before_sync", 60), ("after_write", 90)])
def test_58_power_cut_loses_nothing_confirmed(
    tmp_path: Path, point: str, after: int, tail: Callable[[bytes], bytes]
) -> None:
    """With durability "fsync", every reply is sent after the sync that covers it."""
    for seed in range(SEED + after, SEED + after + 8):
        died = crash(tmp_path, seed, point, after)
        if died.cut_power(tail):
            break  # otherwise the last rounds had nothing to write
    else:
        pytest.fail("no power cut took anything, so this shows nothing")
    oracle = Oracle()
    oracle.read(line + "\n" for line in died.lines)
    oracle.compare(recount(died.directory, JournalTally()))
    assert not oracle.wrongs, f"seed {seed}: {oracle.wrongs[:5]}"
    assert oracle.figures["adds confirmed"] > 20


def test_58_power_cut_during_flushes_loses_nothing_confirmed(tmp_path: Path) -> None:
    """Memory is so small that the store flushes all the time and log files come and go."""
    for seed in (1, 2, 3):
        died = crash(tmp_path, seed, "before_reply", 40 + seed, ["--memory-mib", "8"])
        died.cut_power(nothing)
        oracle = Oracle()
        oracle.read(line + "\n" for line in died.lines)
        oracle.compare(recount(died.directory, JournalTally()))
        assert not oracle.wrongs, f"seed {seed}: {oracle.wrongs[:5]}"


def _tokens(lines: Sequence[str], kind: str, *, verb: str = "", outcome: str = "") -> set[str]:
    """Return the tokens of events of one kind, optionally with a given verb and outcome."""
    found = set()
    for line in lines:
        if line.startswith(kind + " "):
            fields = line.split()
            if verb and verb != fields[2]:
                continue
            if outcome and outcome not in fields:
                continue
            found.add(fields[3] if verb else fields[2])
    return found


def _stored(found: Recount) -> set[str]:
    tokens = {events.token_of(message.body) for message in found.messages}
    assert None not in tokens, "a torn message is stored"
    return {token for token in tokens if token is not None}


@pytest.mark.parametrize("tail", [nothing, torn])
def test_59_relaxed_durability_loses_only_what_followed_the_last_sync(
    tmp_path: Path, tail: Callable[[bytes], bytes]
) -> None:
    """What was confirmed before that sync began is kept; later rounds are kept or lost as a whole."""
    lost = 0
    for seed in (11, 12, 13, 14):
        options = ["--durability", "os", "--sync-every-ms", "60"]
        died = crash(tmp_path, seed, "after_write", 60 + seed * 3, options)
        died.cut_power(tail)
        beat = read_beat(died.directory / "heart")
        found = recount(died.directory, JournalTally())
        assert beat is None or beat.seq <= found.seq, "the sync marker is ahead of what survived"
        assert not found.drift, f"seed {seed}: {found.drift[:5]}"
        early, stored = died.lines[: died.synced_line], _stored(found)
        ended = _tokens(died.lines, events.SETTLE, verb="ack") | _tokens(died.lines, events.REMOVE)
        mortal = {line.split()[2] for line in died.lines if line[0] == events.ADD and line.split()[7] != "0"}
        missing = _tokens(early, events.ADDED) - stored - ended - mortal
        assert not missing, f"seed {seed}: confirmed before the last sync and gone: {sorted(missing)[:5]}"
        back = stored & (
            _tokens(early, events.SETTLED, verb="ack", outcome="ok") | _tokens(early, events.REMOVED, outcome="ok")
        )
        assert not back, f"seed {seed}: ended before the last sync and back: {sorted(back)[:5]}"
        assert stored <= _tokens(died.lines, events.ADD), f"seed {seed}: nobody added these"
        lost += len(_tokens(died.lines, events.ADDED) - stored - ended - mortal)
    if tail is nothing:
        assert lost > 0, "nothing at all was lost, so this shows nothing"


def test_59_kill_without_a_power_cut_loses_nothing_with_relaxed_durability(tmp_path: Path) -> None:
    """The operating system keeps what a killed process has written."""
    for seed, point in ((21, "after_write"), (22, "before_sync"), (23, "after_sync")):
        after = 60 if point == "after_write" else 4
        died = crash(tmp_path, seed, point, after, ["--durability", "os", "--sync-every-ms", "30"])
        oracle = Oracle()
        oracle.read(line + "\n" for line in died.lines)
        oracle.compare(recount(died.directory, JournalTally()))
        assert not oracle.wrongs, f"seed {seed}: {oracle.wrongs[:5]}"


def test_damaged_heart_is_refused_and_an_old_or_missing_one_accepted(tmp_path: Path) -> None:
    """A power cut may leave an older, valid sync marker. Zeros or half a file are damage; deleting it is the way out."""
    died = crash(tmp_path, 31, "before_reply", 40)
    marker = died.directory / "heart"
    raw = marker.read_bytes()
    half = len(raw) // 2
    for damaged in (raw[:half] + bytes(half), bytes(half) + raw[half:], bytes(len(raw)), raw[:half], b""):
        marker.write_bytes(damaged)
        with pytest.raises(StoreDamaged, match="heart"):
            recount(died.directory, JournalTally())
        assert marker.read_bytes() == damaged
    SyncMarkerFile(tmp_path / "older").close()
    for survived in (raw, (tmp_path / "older").read_bytes(), None):
        if survived is None:
            marker.unlink()
        else:
            marker.write_bytes(survived)
        oracle = Oracle()
        oracle.read(line + "\n" for line in died.lines)
        oracle.compare(recount(died.directory, JournalTally()))
        assert not oracle.wrongs, oracle.wrongs[:5]


def test_58_new_store_directory_is_synced_before_the_first_confirmation(tmp_path: Path) -> None:
    """The format file, the data directory and its parent entry are synced, not only what RocksDB syncs."""
    directory, trace = tmp_path / "data", tmp_path / "trace"
    command = ["strace", "-f", "-y", "-qq", "-e", "trace=fsync,fdatasync,rename", "-o", str(trace)]
    command += [sys.executable, "-m", "tests.crash.worker", str(directory), "--seed", "1", "--seconds", "0.05"]
    try:
        ran = subprocess.run(command, capture_output=True, cwd=chaos.PROJECT, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("needs strace, to see which files are synced")
    if not trace.exists() or b"ptrace" in ran.stderr:
        pytest.skip("needs the right to trace processes")
    assert ran.returncode == 0, ran.stderr[-1_000:]
    calls = trace.read_text(encoding="utf-8").splitlines()
    first_log = next(number for number, call in enumerate(calls) if ".log>" in call)  # covers the first confirmation
    synced = {call.split("<", 1)[1].split(">", 1)[0] for call in calls[:first_log] if "sync(" in call and "<" in call}
    assert str(tmp_path) in synced
    assert str(directory) in synced
    assert {str(directory / "format"), str(directory / ".format.new")} & synced
