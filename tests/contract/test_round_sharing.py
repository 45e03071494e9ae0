"""When replies wait for newcomers after a sync on the event loop, and when they do not. Counted in turns of the loop, not in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.shards import Q, T, message, wait_until_idle

if TYPE_CHECKING:
    import pytest

    from tests.verbs import Shard


async def _add_after(shard: Shard, turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    await shard.add(T, Q, [message()])


async def test_requests_that_arrive_during_a_sync_share_the_next_round(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They enter in different turns of the event loop, as requests on different connections do."""
    await shard.add(T, Q, [message()])
    await wait_until_idle(shard)
    arrived: list[asyncio.Task[None]] = []
    sync = shard.state.store.sync

    def arrive() -> None:
        if not arrived:
            arrived.extend(asyncio.create_task(_add_after(shard, turns)) for turns in (0, 1))
        sync()

    monkeypatch.setattr(shard.state.store, "sync", arrive)
    rounds = shard.loop.figures.rounds
    await shard.add(T, Q, [message()])
    await asyncio.gather(*arrived)
    assert shard.loop.figures.rounds - rounds == 2


async def test_a_single_caller_does_not_wait_for_newcomers(shard: Shard) -> None:
    """After a few rounds without any, its replies are sent in the turn of the sync, except once in a while."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    waited = []
    for _ in range(64):
        await wait_until_idle(shard)
        before = turns
        await shard.add(T, Q, [message()])
        waited.append(turns - before)
    counting.cancel()
    assert waited[0] == max(waited)
    assert waited.count(min(waited)) >= 48
    assert min(waited) < waited[0]
    assert max(waited[16:]) == waited[0]  # newcomers are looked for again
