"""A harness behind the transports, on a clock that tests advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.gates.harness import ServiceHarness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.engine.shard import Shard
    from tenantq.runtime.clock import ManualClock


@pytest.fixture
async def harness(shard: Shard, clock: ManualClock) -> AsyncIterator[ServiceHarness]:
    """Return an open harness."""
    opened = await ServiceHarness(shard, clock).open()
    yield opened
    await opened.close()
