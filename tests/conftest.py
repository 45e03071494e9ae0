"""Fixtures: a clock that tests move, and shards on fresh directories that are closed in any case."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tenantq.clock import ManualClock
from tenantq.engine.shard import Shard

if TYPE_CHECKING:
    from pathlib import Path

OpenShard = Callable[..., Awaitable[Shard]]


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes when told to."""
    return ManualClock()


@pytest.fixture
async def open_shard(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenShard]:
    """Open a shard on a directory of the test's own, on the manual clock unless told otherwise."""
    opened: list[Shard] = []

    async def open_one(name: str = "data", **options: object) -> Shard:
        options = {"clock": clock, "randomness": random.Random(7), **options}
        shard = Shard(tmp_path / name, **options)  # type: ignore[arg-type]
        await shard.open()
        opened.append(shard)
        return shard

    yield open_one
    for shard in opened:
        await shard.close()


@pytest.fixture
async def shard(open_shard: OpenShard) -> Shard:
    """One shard on the manual clock."""
    return await open_shard()
