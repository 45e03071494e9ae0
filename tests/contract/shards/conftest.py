"""Servers of three shards, shared by all tests here that do not damage them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.shards.sharded import Sharded, sharded
from tests.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


OPEN = {
    "TENANTQ_SIGNUPS__ENABLED": "true",
    "TENANTQ_SIGNUPS__PER_HOUR": "1000",
    "TENANTQ_CONTAINMENT": '[{"alert": "new_places", "action": "suspend_key", "dry_run": false}]',
}


@pytest.fixture(scope="session")
def three_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    """Return a running server of three embedded shards, each in its own process."""
    options = ("--shards", 3, "--rpc", "127.0.0.1:0")
    with sharded(tmp_path_factory.mktemp("three") / "data", *options, **OPEN) as server:
        yield server


@pytest.fixture(scope="session")
def three_on_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    """Return a running server of three shards on Redis, owned by two processes."""
    directory = tmp_path_factory.mktemp("redis")
    redis = RedisServer(directory / "redis", "appendonly yes", "appendfsync always")
    try:
        options = ("--shards", 3, "--rpc", "127.0.0.1:0", "--store", redis.url, "--processes", 2)
        with sharded(directory / "data", *options, **OPEN) as server:
            server.has_backups = False
            yield server
    finally:
        redis.kill()


@pytest.fixture(scope="session", params=["three_processes", "three_on_redis"])
def three(request: pytest.FixtureRequest) -> Sharded:
    """Return a running server of three shards, of each kind."""
    server: Sharded = request.getfixturevalue(request.param)
    return server
