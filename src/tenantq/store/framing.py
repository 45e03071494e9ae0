"""A look at RocksDB's MANIFEST and logs before they are opened.

RocksDB reads a file whose record type was changed by a flipped bit in an endless loop, and takes a MANIFEST record whose
length was changed for one that a crash cut off: the edit is ignored and the table files it named are deleted. So the framing
is walked here first: blocks of 32 KiB, in them records of checksum(4), length(2), type(1), payload; types 1 full,
2 first, 3 middle, 4 last. Checksums are RocksDB's own business.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tenantq.errors import StoreDamaged

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.store.heart import Beat

_BLOCK = 32_768
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FOLLOWS = {None: (_FULL, _FIRST), _FIRST: (_MIDDLE, _LAST), _MIDDLE: (_MIDDLE, _LAST)}


def current_manifest(directory: Path) -> Path | None:
    """Return the MANIFEST that is in force, or None where there is no database yet."""
    try:
        name = (directory / "CURRENT").read_bytes().decode("ascii").removesuffix("\n")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreDamaged(f"store {directory}: CURRENT is unreadable") from error
    if not name.startswith("MANIFEST-") or not name[9:].isdecimal():
        raise StoreDamaged(f"store {directory}: CURRENT does not name a MANIFEST")
    return directory / name


def check_framing(directory: Path, last: Beat | None) -> None:
    """Raise StoreDamaged if MANIFEST or a log is not framed as RocksDB writes it.

    A record cut off at the end is what a crash leaves. In MANIFEST that is allowed only behind what the heart has seen.
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
                f" {last.manifest_bytes} was in force; restore from a backup, nothing was altered by this refusal"
            )
    _walk(manifest, known)
    for log in sorted(directory.glob("*.log")):
        _walk(log, 0)


def _walk(path: Path, known: int) -> None:
    """Go from record to record; those that begin before ``known`` must be whole."""
    data = path.read_bytes()
    unfinished: int | None = None
    start = 0
    while start < len(data):
        left_in_block = _BLOCK - start % _BLOCK
        if left_in_block < _HEAD.size:
            start += left_in_block
            continue
        whole = len(data) - start >= _HEAD.size
        _, length, kind = _HEAD.unpack_from(data, start) if whole else (0, 0, 0)
        end = start + _HEAD.size + length
        if kind == 0 and length == 0 and start >= known:
            return  # room that was reserved and not written
        if (whole and kind not in _FOLLOWS[unfinished]) or end > start + left_in_block:
            raise _damaged(path, start)
        if end > len(data):
            if start < known:
                raise _damaged(path, start)
            return  # torn: a write that was under way when the process stopped
        unfinished = None if kind in (_FULL, _LAST) else kind
        start = end


def _damaged(path: Path, start: int) -> StoreDamaged:
    return StoreDamaged(
        f"store {path.parent}: {path.name} is damaged at byte {start}; restore from a backup, nothing was altered by"
        " this refusal"
    )
