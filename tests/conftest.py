"""Fixtures: a clock that tests move, and shards on fresh directories that are closed in any case; and who runs which file."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # xdist has no types

from tenantq.runtime.clock import ManualClock
from tests.redis_servers import OnRedis, RedisServer
from tests.verbs import Shard

OpenShard = Callable[..., Awaitable[Shard]]
_SPARK = "tests/pipeline/"


class SparkInOneProcess(LoadFileScheduling):  # type: ignore[misc]  # as above
    """A file is run by one process; all that need Spark by the same one, so that Java starts, and gets quick, once."""

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid.startswith(_SPARK) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SparkInOneProcess:
    """Share the tests out by file."""
    return SparkInOneProcess(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: else one process still works on it when the other has nothing left."""
    items.sort(key=lambda item: not item.nodeid.startswith(_SPARK))


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes when told to."""
    return ManualClock()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the whole contract be run on one store."""
    parser.addoption("--store", choices=["rocksdb", "redis"], help="run the contract on this store only, and all of it")


@pytest.fixture(scope="module")
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store shards are opened on."""
    return getattr(request, "param", "rocksdb")


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis server for all tests of this process, without persistence. Other tests leave keys in it."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), "appendonly no")
    yield server
    server.kill()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """Return the shared Redis server, emptied for this test."""
    redis_process.client().flushall()
    return redis_process


@pytest.fixture
async def open_shard(
    tmp_path: Path, clock: ManualClock, store_kind: str, request: pytest.FixtureRequest
) -> AsyncIterator[OpenShard]:
    """Open a shard on a directory of the test's own, on the manual clock unless told otherwise."""
    opened: list[Shard] = []
    server: RedisServer | None = request.getfixturevalue("redis_process") if store_kind == "redis" else None

    async def open_one(name: str = "data", **options: object) -> Shard:
        options = {"clock": clock, "randomness": random.Random(7), **options}
        if server is not None:
            options.setdefault("open_store", OnRedis(server, tmp_path / name))
        shard = Shard(tmp_path / name, **options)  # type: ignore[arg-type]
        await shard.open()
        opened.append(shard)
        return shard

    yield open_one
    for shard in opened:
        await shard.close()


@pytest.fixture
async def shard(open_shard: OpenShard) -> Shard:
    """One shard on the manual clock."""
    return await open_shard()
