"""Writes Queueber stores as its schema document describes them, with an independent Cap'n Proto encoder."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from rocksdict import Options, Rdict

FAMILIES = ("available", "in_progress", "visibility_index", "leases", "lease_expiry")


def uuid7(ms: int, number: int) -> bytes:
    """Return a UUID of version 7."""
    return ms.to_bytes(6) + (0x7000 | number >> 8 & 0xFFF).to_bytes(2) + (1 << 63 | number).to_bytes(8)


def _words(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _message(segment: bytes) -> bytes:
    """Frame one segment: the number of segments minus one, then its length in words."""
    return struct.pack("<II", 0, len(segment) // 8) + segment


def _struct(numbers: list[int], texts: list[bytes]) -> bytes:
    """Encode a struct of 64-bit numbers, then pointers to data."""
    head = struct.pack("<IHH", 0, len(numbers), len(texts)) + b"".join(struct.pack("<Q", one) for one in numbers)
    pointers, content = b"", b""
    for at, text in enumerate(texts):
        offset = (len(texts) - at - 1) + len(content) // 8
        pointers += struct.pack("<II", offset << 2 | 1, len(text) << 3 | 2)
        content += _words(text)
    return _message(head + pointers + content)


def stored_item(contents: bytes, index_key: bytes, id: bytes) -> bytes:
    """Encode a StoredItem."""
    return _struct([], [contents, index_key, id])


def lease_entry(ids: list[bytes], expires_s: int, index_key: bytes) -> bytes:
    """Encode a LeaseEntry: a number, a list of data, and data."""
    list_words = len(ids)
    blobs = b"".join(_words(one) for one in ids)
    head = struct.pack("<IHH", 0, 1, 2) + struct.pack("<Q", expires_s)
    pointers = struct.pack("<II", 1 << 2 | 1, list_words << 3 | 6)
    pointers += struct.pack("<II", (list_words + len(blobs) // 8) << 2 | 1, len(index_key) << 3 | 2)
    elements, offset = b"", 0
    for at, one in enumerate(ids):
        elements += struct.pack("<II", (list_words - at - 1 + offset) << 2 | 1, len(one) << 3 | 2)
        offset += len(_words(one)) // 8
    return _message(head + pointers + elements + blobs + _words(index_key))


class QueueberStore:
    """A store that is being written."""

    def __init__(self, directory: Path, *, one_family: bool = False) -> None:
        self._db = Rdict(str(directory), Options(raw_mode=True))
        self._families = {
            name: self._db.get_column_family("default")
            if one_family
            else self._db.create_column_family(name, Options(raw_mode=True))
            for name in FAMILIES
        }

    def put(self, family: str, rest: bytes, value: bytes) -> None:
        """Write a row."""
        self._families[family][family.encode() + b"/" + rest] = value

    def add(self, id: bytes, contents: bytes, visible_s: int) -> None:
        """Write an available item and its index row."""
        rest = visible_s.to_bytes(8) + b"/" + id
        self.put("available", id, stored_item(contents, b"visibility_index/" + rest, id))
        self.put("visibility_index", rest, b"available/" + id)

    def lease(self, lease: bytes, items: dict[bytes, bytes], expires_s: int) -> None:
        """Write items in progress and their lease."""
        rest = expires_s.to_bytes(8) + b"/" + lease
        for id, contents in items.items():
            self.put("in_progress", id, stored_item(contents, b"visibility_index/", id))
        self.put("leases", lease, lease_entry(sorted(items), expires_s, b"lease_expiry/" + rest))
        self.put("lease_expiry", rest, b"leases/" + lease)

    def remove(self, id: bytes, visible_s: int) -> None:
        """Delete an item, available or in progress."""
        for family, rest in (
            ("available", id), ("in_progress", id), ("visibility_index", visible_s.to_bytes(8) + b"/" + id)
        ):  # fmt: skip
            self._families[family].delete(family.encode() + b"/" + rest)

    def close(self) -> None:
        """Write everything to disk."""
        self._families.clear()
        self._db.close()


def main() -> None:
    """Act as a running Queueber: keep the store open, and execute the commands on standard input."""
    store = QueueberStore(Path(sys.argv[1]))
    for line in sys.stdin:
        command, number = line.split()[0], int(line.split()[1])
        id = uuid7(1_700_000_000_000 + number, number)
        if command == "add":
            store.add(id, b"item %d" % number, 1_700_000_000)
        elif command == "lease":
            store.remove(id, 1_700_000_000)
            store.lease(uuid7(1_700_000_000_000, 1 << 20 | number), {id: b"item %d" % number}, 4_000_000_000)
        else:
            store.remove(id, 1_700_000_000)
        print("done", flush=True)
    store.close()


if __name__ == "__main__":
    main()
