"""68: all stores hold the same rows after the same batches, and show the same snapshots."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tenantq.store.keys import FAMILIES, after, be64, queue_prefix
from tenantq.store.postgres import snapshot as postgres_snapshot
from tenantq.store.redis import snapshot as redis_snapshot
from tenantq.store.rocks import RocksStore
from tests.conftest import remote_opener
from tests.crash.recount import dump

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tenantq.store.interface import Store, StoreSnapshot

PREFIXES = [queue_prefix(tenant, queue) for tenant in (1, 255, 256) for queue in (1, 255, 7)]
IN_SNAPSHOTS = ("m", "vi", "le", "li", "gr", "re", "ik", "ex", "qc")
LENGTHS = {"m": 16, "le": 16, "re": 16, "ik": 16, "gr": 16, "vi": 25, "li": 24, "ex": 25}


@pytest.fixture(params=["redis", "postgres"])
async def stores(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, Store]]:
    """Open the embedded store and a remote one."""
    opener = remote_opener(request.param, request)
    assert opener is not None
    opened: Store = await opener(tmp_path / "remote")("1")
    embedded: Store = RocksStore(tmp_path / "rocks", memory_bytes=8 << 20)
    yield embedded, opened
    embedded.close()
    opened.close()
    request.getfixturevalue(f"{request.param}_process").clear()


class Changes:
    """Random batches, applied to both stores."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seq = 0

    def key(self, family: str) -> bytes:
        """Return a key that is likely to repeat."""
        rng = self.rng
        if family == "meta":
            return rng.choice([b"tenant/", b"queue/", b"queue0"]) + bytes(
                [rng.choice((0, 1, 254, 255))]
            ) * rng.randrange(5)
        prefix = rng.choice(PREFIXES)
        if family == "qc":
            return prefix
        if family == "gr":
            return prefix + bytes([rng.randrange(3)]) * rng.choice((16, 32))
        length = LENGTHS[family]
        return prefix + bytes([rng.choice((0, 1, 2, 255))]) * (length - 1) + bytes([rng.choice((0, 1, 255))])

    def value(self, family: str) -> bytes:
        """Return a value that is valid for the row."""
        if family in {"li", "ex"}:
            return b""
        return self.rng.choice((b"", b"\x01")) if family == "vi" else self.rng.randbytes(self.rng.randrange(40))

    def write(self, *stores: Store) -> None:
        """Apply one batch to all stores."""
        rng, batches = self.rng, [store.new_batch() for store in stores]
        steps: list[tuple[str, str, bytes, bytes]] = []
        for _ in range(rng.randrange(1, 30)):
            family = rng.choice([name for name in FAMILIES if name != "jn"])
            act = rng.choices(("put", "delete", "range"), (10, 5, 1))[0]
            lower = self.key(family)
            if act == "put":
                steps.append((act, family, lower, self.value(family)))
            elif act == "delete":
                steps.append((act, family, lower, b""))
            elif rng.random() < 0.7 and family != "meta":
                steps.append((act, family, lower[:8], after(lower[:8])))
            else:
                steps.append((act, family, *sorted((lower, self.key(family)))))  # type: ignore[arg-type]  # two keys
        if rng.random() < 0.05:
            steps += [("range", family, PREFIXES[0], after(PREFIXES[0])) for family in LENGTHS]  # a queue is dropped
        self.seq += 1
        steps.append(("put", "jn", be64(self.seq), rng.randbytes(50)))
        if rng.random() < 0.2:
            steps.append(("range", "jn", be64(0), be64(rng.randrange(max(1, self.seq - 5), self.seq + 1))))
        for store, batch in zip(stores, batches, strict=True):
            for act, family, one, two in steps:
                handle = store.family(family).handle
                if act == "put":
                    batch.put(one, two, handle)
                elif act == "delete":
                    batch.delete(one, handle)
                else:
                    batch.delete_range(one, two, handle)
            store.write(batch)


@pytest.mark.parametrize("seed", range(4))
def test_68_both_stores_read_the_same_after_the_same_batches(stores: tuple[Store, Store], seed: int) -> None:
    """Families, single rows, ranges and last rows agree after random puts, deletes and clears."""
    embedded, remote = stores
    changes = Changes(seed)
    for _ in range(60):
        changes.write(embedded, remote)
        for _ in range(10):
            name = changes.rng.choice([name for name in FAMILIES if name != "jn"])
            lower, upper = sorted((changes.key(name), changes.key(name)))
            if changes.rng.random() < 0.5:
                lower += b"\0"
            limit = changes.rng.choice((1, 3, 1_000))
            told = [
                (
                    store.scan(store.family(name), lower, upper, limit),
                    store.scan_items(store.family(name), lower, upper, limit),
                    store.last_item(store.family(name), lower, upper),
                    store.get(store.family(name), upper),
                    store.get_many(store.family(name), [lower, upper]),
                    store.last_item(store.jn, b"", b"\xff" * 9),
                )
                for store in stores
            ]
            assert told[0] == told[1], (name, lower, upper, limit)
    assert dump(embedded) == dump(remote)


@pytest.mark.parametrize("seed", range(4))
def test_68_snapshots_of_both_stores_agree_while_the_stores_change(
    stores: tuple[Store, Store], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several snapshots stay equal while rows change and queues are cleared."""
    monkeypatch.setattr(redis_snapshot, "_PAGE", 7)
    monkeypatch.setattr(postgres_snapshot, "_PAGE", 7)
    changes = Changes(100 + seed)
    for _ in range(20):
        changes.write(*stores)
    open_snapshots: list[tuple[bytes, list[StoreSnapshot]]] = []
    for _ in range(60):
        if len(open_snapshots) < 4 and changes.rng.random() < 0.4:
            prefix = changes.rng.choice([*PREFIXES, PREFIXES[0][:4]])
            open_snapshots.append((prefix, [store.snapshot(prefix, after(prefix), *IN_SNAPSHOTS) for store in stores]))
        changes.write(*stores)
        for prefix, pair in open_snapshots:
            name = changes.rng.choice(IN_SNAPSHOTS)
            bytes_max = changes.rng.choice((None, 50))
            key = prefix[:8] + changes.key(name)[8:]
            told = [
                (
                    list(one.walk(name, prefix)),
                    one.keys(name, prefix, 5),
                    one.items(name, prefix, after(prefix), 6, bytes_max),
                    one.get(name, key) if len(prefix) == 8 else None,
                )
                for one in pair
            ]
            assert told[0] == told[1]
        if len(open_snapshots) > 2 and changes.rng.random() < 0.5:
            for one in open_snapshots.pop(changes.rng.randrange(len(open_snapshots)))[1]:
                one.close()
    for _, pair in open_snapshots:
        for one in pair:
            one.close()
    assert dump(stores[0]) == dump(stores[1])
    changes.write(*stores)  # only the rows kept for the snapshots are gone
    assert dump(stores[0]) == dump(stores[1])
