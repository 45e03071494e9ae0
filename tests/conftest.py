"""Fixtures: a manual clock, and shards on fresh directories. Also distributes test files over processes."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # xdist has no types

from tenantq.runtime.clock import ManualClock
from tests.postgres_servers import OnPostgres, PostgresServer
from tests.redis_servers import OnRedis, RedisServer
from tests.verbs import Shard

OpenShard = Callable[..., Awaitable[Shard]]
_LANES: Final = (
    ("tests/pipeline/", "tests/sources/test_spark_engine.py"),
    (
        "tests/contract/cluster/",
        "tests/redis_store/",
        "tests/postgres_store/",
        "tests/remote_store/",
        "tests/crash/test_cluster_chaos.py",
        "tests/crash/test_moves.py",
        "tests/acceptance/test_serve_on_",
    ),
)
"""Tests that run in one process: those that share a Spark session, and those that mostly wait for leases and servers."""

# Tests start hundreds of processes, which would compile the program each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Examples take longer on a busy machine, and no test may depend on time.
settings.register_profile("untimed", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def _lane(nodeid: str) -> int:
    return next((number for number, paths in enumerate(_LANES) if nodeid.startswith(paths)), len(_LANES))


class LaneScheduling(LoadFileScheduling):  # type: ignore[misc]  # as above
    """Runs each file in one process, and each lane in one, so that Java starts once and waiting tests keep no core idle."""

    def _split_scope(self, nodeid: str) -> str:
        lane = _lane(nodeid)
        return f"lane {lane}" if lane < len(_LANES) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LaneScheduling:
    """Distribute the tests by file and lane."""
    return LaneScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the lanes, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: _lane(item.nodeid))


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that only tests advance."""
    return ManualClock()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that runs the whole contract on one store."""
    parser.addoption(
        "--store", choices=["rocksdb", "redis", "postgres"], help="run the whole contract suite, on this store only"
    )


@pytest.fixture(scope="module")
def store_kind(request: pytest.FixtureRequest) -> str:
    """Return the store that shards are opened on."""
    return getattr(request, "param", "rocksdb")


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run one Redis server without persistence for all tests of this process. Other tests leave keys in it."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), "appendonly no")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres_process() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of this process, which does not sync. Other tests leave schemas in it."""
    server = PostgresServer("fsync=off")
    yield server
    server.stop()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """Return the shared Redis server, emptied for this test."""
    redis_process.client().flushall()
    return redis_process


def remote_opener(kind: str, request: pytest.FixtureRequest) -> Callable[[Path], OnRedis | OnPostgres] | None:
    """Return what opens a shard of a directory on the store under test; None: it is embedded."""
    if kind == "rocksdb":
        return None
    server: RedisServer | PostgresServer = request.getfixturevalue(f"{kind}_process")
    return functools.partial(OnRedis if kind == "redis" else OnPostgres, server)


@pytest.fixture
async def open_shard(
    tmp_path: Path, clock: ManualClock, store_kind: str, request: pytest.FixtureRequest
) -> AsyncIterator[OpenShard]:
    """Open a shard in the test's own directory, by default on the manual clock."""
    opened: list[Shard] = []
    remote = remote_opener(store_kind, request)

    async def open_one(name: str = "data", **options: object) -> Shard:
        options = {"clock": clock, "randomness": random.Random(7), **options}
        if remote is not None:
            options.setdefault("open_store", remote(tmp_path / name))
        shard = Shard(tmp_path / name, **options)  # type: ignore[arg-type]
        await shard.open()
        opened.append(shard)
        return shard

    yield open_one
    for shard in opened:
        await shard.close()


@pytest.fixture
async def shard(open_shard: OpenShard) -> Shard:
    """Open one shard on the manual clock."""
    return await open_shard()
