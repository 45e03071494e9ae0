"""Room ahead in the write-ahead log: zeros that RocksDB overwrites, so that a sync has only bytes to write."""

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
    """Return the log that is written to."""
    return max((path / "db").glob("*.log"))


def test_the_log_does_not_grow_while_there_is_room(tmp_path: Path) -> None:
    """What is written stands where zeros stood, and the file keeps its length; when the room is used up there is new room."""
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


def test_a_new_log_gets_room_too(tmp_path: Path) -> None:
    """After a flush RocksDB goes on in another log."""
    store = RocksStore(tmp_path)
    write(store, b"a")
    before = newest_log(tmp_path)
    store.flush()
    for number in range(3):
        write(store, b"%d" % number)
    after = newest_log(tmp_path)
    assert after != before
    assert after.stat().st_size > AHEAD_BYTES
    store.close()


def test_a_log_with_room_ahead_is_read_to_its_last_record(tmp_path: Path) -> None:
    """As a kill leaves it: the zeros are the end, nothing is torn, and everything that was written is there."""
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


def test_where_there_is_no_space_ahead_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full has no room to spare, and that is no reason to fail."""

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
