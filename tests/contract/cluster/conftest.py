"""One Redis Cluster for all tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.cluster.hosts import TwoPrimaries

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoPrimaries]:
    """Return two running primaries."""
    running = TwoPrimaries(tmp_path_factory.mktemp("primaries"))
    yield running
    running.stop()
