"""Shards on one remote store, as several servers open them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tenantq.runtime.clock import SystemClock
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from tenantq.runtime.clock import Clock
    from tests.postgres_servers import OnPostgres
    from tests.redis_servers import OnRedis

    Open = Callable[..., Coroutine[None, None, Shard]]

LEASE_MS = 500


@asynccontextmanager
async def opening(on: type[OnRedis | OnPostgres], server: Any, directory: Path) -> AsyncIterator[Open]:
    """Yield what opens the shard of one store under a directory of its own, on the real clock. Close what was opened."""
    opened: list[Shard] = []

    async def open_one(name: str, *, clock: Clock | None = None, **settings: object) -> Shard:
        opener = on(server, directory / name, "os", **{"name": "fleet", "lease_ms": LEASE_MS, **settings})
        shard = Shard(directory / name, open_store=opener, clock=clock or SystemClock())
        await shard.open()
        opened.append(shard)
        return shard

    yield open_one
    for shard in opened:
        await shard.close()


def stop_renewing(shard: Shard) -> None:
    """Stop renewing a shard's lease, as if its process was paused."""
    store: Any = shard.state.store
    store._owner.lease._ended.set()
