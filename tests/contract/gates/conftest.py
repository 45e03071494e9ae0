"""A house: a shard with gates and service, on the manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.contract.gates.house import House

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard

OpenHouse = Callable[..., Awaitable[House]]


@pytest.fixture
async def open_house(open_shard: OpenShard, clock: ManualClock) -> AsyncIterator[OpenHouse]:
    """Open a house; options are those of House."""
    opened: list[House] = []

    async def open_one(name: str = "data", **options: object) -> House:
        shard = await open_shard(name)
        house = House(shard, clock, **options)  # type: ignore[arg-type]
        opened.append(house)
        return await house.open()

    yield open_one
    for house in opened:
        await house.close()


@pytest.fixture
async def house(open_house: OpenHouse) -> House:
    """One house."""
    return await open_house()
