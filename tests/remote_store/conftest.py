"""Servers that the tests of this directory share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.postgres_servers import PostgresServer
from tests.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def durable_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Redis server that keeps what it confirms."""
    server = RedisServer(tmp_path_factory.mktemp("durable"), "appendonly yes", "appendfsync always")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server that keeps what it confirms."""
    server = PostgresServer()
    yield server
    server.stop()
