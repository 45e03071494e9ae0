"""The round loop of a shard that is not opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.engine.shard import Shard
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from pathlib import Path


async def test_opening_that_is_cancelled_during_a_sync_leaves_no_reply_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply would find the store closed."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    opening = asyncio.create_task(Shard(tmp_path).open())
    monkeypatch.setattr(RocksStore, "sync", lambda _: opening.cancel())
    with pytest.raises(asyncio.CancelledError):
        await opening
    for _ in range(5):
        await asyncio.sleep(0)
    assert not errors
