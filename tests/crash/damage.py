"""Directories as a kill leaves them, ways to damage them, and what opening them then tells."""

from __future__ import annotations

import hashlib
import random
import shutil
from typing import TYPE_CHECKING

import msgspec

from tenantq.clock import ManualClock
from tenantq.engine.shard import Shard
from tenantq.errors import StoreDamaged, StoreFailed, StoreFormat
from tenantq.message import NewMessage, Result
from tests.crash.recount import dump

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Contents = dict[str, dict[bytes, bytes]]

_OWN_LOGS = ("lock", "LOG", "LOCK")
"""Files that opening may write although it refuses: the lock's holder, and RocksDB's own diary."""


class Verdict(msgspec.Struct, frozen=True):
    """What opening a directory and reading everything in it came to."""

    outcome: str  # "equal", "different", "refused at open", "refused at read"
    text: str = ""

    @property
    def honest(self) -> bool:
        """Whether nothing was silently missing or changed."""
        return self.outcome != "different"


class Image:
    """A store's directory, what is in it, and the time on its clock."""

    def __init__(self, path: Path, contents: Contents, monotonic_ms: int) -> None:
        self.path = path
        self.contents = contents
        self.monotonic_ms = monotonic_ms

    def copy_to(self, target: Path) -> Path:
        """Make ``target`` the same directory again."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.path, target)
        return target

    def clock(self) -> ManualClock:
        """Return a clock that goes on where the image's stopped."""
        return ManualClock(wall_ms=1_700_000_000_000 + self.monotonic_ms - 1_000_000, monotonic_ms=self.monotonic_ms)

    def files(self, pattern: str) -> list[Path]:
        """Return the paths, inside the image, of the files of one kind, the newest last."""
        return sorted(path.relative_to(self.path) for path in self.path.glob(pattern))


async def make_image(scratch: Path, *, clean: bool = False) -> Image:
    """Return a store with table files, a log behind them and everything a message can have.

    It is as a SIGKILL leaves it, or with ``clean`` as closing does.
    """
    clock, rng = ManualClock(), random.Random(11)
    live, image = scratch / "live", scratch / "image"
    for turn in range(3):
        shard = Shard(live, clock=clock, randomness=rng)
        await shard.open()
        await _fill(shard, turn)
        if turn < 2:
            shard._store.flush()
            await shard.close()
    await _fill(shard, 3)  # behind the last flush, so only in the log
    contents = dump(shard._store)
    if clean:
        await shard.close()
    shutil.copytree(live, image)
    if not clean:
        await shard.close()
    return Image(image, contents, clock.monotonic_ms())


async def _fill(shard: Shard, turn: int) -> None:
    """Add and consume in all ways; every time is far enough ahead that reopening finds nothing to do."""
    await shard.put_tenant("acme")
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


async def examine(path: Path, image: Image) -> Verdict:
    """Open a copy of ``image`` that may be damaged, read everything, and say what came of it.

    Any error that is not one of the store's own names goes through, and so fails the test.
    """
    shard = Shard(path, clock=image.clock(), randomness=random.Random(12))
    try:
        await shard.open()
    except StoreFailed as error:
        assert isinstance(error, StoreDamaged | StoreFormat), f"a refusal without a proper name: {error!r}"
        return Verdict("refused at open", str(error))
    try:
        contents = dump(shard._store)
        difference = _difference(image.contents, contents) or _unreachable(shard, image.contents)
    except StoreFailed as error:
        assert isinstance(error, StoreDamaged), f"an unreadable row without a proper name: {error!r}"
        return Verdict("refused at read", str(error))
    finally:
        await shard.close()
    return Verdict("different", difference) if difference else Verdict("equal")


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
    """Look every row up by its key, too: point reads go through filters that scans never touch."""
    store = shard._store
    for family, rows in expected.items():
        keys = list(rows)
        if keys and store.get_many(store.family(family), keys) != [rows[key] for key in keys]:
            return f"{family}: a row that a scan finds is not found by its key"
    return ""


def fingerprint(path: Path) -> dict[str, str]:
    """Return the hash of every file that a refusal must leave alone."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.startswith(_OWN_LOGS)
    }


def flip(path: Path, bit: int) -> None:
    """Turn over one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def sample_bits(size: int, count: int, rng: random.Random) -> Iterator[int]:
    """Choose bits all over a file of ``size`` bytes: the first and last bytes and ``count`` more, spread evenly."""
    bits = {rng.randrange(8), size * 8 - 1 - rng.randrange(8)}
    stride = max(1, size * 8 // count)
    bits |= {min(size * 8 - 1, start + rng.randrange(stride)) for start in range(0, size * 8, stride)}
    yield from sorted(bits)
