"""A house behind the transports, on a clock that tests move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.gates.house import House

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.engine.shard import Shard
    from tenantq.runtime.clock import ManualClock


@pytest.fixture
async def house(shard: Shard, clock: ManualClock) -> AsyncIterator[House]:
    """Return a house with its administrator let in."""
    opened = await House(shard, clock).open()
    yield opened
    await opened.close()
