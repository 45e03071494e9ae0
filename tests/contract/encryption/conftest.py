"""Fixtures: harnesses with a vault."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.contract.encryption.harness import EncryptedHarness

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard

OpenEncryptedHarness = Callable[[], Awaitable[EncryptedHarness]]


@pytest.fixture
async def open_harness(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[OpenEncryptedHarness]:
    """Open a harness on the test's directory; opening it again after a close is a restart."""
    opened: list[EncryptedHarness] = []

    async def open_one() -> EncryptedHarness:
        harness = EncryptedHarness(await open_shard(), clock, tmp_path / "data")
        opened.append(harness)
        await harness.open()
        return harness

    yield open_one
    for harness in opened:
        if not harness.shard.loop._closed:
            await harness.close()


@pytest.fixture
async def harness(open_harness: OpenEncryptedHarness) -> EncryptedHarness:
    """Open one harness."""
    return await open_harness()
