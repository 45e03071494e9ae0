"""Houses with a vault, closed in any case."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.contract.encryption.house import EncryptedHouse

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard

OpenEncryptedHouse = Callable[[], Awaitable[EncryptedHouse]]


@pytest.fixture
async def open_house(open_shard: OpenShard, clock: ManualClock, tmp_path: Path) -> AsyncIterator[OpenEncryptedHouse]:
    """Open a house on the test's directory; again after closing it is a restart."""
    opened: list[EncryptedHouse] = []

    async def open_one() -> EncryptedHouse:
        house = EncryptedHouse(await open_shard(), clock, tmp_path / "data")
        opened.append(house)
        await house.open()
        return house

    yield open_one
    for house in opened:
        if not house.shard.loop._closed:
            await house.close()


@pytest.fixture
async def house(open_house: OpenEncryptedHouse) -> EncryptedHouse:
    """One house."""
    return await open_house()
