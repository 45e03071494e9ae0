"""The sync marker, file ``heart``: what was synced last, and when. A store that lost acknowledged work is refused.

RocksDB cannot distinguish a log that was cut at a record's end from one that ends there. The marker is written after every sync, never
before. It may lag behind the log but never lead it: a store whose journal ends before the marker's ``seq`` has lost acknowledged work.

Two slots are written in turn, each with a checksum; a slot torn by a crash loses to the other. The page reaches the disk on its own
time: a killed process loses nothing of it, a power failure leaves an older but true value. The file is created whole and synced, so
a file of another size, or with an empty slot, is damaged.
"""

import mmap
import os
import struct
import zlib
from pathlib import Path

from msgspec.structs import astuple

from tenantq.errors import StoreDamaged
from tenantq.runtime.durable_files import write_durably
from tenantq.store.interface import Beat

_SLOT = struct.Struct(">QQQQQ16s?QQ")  # which one it is, counted from 1, and the fields of a beat
_SLOT_BYTES = 128
_CRC = struct.Struct(">I")
_NEVER = Beat(0, 0, 0, 0, bytes(16), False, 0, 0)


class SyncMarkerFile:
    """The open sync marker of a store: the file ``heart``."""

    since_last_ms: int | None = None  # a file has no clock

    def __init__(self, path: Path) -> None:
        self.last: Beat | None
        if not path.exists():
            write_durably(path, 2 * _with_checksum(0, _NEVER).ljust(_SLOT_BYTES, b"\0"), 0o600)
        self._count, self.last = _newest(path) or (0, None)
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, 2 * _SLOT_BYTES)
        finally:
            os.close(descriptor)

    def beat(self, beat: Beat) -> None:
        """Write it over the older of the two slots."""
        self._count += 1
        start = (self._count & 1) * _SLOT_BYTES
        self._map[start : start + _SLOT.size + 4] = _with_checksum(self._count, beat)
        if beat.clean:
            self._map.flush()

    def close(self) -> None:
        self._map.close()


def read_beat(path: Path) -> Beat | None:
    """Return the newest beat, or None if there is none yet. Raises StoreDamaged."""
    newest = _newest(path)
    return newest[1] if newest is not None else None


def _newest(path: Path) -> tuple[int, Beat] | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = [raw[start : start + _SLOT.size + _CRC.size] for start in (0, _SLOT_BYTES)]
    intact = [slot[: _SLOT.size] for slot in slots if _CRC.pack(zlib.crc32(slot[: _SLOT.size])) == slot[_SLOT.size :]]
    count, *fields = max((_SLOT.unpack(slot) for slot in intact), default=(0,))
    if len(raw) != 2 * _SLOT_BYTES or not intact or not all(any(slot) for slot in slots):
        raise StoreDamaged(
            f"heart: {path} is damaged, so missing acknowledged work would not be noticed. Restore a backup. To start without this"
            " check once, delete the file"
        )
    return (count, Beat(*fields)) if count else None


def _with_checksum(count: int, beat: Beat) -> bytes:
    """Return a slot and its checksum."""
    slot = _SLOT.pack(count, *astuple(beat))
    return slot + _CRC.pack(zlib.crc32(slot))
