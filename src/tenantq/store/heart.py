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
from typing import TYPE_CHECKING

from tenantq.errors import StoreDamaged
from tenantq.store.interface import Beat

if TYPE_CHECKING:
    from pathlib import Path

_SLOT = struct.Struct(">QQQQQ16sBQQ")
_SLOT_BYTES = 128
_CRC = struct.Struct(">I")


class Heart:
    """The open heart file of a store."""

    def __init__(self, path: Path) -> None:
        self.last = read_beat(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < 2 * _SLOT_BYTES:
                os.posix_fallocate(descriptor, 0, 2 * _SLOT_BYTES)  # a hole would be a bus error on a full disk
            self._map = mmap.mmap(descriptor, 2 * _SLOT_BYTES)
        finally:
            os.close(descriptor)
        self._count = self.last.count if self.last else 0

    def beat(
        self,
        seq: int,
        engine_ms: int,
        wall_ms: int,
        monotonic_ms: int,
        boot_id: bytes,
        manifest: tuple[int, int],
        *,
        clean: bool = False,
    ) -> None:
        """Note that everything up to ``seq`` is synced."""
        self._count += 1
        slot = _SLOT.pack(self._count, seq, engine_ms, wall_ms, monotonic_ms, boot_id, clean, *manifest)
        start = (self._count & 1) * _SLOT_BYTES
        self._map[start : start + _SLOT.size + 4] = slot + _CRC.pack(zlib.crc32(slot))
        if clean:
            self._map.flush()

    def close(self) -> None:
        """Give the file back."""
        self._map.close()


def read_beat(path: Path) -> Beat | None:
    """Return the newest intact beat, or None where there is no heart file yet."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    beats = []
    for start in (0, _SLOT_BYTES):
        slot = raw[start : start + _SLOT.size]
        crc = raw[start + _SLOT.size : start + _SLOT.size + 4]
        if len(crc) == 4 and any(slot) and _CRC.pack(zlib.crc32(slot)) == crc:
            count, seq, engine_ms, wall_ms, monotonic_ms, boot_id, clean, number, size = _SLOT.unpack(slot)
            beats.append(Beat(count, seq, engine_ms, wall_ms, monotonic_ms, boot_id, bool(clean), number, size))
    if not beats:
        if any(raw):
            raise StoreDamaged(
                f"heart: {path} is unreadable, so it cannot be told whether acknowledged work is missing"
            )
        return None
    return max(beats, key=lambda beat: beat.count)
