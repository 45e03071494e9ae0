"""One Redis Cluster for all tests of this directory, and PostgreSQL for those that run on any shared store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.cluster.hosts import SharedStore, TwoPrimaries

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoPrimaries]:
    """Return two running primaries."""
    running = TwoPrimaries(tmp_path_factory.mktemp("primaries"))
    yield running
    running.stop()


@pytest.fixture
def shared_store(store_kind: str, request: pytest.FixtureRequest) -> SharedStore:
    """Return PostgreSQL if that is the store under test, and Redis otherwise."""
    found: SharedStore = request.getfixturevalue("postgres_process" if store_kind == "postgres" else "primaries")
    return found
