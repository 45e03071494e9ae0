"""Store directories as a kill leaves them, ways to damage them, and the outcome of opening them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import select
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenantq.domain.message import NewMessage, Result
from tenantq.errors import StoreDamaged, StoreFailed, StoreFormat
from tenantq.runtime.clock import ManualClock
from tenantq.store.framing import walk
from tenantq.store.keys import FAMILIES
from tests.administration import put_tenant
from tests.crash.recount import dump
from tests.shards import freeze
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Contents = dict[str, dict[bytes, bytes]]

PROJECT = Path(__file__).resolve().parents[2]
_HANG_SECONDS = 8
_HANDS = min(4, os.cpu_count() or 1)  # processes that try damages in parallel ...
_WORTH_A_HAND = 20  # ... each with at least this many, to be worth starting
_BLOCK_BYTES = 32_768
_HEADER_BYTES = 7  # checksum 4, length 2, type 1
_ROOM_BYTES = 8_192  # this much of the preallocated zeros in a log is enough to see that damage there is harmless
_OWN_LOGS = ("lock", "LOG", "LOCK")
"""Files that a refused open may write: the holder of the lock, and RocksDB's own info log."""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of opening a directory and reading everything in it."""

    outcome: str
    """equal, refused at open, refused at read; or a failure: different, bare error, hang, died"""
    text: str = ""
    altered: list[str] = []  # files changed although the open was refused

    @property
    def honest(self) -> bool:
        """Whether nothing was silently missing or changed, and a refusal raised a typed error."""
        return self.outcome in {"equal", "refused at open", "refused at read"}


class Damage(msgspec.Struct, frozen=True):
    """One change to one file."""

    file: str  # inside the store's directory
    bit: int = -1  # the bit to flip
    keep: int = -1  # or the number of bytes to keep
    blank: tuple[int, int] | None = None  # or the range of bytes to zero: from, to

    def apply(self, directory: Path) -> None:
        """Damage the file."""
        path = directory / self.file
        raw = bytearray(path.read_bytes())
        if self.keep >= 0:
            del raw[self.keep :]
        elif self.blank is not None:
            start, end = self.blank
            raw[start:end] = bytes(end - start)
        else:
            raw[self.bit // 8] ^= 1 << self.bit % 8
        path.write_bytes(raw)


class Image:
    """A store's directory, its contents, and the time on its clock."""

    def __init__(self, path: Path, contents: Contents, monotonic_ms: int) -> None:
        self.path = path
        self.contents = contents
        self.monotonic_ms = monotonic_ms

    def copy_to(self, target: Path) -> Path:
        """Replace ``target`` with a fresh copy of the image."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path, target, ignore=shutil.ignore_patterns("LOG*"))
        return target

    def clock(self) -> ManualClock:
        """Return a clock that continues where the image's clock stopped."""
        return ManualClock(wall_ms=1_700_000_000_000 + self.monotonic_ms - 1_000_000, monotonic_ms=self.monotonic_ms)

    def files(self, pattern: str) -> list[Path]:
        """Return the relative paths of the files of one kind, the newest last."""
        return sorted(path.relative_to(self.path) for path in self.path.glob(pattern))


async def make_image(
    scratch: Path,
    *,
    clean: bool = False,
    unconfirmed: bool = False,
    flush_last: str | None = None,
    last_body: bytes = b"last",
) -> Image:
    """Return a store with table files, a log after them, and every kind of message state.

    It is as a SIGKILL leaves it, or with ``clean`` as a close does. With ``unconfirmed`` the log ends with a
    round that was never confirmed. With ``flush_last`` the log is almost empty, and that family's table file is newest.
    The newest four records are those of an add of ``last_body``, a poll, an ack and a nack.
    """
    clock, rng = ManualClock(), random.Random(11)
    live, image = scratch / "live", scratch / "image"
    for turn in range(3):
        shard = Shard(live, clock=clock, randomness=rng)
        await shard.open()
        await _fill(shard, turn)
        if turn < 2:
            shard.state.store.files.flush()
            await shard.close()
    await _fill(shard, 3)  # after the last flush, so only in the log
    await _end(shard, last_body)
    if flush_last is not None:
        for name in sorted(FAMILIES, key=lambda name: (name == flush_last, name != "jn")):
            shard.state.store.family(name).view.flush()
        await put_tenant(shard, "acme")  # a round, after which the sync marker lists the new table files
    contents = dump(shard.state.store)
    marker = (live / "heart").read_bytes()
    if unconfirmed:
        await shard.add("default", "work", [NewMessage(body=b"never confirmed" * 20)])
    if clean:
        await shard.close()
    freeze(live, image)
    for log in (image / "db").glob("*.log"):
        os.truncate(log, min(log.stat().st_size, walk(log.read_bytes())[0] + _ROOM_BYTES))
    if unconfirmed:
        (image / "heart").write_bytes(marker)
    if not clean:
        await shard.close()
    return Image(image, contents, clock.monotonic_ms())


async def _fill(shard: Shard, turn: int) -> None:
    """Add and consume in all ways. All deadlines are far ahead, so that reopening finds nothing to do."""
    await put_tenant(shard, "acme")
    for tenant in ("default", "acme"):
        for i in range(12):
            name = f"{turn}-{tenant}-{i}"
            message = NewMessage(
                body=f"body {name}".encode() * 8,
                priority=i % 3 * 4,
                delay_ms=86_400_000 if i % 5 == 4 else 0,
                ttl_ms=86_400_000 if i % 4 == 3 else None,
                key=f"key {name}" if i % 2 else None,
                group=f"group {i % 3}" if i > 8 else None,
                attributes={"name": name},
            )
            await shard.add(tenant, "work", [message])
        got = await shard.poll(tenant, "work", max=6, lease_ms=3_600_000)
        receipts = [one.receipt for one in got]
        await shard.ack(tenant, "work", receipts[:2], results=[Result("completed", b"done"), None])
        await shard.nack(tenant, "work", receipts[2:3], delay_ms=86_400_000, reason="later")


async def _end(shard: Shard, body: bytes) -> None:
    """Write one round of each kind in a message's life, one message each. Tests cut at every byte of them."""
    await shard.add("acme", "work", [NewMessage(body=body)])
    acked, nacked = await shard.poll("acme", "work", max=2, lease_ms=3_600_000)
    await shard.ack("acme", "work", [acked.receipt])
    await shard.nack("acme", "work", [nacked.receipt], delay_ms=86_400_000)


async def examine(path: Path, image: Image) -> Verdict:
    """Open a possibly damaged copy of ``image``, read everything, and return the verdict."""
    before = fingerprint(path)
    shard = Shard(path, clock=image.clock(), randomness=random.Random(12))
    try:
        await shard.open()
    except (StoreDamaged, StoreFormat) as error:
        after = fingerprint(path)
        altered = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        return Verdict("refused at open", str(error), altered)
    except Exception as error:  # noqa: BLE001  # whatever it is, it has no name
        return Verdict("bare error", f"at open: {error!r}")
    try:
        contents = dump(shard.state.store)
        difference = _difference(image.contents, contents) or _unreachable(shard, image.contents)
        verdict = Verdict("different", difference) if difference else Verdict("equal")
    except StoreDamaged as error:
        verdict = Verdict("refused at read", str(error))
    except Exception as error:  # noqa: BLE001
        verdict = Verdict("bare error", f"at read: {error!r}")
    try:
        await shard.close()
    except StoreFailed:
        pass
    except Exception as error:  # noqa: BLE001
        verdict = Verdict("bare error", f"at close: {error!r}")
    return verdict


def _difference(expected: Contents, found: Contents) -> str:
    told = []
    for family, rows in expected.items():
        missing = len(rows.keys() - found[family].keys())
        strange = len(found[family].keys() - rows.keys())
        changed = sum(1 for key in rows.keys() & found[family].keys() if rows[key] != found[family][key])
        if missing or strange or changed:
            told.append(f"{family}: {missing} missing, {strange} unexpected, {changed} changed of {len(rows)}")
    return "; ".join(told)


def _unreachable(shard: Shard, expected: Contents) -> str:
    """Also look up every row by its key: point reads use filters that scans never touch."""
    store = shard.state.store
    for family, rows in expected.items():
        keys = list(rows)
        if keys and store.get_many(store.family(family), keys) != [rows[key] for key in keys]:
            return f"{family}: a row that a scan finds is not found by its key"
    return ""


def fingerprint(path: Path) -> dict[str, str]:
    """Return the hash of every file that a refusal must not change, skipping files that disappear meanwhile."""
    hashes: dict[str, str] = {}
    for directory, _, names in os.walk(path):
        for name in names:
            if not name.startswith(_OWN_LOGS):
                with contextlib.suppress(FileNotFoundError), open(f"{directory}/{name}", "rb") as file:  # noqa: PTH123  # in thousands of trials, paths of pathlib cost more than the hashing
                    hashes[f"{directory}/{name}"] = hashlib.sha256(file.read()).hexdigest()
    return hashes


def log_records(raw: bytes) -> list[tuple[int, int]]:
    """Return (start, length) of the records of a RocksDB log file, headers included."""
    found: list[tuple[int, int]] = []
    at = 0
    while at + _HEADER_BYTES <= len(raw):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        if not any(raw[at + 4 : at + 7]):
            break  # preallocated space
        length = _HEADER_BYTES + int.from_bytes(raw[at + 4 : at + 6], "little")
        found.append((at, length))
        at += length
    return found


def sample_bits(size: int, count: int, rng: random.Random) -> Iterator[int]:
    """Choose bits of a file of ``size`` bytes: in the first and last bytes, and ``count`` more, spread evenly."""
    bits = {rng.randrange(8), size * 8 - 1 - rng.randrange(8)}
    stride = max(1, size * 8 // count)
    bits |= {min(size * 8 - 1, start + rng.randrange(stride)) for start in range(0, size * 8, stride)}
    yield from sorted(bits)


# ---- many trials, each in a process that may hang or die ----


class Batch(msgspec.Struct):
    """Trials on copies of one image."""

    image: str
    contents: str  # the file that describes its contents
    monotonic_ms: int
    trials: list[Damage]


def try_all(image: Image, damages: Sequence[Damage], scratch: Path) -> list[tuple[Damage, Verdict]]:
    """Return a verdict on each damage, in order, even if opening hangs."""
    (scratch / "contents").write_bytes(msgspec.msgpack.encode(image.contents))
    hands = max(1, min(_HANDS, len(damages) // _WORTH_A_HAND))
    with ThreadPoolExecutor(hands) as pool:  # each thread only waits for its own process
        told = pool.map(
            lambda hand: _try_some(image, damages[hand::hands], scratch / "contents", scratch / f"hand-{hand}"),
            range(hands),
        )
        verdicts = list(told)
    return [(damage, verdicts[place % hands][place // hands]) for place, damage in enumerate(damages)]


def _try_some(image: Image, damages: Sequence[Damage], contents: Path, scratch: Path) -> list[Verdict]:
    """Try damages in one process, and continue in a new one if it hangs or dies."""
    verdicts: list[Verdict] = []
    scratch.mkdir(exist_ok=True)
    while len(verdicts) < len(damages):
        rest = list(damages[len(verdicts) :])
        batch = Batch(str(image.path), str(contents), image.monotonic_ms, rest)
        (scratch / "batch").write_bytes(msgspec.json.encode(batch))
        command = [sys.executable, "-m", "tests.crash.damage", str(scratch)]
        with (
            (scratch / "errors").open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=PROJECT, bufsize=0) as process,
        ):
            verdicts += _listen(process, len(rest), scratch / "errors")
    return verdicts


def _last_words(errors: Path) -> str:
    return errors.read_text(errors="replace")[-300:]


def _listen(process: subprocess.Popen[bytes], count: int, errors: Path) -> list[Verdict]:
    """Collect verdicts until the process has reported ``count``, hangs or dies."""
    told: list[Verdict] = []
    pipe = process.stdout
    assert pipe is not None
    while len(told) < count:
        readable, _, _ = select.select([pipe], [], [], _HANG_SECONDS)
        line = pipe.readline() if readable else b""
        if line:
            told.append(msgspec.json.decode(line, type=Verdict))
        elif readable:
            told.append(Verdict("died", f"exit status {process.wait()}: {_last_words(errors)}"))
            break
        else:
            process.kill()
            told.append(Verdict("hang", f"no answer in {_HANG_SECONDS} s"))
            break
    return told


def _run_batch(scratch: Path) -> None:
    batch = msgspec.json.decode((scratch / "batch").read_bytes(), type=Batch)
    contents = msgspec.msgpack.decode(Path(batch.contents).read_bytes(), type=Contents)
    asyncio.run(_run_trials(Image(Path(batch.image), contents, batch.monotonic_ms), batch.trials, scratch))


async def _run_trials(image: Image, trials: list[Damage], scratch: Path) -> None:
    fresh = None
    for number, damage in enumerate(trials):
        copy = fresh or image.copy_to(scratch / f"trial-{number}")
        damage.apply(copy)
        verdict = await examine(copy, image)
        print(msgspec.json.encode(verdict).decode(), flush=True)
        if verdict.outcome == "refused at open" and not verdict.altered:
            shutil.copy(image.path / damage.file, copy / damage.file)
            fresh = copy  # an undamaged copy again
        else:
            shutil.rmtree(copy, ignore_errors=True)
            fresh = None


if __name__ == "__main__":
    _run_batch(Path(sys.argv[1]))
