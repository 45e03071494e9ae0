"""The heart file: what was synced last, and when, so that a store that lost acknowledged work is refused.

RocksDB cannot tell a log that was cut off at a record's end from one that simply ends there. The heart is
written after every sync, never before, so it may lag behind the log but never run ahead of it: a store whose
journal ends before the heart's ``seq`` has lost work that was acknowledged.

Two slots are written in turn, each with a checksum; a slot torn by a crash loses to the other. The page reaches
the disk on its own time: a killed process loses nothing of it, a power cut leaves an older but true value.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

from msgspec.structs import astuple

from tenantq.errors import StoreDamaged
from tenantq.store.interface import Beat

_SLOT = struct.Struct(">QQQQQ16s?QQ")  # which one it is, counted from 1, and the fields of a beat
_SLOT_BYTES = 128
_CRC = struct.Struct(">I")


class SyncMarkerFile:
    """The open heart file of a store."""

    def __init__(self, path: Path) -> None:
        self.last: Beat | None
        self._count, self.last = _newest(path) or (0, None)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < 2 * _SLOT_BYTES:
                os.posix_fallocate(descriptor, 0, 2 * _SLOT_BYTES)  # a hole would be a bus error on a full disk
            self._map = mmap.mmap(descriptor, 2 * _SLOT_BYTES)
        finally:
            os.close(descriptor)

    def beat(self, beat: Beat) -> None:
        """Write it over the older of the two slots."""
        self._count += 1
        slot = _SLOT.pack(self._count, *astuple(beat))
        start = (self._count & 1) * _SLOT_BYTES
        self._map[start : start + _SLOT.size + 4] = slot + _CRC.pack(zlib.crc32(slot))
        if beat.clean:
            self._map.flush()

    def close(self) -> None:
        """Give the file back."""
        self._map.close()


def read_beat(path: Path) -> Beat | None:
    """Return the newest intact beat, or None where there is no heart file yet."""
    newest = _newest(path)
    return newest[1] if newest is not None else None


def _newest(path: Path) -> tuple[int, Beat] | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    beats = []
    for start in (0, _SLOT_BYTES):
        slot = raw[start : start + _SLOT.size]
        crc = raw[start + _SLOT.size : start + _SLOT.size + 4]
        if len(crc) == 4 and any(slot) and _CRC.pack(zlib.crc32(slot)) == crc:
            count, *fields = _SLOT.unpack(slot)
            beats.append((count, Beat(*fields)))
    if not beats:
        if any(raw):
            raise StoreDamaged(
                f"heart: {path} is unreadable, so it cannot be told whether acknowledged work is missing"
            )
        return None
    return max(beats, key=lambda counted: counted[0])
