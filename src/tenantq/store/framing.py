"""Checks the framing of RocksDB's MANIFEST and logs before RocksDB opens them.

A flipped bit in a record type sends RocksDB into an endless loop. A MANIFEST record with a changed length looks like one
that a crash cut off: RocksDB ignores the edit and deletes the table files that it named. In a log RocksDB skips zeros and
continues after them.

A file consists of blocks of 32 KiB with records of checksum(4), length(2), type(1) and payload. Types are 1 full, 2 first,
3 middle, 4 last. Checksums are left to RocksDB.
"""

import struct
from pathlib import Path
from typing import Literal

from tenantq.errors import StoreDamaged
from tenantq.store.interface import Beat

_BLOCK = 32_768
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FOLLOWS = {None: (_FULL, _FIRST), _FIRST: (_MIDDLE, _LAST), _MIDDLE: (_MIDDLE, _LAST)}


def current_manifest(directory: Path) -> Path | None:
    """Return the current MANIFEST, or None if there is no database yet."""
    try:
        name = (directory / "CURRENT").read_bytes().decode("ascii").removesuffix("\n")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreDamaged(f"store {directory}: CURRENT is unreadable") from error
    if not name.startswith("MANIFEST-") or not name[9:].isdecimal():
        raise StoreDamaged(f"store {directory}: CURRENT does not name a MANIFEST")
    return directory / name


def check_manifest(directory: Path, last: Beat | None) -> None:
    """Raise StoreDamaged if MANIFEST is not framed as RocksDB writes it.

    A record cut off at the end is what a crash leaves. That is allowed only behind what the sync marker has recorded.
    """
    manifest = current_manifest(directory)
    if manifest is None:
        return
    try:
        size = manifest.stat().st_size
    except OSError as error:
        raise StoreDamaged(f"store {directory}: {manifest.name} is missing") from error
    number, known = int(manifest.name[9:]), 0
    if last is not None and last.manifest_number:
        known = last.manifest_bytes if number == last.manifest_number else 0
        if number < last.manifest_number or size < known:
            raise StoreDamaged(
                f"store {directory}: {manifest.name} has {size} bytes, but MANIFEST-{last.manifest_number:06} with"
                f" {last.manifest_bytes} is the current one. Nothing was changed. Restore a backup."
            )
    end, why = walk(manifest.read_bytes())
    if why == "wrong" or end < min(known, size):
        raise StoreDamaged(
            f"store {directory}: {manifest.name} is damaged at byte {end}. Nothing was changed. Restore a backup."
        )


def torn_logs(directory: Path) -> list[tuple[Path, int]]:
    """Return the logs with bytes after the last complete record that are not a record, and where those begin.

    They come from damage, or from an unsynced write before a power failure, whose pages reach the disk in any order.
    """
    torn = []
    for log in sorted(directory.glob("*.log")):
        data = log.read_bytes()
        end, why = walk(data)
        if why == "wrong" or (why == "room" and data.count(0, end) < len(data) - end):
            torn.append((log, end))
    return torn


def walk(data: bytes) -> tuple[int, Literal["end", "room", "cut", "wrong"]]:
    """Walk from record to record; return where the walk stops, and why.

    ``end``: at the end of the file. ``room``: at reserved space. ``cut``: at a record that the end of the file cuts off.
    ``wrong``: at bytes that are not a record.
    """
    unfinished: int | None = None
    start = 0
    while start < len(data):
        left_in_block = _BLOCK - start % _BLOCK
        if left_in_block < _HEAD.size:
            start += left_in_block
            continue
        if len(data) - start < _HEAD.size:
            return start, "cut"
        _, length, kind = _HEAD.unpack_from(data, start)
        if kind == 0 and length == 0:
            return start, "room"
        end = start + _HEAD.size + length
        if kind not in _FOLLOWS[unfinished] or end > start + left_in_block:
            return start, "wrong"
        if end > len(data):
            return start, "cut"
        unfinished = None if kind in (_FULL, _LAST) else kind
        start = end
    return len(data), "end"
