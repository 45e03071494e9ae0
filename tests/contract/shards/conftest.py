"""Servers of three shards for all tests here that do no harm to them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.contract.shards.sharded import Sharded, sharded
from tests.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", params=["embedded", "redis"])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    """Return a running server of three shards: three processes, or two members of a cluster on Redis."""
    directory = tmp_path_factory.mktemp("three")
    with contextlib.ExitStack() as stack:
        options: list[object] = ["--shards", 3, "--rpc", "127.0.0.1:0"]
        if request.param == "redis":
            redis = RedisServer(directory / "redis", "appendonly yes", "appendfsync always")
            stack.callback(redis.kill)
            options += ["--store", redis.url, "--processes", 2]
        yield stack.enter_context(sharded(directory / "data", *options))
