"""Fixtures: a shard with gates and service, on the manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.contract.gates.harness import ServiceHarness

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard

OpenHarness = Callable[..., Awaitable[ServiceHarness]]


@pytest.fixture
async def open_harness(open_shard: OpenShard, clock: ManualClock) -> AsyncIterator[OpenHarness]:
    """Open a harness; options are those of ServiceHarness."""
    opened: list[ServiceHarness] = []

    async def open_one(name: str = "data", **options: object) -> ServiceHarness:
        shard = await open_shard(name)
        harness = ServiceHarness(shard, clock, **options)  # type: ignore[arg-type]
        opened.append(harness)
        return await harness.open()

    yield open_one
    for harness in opened:
        await harness.close()


@pytest.fixture
async def harness(open_harness: OpenHarness) -> ServiceHarness:
    """Open one harness."""
    return await open_harness()
