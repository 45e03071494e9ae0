"""Servers shared by the tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def durable_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server that syncs every write before it replies."""
    server = RedisServer(
        tmp_path_factory.mktemp("durable"), "appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0"
    )
    yield server
    server.kill()
