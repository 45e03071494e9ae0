"""Fixtures: a clock that tests move, and shards on fresh directories that are closed in any case; and who runs which file."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # xdist has no types

from tenantq.clock import ManualClock
from tenantq.engine.shard import Shard

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.fixture
async def open_shard(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenShard]:
    """Open a shard on a directory of the test's own, on the manual clock unless told otherwise."""
    opened: list[Shard] = []

    async def open_one(name: str = "data", **options: object) -> Shard:
        options = {"clock": clock, "randomness": random.Random(7), **options}
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
