"""The bare cost: the same puts, deletes and syncs on the same store, without a queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rocksdict import WriteBatch

from tenantq.store.keys import be64
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from pathlib import Path

_PREFIX = bytes(8)
_BODY = bytes(32 + 100)
_LEASE = bytes(50)
_COUNTERS = bytes(110)


class RawStore:
    """Writes the same rows as the engine, round by round."""

    def __init__(self, path: Path, syncs_per_batch: float = 1.0) -> None:
        self.store = RocksStore(path)
        self.syncs_per_batch = syncs_per_batch
        self.due = 0.0
        self.seq = 0
        self.next_id = 0

    def close(self) -> None:
        self.store.close()

    def ids(self, count: int) -> list[bytes]:
        start, self.next_id = self.next_id, self.next_id + count
        return [number.to_bytes(16) for number in range(start, start + count)]

    def commit(self, batch: WriteBatch, messages: int) -> None:
        self.seq += 1
        batch.put(_PREFIX, _COUNTERS, self.store.qc.handle)
        batch.put(be64(self.seq), bytes(80 + 24 * messages), self.store.jn.handle)
        self.store.write(batch)
        self.due += self.syncs_per_batch
        if self.due >= 1:
            self.due -= 1
            self.store.sync()

    def add(self, ids: list[bytes]) -> None:
        batch, store = WriteBatch(raw_mode=True), self.store
        m, vi = store.m.handle, store.vi.handle
        for id in ids:
            batch.put(_PREFIX + id, _BODY, m)
            batch.put(_PREFIX + b"\x09" + bytes(8) + id, b"", vi)
        self.commit(batch, len(ids))

    def lease(self, ids: list[bytes]) -> None:
        batch, store = WriteBatch(raw_mode=True), self.store
        vi, le, li = store.vi.handle, store.le.handle, store.li.handle
        for id in ids:
            batch.delete(_PREFIX + b"\x09" + bytes(8) + id, vi)
            batch.put(_PREFIX + id, _LEASE, le)
            batch.put(_PREFIX + bytes(8) + id, b"", li)
        self.commit(batch, len(ids))

    def ack(self, ids: list[bytes]) -> None:
        batch, store = WriteBatch(raw_mode=True), self.store
        m, le, li = store.m.handle, store.le.handle, store.li.handle
        for id in ids:
            batch.delete(_PREFIX + id, m)
            batch.delete(_PREFIX + id, le)
            batch.delete(_PREFIX + bytes(8) + id, li)
        self.commit(batch, len(ids))


def bare_us(path: Path, *, messages: int, batches: int, syncs: int, cycle: bool) -> float:
    """Return microseconds per message for adds, or for add, lease and ack, with the engine's number of batches and syncs."""
    bare = RawStore(path, min(1.0, syncs / batches))
    rounds = max(1, batches // 3 if cycle else batches)
    per_round = max(1, messages // rounds)
    started = time.perf_counter()
    for _ in range(rounds):
        ids = bare.ids(per_round)
        bare.add(ids)
        if cycle:
            bare.lease(ids)
            bare.ack(ids)
    spent = time.perf_counter() - started
    bare.close()
    return spent / (rounds * per_round) * 1e6
