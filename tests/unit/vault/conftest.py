"""Fixtures: a vault on an in-memory book and in-memory key management systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.vault.doubles import VaultEnvironment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.runtime.clock import ManualClock


@pytest.fixture
async def env(clock: ManualClock) -> AsyncIterator[VaultEnvironment]:
    """Create a vault on the manual clock and close it after the test."""
    env = VaultEnvironment(clock)
    yield env
    await env.vault.close()
