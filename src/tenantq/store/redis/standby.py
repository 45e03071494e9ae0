"""Standby for a Redis store: opens it at once, or waits until its owner is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tenantq.errors import StoreFailed
from tenantq.store.redis.ownership import ShardHeld
from tenantq.store.redis.store import RedisStore

log = logging.getLogger("tenantq")

_LOOK_MS_MAX: Final = 500
"""The longest interval between attempts: a clean stop releases the shard before its lease ends."""


async def open_when_free(
    *arguments: Any, standing_by: Callable[[str], Awaitable[None]] | None = None, **options: Any
) -> RedisStore:
    """Open a RedisStore with these arguments, waiting while another server owns the shard.

    ``standing_by`` is called with the owner. A Redis failure ends the first attempt, but not a wait that has begun.
    """
    holder = ""
    while True:
        try:
            store = await _open(*arguments, **options)
        except ShardHeld as held:
            if held.holder != holder:
                holder = held.holder
                log.info("standing by: the shard is owned by %s", holder)
                if standing_by is not None:
                    await standing_by(holder)
            await asyncio.sleep(min(held.left_ms, _LOOK_MS_MAX) / 1_000)
        except StoreFailed as error:
            if not holder or error.__cause__ is None:
                raise
            log.warning("standing by, and the store does not answer: %s", error)
        else:
            if holder:
                log.info("took over from %s", holder)
            return store


async def _open(*arguments: Any, **options: Any) -> RedisStore:
    """Open on a thread. If the caller is cancelled meanwhile, close what the thread opened."""
    opening = asyncio.get_running_loop().run_in_executor(None, lambda: RedisStore(*arguments, **options))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_again)
        raise


def _close_again(opening: asyncio.Future[RedisStore]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
