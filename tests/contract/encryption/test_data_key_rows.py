"""Wrapped data keys in the store: written by rounds, read at start, destroyed before their tenant's rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from rocksdict import WriteBatch

from tenantq.doctor.store_check import examine
from tenantq.engine.data_key_rows import DATA_KEY_ROW
from tenantq.errors import Erased, Invalid, NotFound
from tenantq.kms.interface import KeyRef
from tenantq.store.rocks import RocksStore
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.wrapped_key import WrappedKey
from tests.administration import put_data_key, put_tenant
from tests.shards import Q, data_key_row, freeze, journal_rows, message

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.engine.shard import Shard
    from tests.conftest import OpenShard

REF = KeyRef("local", "main")


def holding(directory: Path, needle: bytes) -> list[str]:
    """Return the files that contain these bytes."""
    return [path.name for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


async def acme(shard: Shard) -> int:
    """Create a tenant and return its ID."""
    await put_tenant(shard, "acme")
    return shard.tenant("acme").id


async def ops(shard: Shard) -> list[str]:
    """Return the operations in the tenant's journal."""
    return [row.op for row in await journal_rows(shard, tenant="acme")]


async def test_stored_data_keys_survive_a_restart(open_shard: OpenShard) -> None:
    """Put never overwrites, replace only replaces the given key, and both are journaled without the key."""
    shard = await open_shard()
    tenant = await acme(shard)
    book = StoredDataKeys(shard)
    key = WrappedKey(1, REF, os.urandom(60), 5)
    assert await book.put(tenant, key)
    assert not await book.put(tenant, WrappedKey(1, REF, b"another", 6))
    more = WrappedKey(1, REF, key.wrapped, 5, uses=100)
    assert await book.replace(tenant, key, more)
    assert not await book.replace(tenant, key, WrappedKey(1, REF, b"another", 5))
    assert not await book.replace(tenant, WrappedKey(2, REF, b"x", 5), WrappedKey(2, REF, b"y", 5))
    assert await ops(shard) == ["create_tenant", "put_data_key", "replace_data_key"]
    await shard.close()
    again = await open_shard()
    assert await StoredDataKeys(again).list(tenant) == {1: more}
    assert await StoredDataKeys(again).list(tenant + 1) == {}


@pytest.mark.rocksdb_only("looks at its files; tests/redis_store/test_durability.py looks at those of Redis")
async def test_57_deleting_a_tenant_destroys_its_keys_first(open_shard: OpenShard, tmp_path: Path) -> None:
    """No table or log contains them, nor replaced keys; the journal has their end before that of the tenant."""
    shard = await open_shard()
    tenant = await acme(shard)
    book = StoredDataKeys(shard)
    wrapped = [os.urandom(60) for _ in range(3)]
    await book.put(tenant, WrappedKey(0, REF, wrapped[0], 5))
    await book.put(tenant, WrappedKey(1, REF, wrapped[1], 5))
    await shard.add("acme", Q, [message("sealed")])
    freeze(tmp_path / "data", tmp_path / "before")
    assert all(holding(tmp_path / "before", one) for one in wrapped[:2])
    await book.replace(tenant, WrappedKey(1, REF, wrapped[1], 5), WrappedKey(1, REF, wrapped[2], 5))
    first = shard.journal.span[1]
    await shard.erasure.delete_tenant("acme", reason="it has left us")
    rows = await journal_rows(shard, after=first)
    assert [row.op for row in rows] == ["drop_data_keys", "delete_tenant"]
    freeze(tmp_path / "data", tmp_path / "after")
    assert [holding(tmp_path / "after", one) for one in wrapped] == [[], [], []]
    assert not shard.state.data_keys.by_tenant
    await shard.close()
    assert not examine(tmp_path / "data").findings


async def test_tenant_whose_keys_were_destroyed_gets_no_new_ones(shard: Shard) -> None:
    """Nothing can be encrypted between the end of the keys and the end of the rows."""
    tenant = await acme(shard)
    book = StoredDataKeys(shard)
    await book.put(tenant, WrappedKey(0, REF, b"secret", 5))
    assert await book.drop_all(tenant) == 1
    with pytest.raises(Erased):
        await book.put(tenant, WrappedKey(0, REF, b"secret", 5))
    assert await book.list(tenant) == {}


async def test_data_keys_need_an_existing_tenant(shard: Shard) -> None:
    """Number and size must be within their limits."""
    tenant = await acme(shard)
    for wrong in (put_data_key(shard, 99, 0, b"x"), shard.erasure.drop_data_keys(99)):
        with pytest.raises(NotFound):
            await wrong
    for number, value in ((-1, b"x"), (1 << 32, b"x"), (0, b""), (0, b"x" * 20_000)):
        with pytest.raises(Invalid):
            await put_data_key(shard, tenant, number, value)


@pytest.mark.rocksdb_only("damages its files")
async def test_doctor_checks_the_data_keys(open_shard: OpenShard, tmp_path: Path) -> None:
    """It counts them, and names those without a tenant or secret."""
    shard = await open_shard()
    tenant = await acme(shard)
    for number in range(3):
        await put_data_key(shard, tenant, number, data_key_row(number))
    await shard.close()
    report = examine(tmp_path / "data")
    assert (report.figures.data_keys, report.findings) == (3, [])
    store = RocksStore(tmp_path / "data")
    batch = WriteBatch(raw_mode=True)
    batch.delete(DATA_KEY_ROW + tenant.to_bytes(4) + bytes(4), store.meta.handle)
    batch.put(DATA_KEY_ROW + (99).to_bytes(4) + bytes(4), data_key_row(0), store.meta.handle)
    batch.put(DATA_KEY_ROW + b"odd", b"stray", store.meta.handle)
    store.write(batch)
    store.close()
    assert sorted(one.kind for one in examine(tmp_path / "data").findings) == ["damaged", "keys", "orphan"]
