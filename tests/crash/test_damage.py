"""Damaged files: everything is read as it was, or the store raises a typed error. Never silent loss, never a hang.

TENANTQ_FLIPS sets how many bits are tried per kind of file (default 60).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor import store_check
from tests.crash.damage import Damage, Image, Verdict, examine, log_records, make_image, sample_bits, try_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FLIPS = int(os.environ.get("TENANTQ_FLIPS", "60"))
SEED = 20_261
PIECES = (2, 3, 4)
"""The types of the first, middle and last piece of a record that spans several blocks."""
RECYCLED = 2
"""The bit that turns a record's type into one on which RocksDB's reader loops forever."""


def judge(verdicts: Sequence[tuple[Damage, Verdict]], *, unaltered: bool = True) -> Counter[str]:
    """Fail on the first dishonest verdict and on refusals that changed a file; return all verdicts."""
    wrong = [f"{damage} -> {verdict}" for damage, verdict in verdicts if not verdict.honest]
    assert not wrong, f"{len(wrong)} of {len(verdicts)} (seed {SEED}):\n" + "\n".join(wrong[:10])
    if unaltered:
        changed = [f"{damage} -> {verdict}" for damage, verdict in verdicts if verdict.altered]
        assert not changed, f"{len(changed)} refusals changed files:\n" + "\n".join(changed[:5])
    return Counter(verdict.outcome for _, verdict in verdicts)


def flips(image: Image, pattern: str, count: int = FLIPS) -> list[Damage]:
    """Choose about ``count`` bits over all files of one kind."""
    rng = random.Random(SEED)
    files = [file for file in image.files(pattern) if (image.path / file).stat().st_size]
    share = max(1, count // len(files))
    return [
        Damage(str(file), bit=bit)
        for file in files
        for bit in sample_bits((image.path / file).stat().st_size, share, rng)
    ]


def header_flips(image: Image, pattern: str, records: int) -> list[Damage]:
    """Choose bits of the length and type of the last records of the newest file of one kind."""
    file = image.files(pattern)[-1]
    rng = random.Random(SEED)
    chosen: list[Damage] = []
    for start, _ in log_records((image.path / file).read_bytes())[-records:]:
        bits = {32 + rng.randrange(8), 40 + rng.randrange(8), 48 + RECYCLED, 48 + rng.randrange(8)}
        chosen += [Damage(str(file), bit=start * 8 + bit) for bit in sorted(bits)]
    return chosen


def cuts(image: Image, pattern: str, records: int, step: int = 1) -> list[Damage]:
    """Cut the newest file of one kind at every ``step``-th byte of its last records, and at the start of each."""
    file = image.files(pattern)[-1]
    raw = (image.path / file).read_bytes()
    chosen = log_records(raw)[-records:]
    starts, end = [start for start, _ in chosen], sum(chosen[-1])
    return [Damage(str(file), keep=keep) for keep in sorted({*starts, *range(starts[0], end, step)})]


@pytest.fixture
async def killed(tmp_path: Path) -> Image:
    """Create a store as a SIGKILL leaves it: table files, and a log after them."""
    return await make_image(tmp_path)


async def test_undamaged_store_reads_back_unchanged(killed: Image, tmp_path: Path) -> None:
    """Checks the trial itself, also with a cut that removes nothing."""
    whole = Damage("heart", keep=(killed.path / "heart").stat().st_size)
    assert judge(try_all(killed, [whole], tmp_path)) == {"equal": 1}


async def test_58_log_cut_at_any_byte_is_refused_and_left_unchanged(killed: Image, tmp_path: Path) -> None:
    """The cuts cover every byte of the last four records: the rounds of an add, a poll, an ack and a nack.

    All of them were confirmed, so a log that ends before its last byte is refused, and the refusal changes nothing.
    """
    damages = cuts(killed, "db/*.log", 4)
    assert len(damages) > 2_000
    outcomes = judge(try_all(killed, damages, tmp_path))
    assert outcomes == {"refused at open": len(damages)}


async def test_58_log_cut_inside_a_multi_block_record_is_refused(tmp_path: Path) -> None:
    """A large round is stored in pieces, one per block of the log; the cuts lie around and inside each piece."""
    image = await make_image(tmp_path, last_body=random.Random(SEED).randbytes(90_000))
    file = image.files("db/*.log")[-1]
    raw = (image.path / file).read_bytes()
    pieces = [(start, length) for start, length in log_records(raw) if raw[start + 6] in PIECES][-4:]
    assert len(pieces) == 4
    keeps = {start + offset for start, _ in pieces for offset in range(-9, 10)}
    keeps |= {start + length // 2 for start, length in pieces} | {sum(pieces[-1]) - 1}
    damages = [Damage(str(file), keep=keep) for keep in sorted(keeps)]
    assert judge(try_all(image, damages, tmp_path)) == {"refused at open": len(damages)}


async def test_log_cut_after_the_last_confirmed_record_opens(tmp_path: Path) -> None:
    """An unconfirmed tail may be torn anywhere: the store opens with everything that was confirmed."""
    image = await make_image(tmp_path, unconfirmed=True)
    outcomes = judge(try_all(image, cuts(image, "db/*.log", 1, step=29), tmp_path))
    assert set(outcomes) == {"equal"}


async def test_58_zeroed_bytes_of_confirmed_records_are_refused(killed: Image, tmp_path: Path) -> None:
    """Logs are preallocated with zeros, so an early end and a hole before later records must both be found."""
    file = killed.files("db/*.log")[-1]
    raw = (killed.path / file).read_bytes()
    records = log_records(raw)[-4:]
    end = sum(records[-1])
    places = [(at, end) for at in range(records[0][0], end, 31)]
    places += [(start, start + length) for start, length in records]
    places += [(start, start + 7) for start, _ in records]
    damages = [Damage(str(file), blank=place) for place in places]
    assert judge(try_all(killed, damages, tmp_path)) == {"refused at open": len(damages)}


async def test_unconfirmed_pages_may_reach_the_disk_in_any_order(tmp_path: Path) -> None:
    """A power cut can leave zeros next to written pages. The store opens with all that was confirmed."""
    image = await make_image(tmp_path, unconfirmed=True)
    file = image.files("db/*.log")[-1]
    raw = (image.path / file).read_bytes()
    start, length = log_records(raw)[-1]
    places = [(start, start + size) for size in range(1, length, 13)]
    places += [(at, at + size) for size in (1, 5, 64, 200) for at in range(start, start + length - size, 37)]
    damages = [Damage(str(file), blank=(begin, end)) for begin, end in places if any(raw[begin:end])]
    assert len(damages) > 100
    assert set(judge(try_all(image, damages, tmp_path))) == {"equal"}


async def test_records_after_a_hole_are_never_read(tmp_path: Path) -> None:
    """A record at the start of a block does not count as the next one if those before it are missing."""
    image = await make_image(tmp_path, unconfirmed=True)
    log = image.path / image.files("db/*.log")[-1]
    raw = bytearray(log.read_bytes())
    start, length = log_records(bytes(raw))[-1]
    block = 32_768
    behind = (start // block + 1) * block
    record = raw[start : start + length]
    raw[start:] = bytes(behind + block - start)
    raw[behind : behind + length] = record
    log.write_bytes(raw)
    copy = image.copy_to(tmp_path / "copy")
    before = {file: (copy / file).read_bytes() for file in image.files("db/*.log")}
    assert store_check.examine(copy).findings == []  # a read-only open sees the same, and changes nothing
    assert {file: (copy / file).read_bytes() for file in image.files("db/*.log")} == before
    assert (await examine(copy, image)).outcome == "equal"


@pytest.mark.parametrize(
    "pattern",
    ["db/*.log", "db/MANIFEST-*", "db/CURRENT", "db/OPTIONS-*", "db/rocksdict-config.json", "heart", "format"],
)
async def test_58_flipped_bit_is_harmless_or_refused(killed: Image, tmp_path: Path, pattern: str) -> None:
    """All rows are as they were, or StoreDamaged or StoreFormat is raised and nothing changed."""
    judge(try_all(killed, flips(killed, pattern), tmp_path))


async def test_58_flipped_bit_in_a_table_file_is_harmless_or_refused(killed: Image, tmp_path: Path) -> None:
    """Table files are read late, so the error may come with the first read of the damaged block."""
    outcomes = judge(try_all(killed, flips(killed, "db/*.sst", 2 * FLIPS), tmp_path), unaltered=False)
    assert outcomes["refused at open"] + outcomes["refused at read"] > 0


@pytest.mark.parametrize("pattern", ["db/*.log", "db/MANIFEST-*"])
async def test_58_flipped_length_or_type_never_hangs_the_open(killed: Image, tmp_path: Path, pattern: str) -> None:
    """The log's framing is checked before RocksDB reads it: one wrong type bit can make its reader loop forever."""
    judge(try_all(killed, header_flips(killed, pattern, 5), tmp_path))


async def test_58_torn_manifest_loses_no_table_file_silently(tmp_path: Path) -> None:
    """The journal's table file may be older than those of the bodies, so its last record proves nothing about them."""
    image = await make_image(tmp_path, flush_last="m")
    damages = header_flips(image, "db/MANIFEST-*", 4) + cuts(image, "db/MANIFEST-*", 3, step=9)
    judge(try_all(image, damages, tmp_path))


async def test_58_damage_after_a_clean_stop_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    """RocksDB must not delete files that a torn manifest no longer names, even after a clean stop."""
    image = await make_image(tmp_path, clean=True)
    damages = cuts(image, "db/MANIFEST-*", 3, step=9) + flips(image, "db/CURRENT", 8) + flips(image, "heart", 8)
    damages += header_flips(image, "db/MANIFEST-*", 3)
    judge(try_all(image, damages, tmp_path))
