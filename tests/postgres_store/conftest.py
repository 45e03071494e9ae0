"""Servers that the tests of this directory share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.postgres_servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def durable_process() -> Iterator[PostgresServer]:
    """One server for all tests of this process that keeps what it confirms."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def durable_server(durable_process: PostgresServer) -> PostgresServer:
    """Return the shared durable server, without schemas of other tests."""
    durable_process.clear()
    return durable_process


@pytest.fixture
def postgres_server(postgres_process: PostgresServer) -> PostgresServer:
    """Return the shared server that does not sync, without schemas of other tests."""
    postgres_process.clear()
    return postgres_process
