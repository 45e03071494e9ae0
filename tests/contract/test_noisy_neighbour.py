"""A flood of one tenant does not delay another: counted in rounds, so that a slow machine changes nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.administration import put_tenant
from tests.shards import Q, message

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard


async def _rounds_waited(shard: Shard, tenant: str) -> int:
    before = shard.loop.figures.rounds
    await shard.add(tenant, Q, [message()])
    return shard.loop.figures.rounds - before


async def test_49_quiet_tenant_waits_a_few_rounds_next_to_a_flood(shard: Shard) -> None:
    """The number of callers and queues of the loud tenant does not matter."""
    for name in ("loud", "quiet"):
        await put_tenant(shard, name)
    for queues in (1, 100):
        over = asyncio.Event()

        async def shout(queue: str, over: asyncio.Event = over) -> int:
            count = 0
            while not over.is_set():
                await shard.add("loud", queue, [message()])
                count += 1
            return count

        flood = [asyncio.ensure_future(shout(f"q{number % queues}")) for number in range(500)]
        await asyncio.sleep(0)
        waited = [await _rounds_waited(shard, "quiet") for _ in range(50)]
        over.set()
        assert sum(await asyncio.gather(*flood)) > 500  # otherwise there was no flood
        assert sorted(waited)[48] <= 4  # its own round, and those that were being synced


async def test_49_tenant_at_its_limit_does_not_delay_another(shard: Shard) -> None:
    """Refused work uses only its own tenant's turn."""
    await put_tenant(shard, "loud", quotas={"backlog": 1})
    await put_tenant(shard, "quiet")
    flood = [asyncio.ensure_future(shard.add("loud", Q, [message()])) for _ in range(3_000)]
    await asyncio.sleep(0)
    waited = await _rounds_waited(shard, "quiet")
    replies = await asyncio.gather(*flood)
    assert waited <= 4
    assert sum(one.error is None for (one,) in replies) == 1
