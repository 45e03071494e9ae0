"""Preallocated space in the write-ahead log: zeros that RocksDB overwrites, so that a sync writes only data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocksdict import WriteBatch

from tenantq.store.framing import torn_logs, walk
from tenantq.store.log_space import AHEAD_BYTES
from tenantq.store.rocks import RocksStore
from tests.shards import freeze

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write(store: RocksStore, key: bytes, value: bytes = b"v") -> None:
    """Write one row."""
    batch = WriteBatch(raw_mode=True)
    batch.put(key, value, store.meta.handle)
    store.write(batch)


def newest_log(path: Path) -> Path:
    """Return the current log file."""
    return max((path / "db").glob("*.log"))


def test_the_log_does_not_grow_while_it_has_preallocated_space(tmp_path: Path) -> None:
    """Records overwrite zeros and the file keeps its length; then more space is allocated."""
    store = RocksStore(tmp_path)
    write(store, b"a")
    length = newest_log(tmp_path).stat().st_size
    assert length > AHEAD_BYTES
    for number in range(50):
        write(store, b"%d" % number, bytes(1_000))
        assert newest_log(tmp_path).stat().st_size == length
    write(store, b"large", os.urandom(AHEAD_BYTES + 1))
    assert newest_log(tmp_path).stat().st_size > length + AHEAD_BYTES
    store.close()


def test_a_new_log_gets_preallocated_space_too(tmp_path: Path) -> None:
    """RocksDB switches logs after a flush."""
    store = RocksStore(tmp_path)
    write(store, b"a")
    before = newest_log(tmp_path)
    store.files.flush()
    for number in range(3):
        write(store, b"%d" % number)
    after = newest_log(tmp_path)
    assert after != before
    assert after.stat().st_size > AHEAD_BYTES
    store.close()


def test_a_log_with_preallocated_space_is_read_to_its_last_record(tmp_path: Path) -> None:
    """After a kill, the zeros mark the end, no record is torn, and nothing is missing."""
    store = RocksStore(tmp_path / "live")
    for number in range(200):
        write(store, b"key-%03d" % number, bytes([number]) * 700)
    freeze(tmp_path / "live", tmp_path / "copy")
    store.close()
    log = newest_log(tmp_path / "copy")
    end, why = walk(log.read_bytes())
    assert (why, torn_logs(tmp_path / "copy" / "db")) == ("room", [])
    assert end < log.stat().st_size
    again = RocksStore(tmp_path / "copy")
    assert [again.get(again.meta, b"key-%03d" % number) for number in range(200)] == [
        bytes([number]) * 700 for number in range(200)
    ]
    again.close()


def test_writing_continues_without_preallocated_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearly full disk is no reason to fail."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    store = RocksStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        write(store, b"a")
        write(store, b"b")
    assert newest_log(tmp_path).stat().st_size < AHEAD_BYTES
    write(store, b"c")
    assert newest_log(tmp_path).stat().st_size > AHEAD_BYTES
    store.close()
