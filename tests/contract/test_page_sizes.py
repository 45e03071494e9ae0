"""Pages of messages: limited in bytes, and complete over all pages."""

from __future__ import annotations

import pytest

from tenantq.domain.limits import BODY_BYTES_MAX, PAGE_BYTES_MAX
from tenantq.engine.shard import Shard
from tenantq.store.interface import Family
from tests.shards import Q, T, message


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_peek_of_large_messages_returns_pages_of_limited_size(shard: Shard, group: str | None) -> None:
    """Each page ends at the limit, and together they show every message once, in order, also those blocked by their group."""
    ids = []
    for _ in range(10):
        (added,) = await shard.add(T, Q, [message(bytes(BODY_BYTES_MAX), group=group)])
        ids.append(added.id)
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = await shard.reads.peek(T, Q, limit=1_000, cursor=cursor)
        assert sum(len(one.body) for one in page.messages) <= PAGE_BYTES_MAX + BODY_BYTES_MAX
        seen += [one.id for one in page.messages]
        cursor, pages = page.cursor, pages + 1
    assert seen == ids
    assert pages == 3


async def test_a_peek_reads_the_store_in_slices(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read asks for more than a slice of messages."""
    await shard.add(T, Q, [message("x")] * 500)
    store = shard.state.store
    get_many, sizes = store.get_many, list[int]()

    def count(family: Family, keys: list[bytes]) -> list[bytes | None]:
        sizes.append(len(keys))
        return get_many(family, keys)

    monkeypatch.setattr(store, "get_many", count)
    page = await shard.reads.peek(T, Q, limit=500)
    assert len(page.messages) == 500
    assert sum(sizes) == 1_000  # messages and leases
    assert max(sizes) == 64
