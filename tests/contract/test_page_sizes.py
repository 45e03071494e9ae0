"""Pages of messages: limited in bytes, and complete over all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from tenantq.domain.limits import BODY_BYTES_MAX, PAGE_BYTES_MAX
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.runtime.loop_slices import SLICE_ITEMS
from tests.administration import put_queue
from tests.shards import Q, T, count_slices, message

if TYPE_CHECKING:
    from tenantq.store.interface import Family
    from tests.verbs import Shard


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
    assert max(sizes) == SLICE_ITEMS


@pytest.mark.parametrize(("count", "size", "expected"), [(500, 1, 4), (4, BODY_BYTES_MAX, 4)])
async def test_a_page_of_a_snapshot_is_read_in_slices(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, count: int, size: int, expected: int
) -> None:
    """Other callers run after every slice of many messages, or of few large ones."""
    seen = count_slices(monkeypatch, "tenantq.engine.queue_snapshots")
    for _ in range(0, count, 125):
        await shard.add(T, Q, [message(bytes(size))] * min(count, 125))
    taken = await shard.snapshots.open(T, Q)
    page = await shard.snapshots.read(T, Q, taken.id, limit=1_000)
    assert len(page.messages) == count
    assert len(seen) >= expected - 1


async def test_the_ids_of_a_redrive_are_parsed_in_slices(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand would take one turn of the event loop tens of milliseconds."""
    seen = count_slices(monkeypatch, "tenantq.engine.ops.redrive")
    await put_queue(shard, T, Q)
    await shard.redrive(T, Q, filter=RedriveFilter(ids=frozenset(str(UUID(int=n)) for n in range(10_000))))
    assert len(seen) == 5
