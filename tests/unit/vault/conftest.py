"""Fixtures: a vault on a book and key managements in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.vault.doubles import House

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.runtime.clock import ManualClock


@pytest.fixture
async def house(clock: ManualClock) -> AsyncIterator[House]:
    """Build a vault on the manual clock, closed in any case."""
    house = House(clock)
    yield house
    await house.vault.close()
