"""The store under test: contract tests run on RocksDB, and on others with ``--store``. Some always run on several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tenantq.engine.shard import Shard
from tests.conftest import remote_opener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenantq.store.interface import Store

_HERE: Final = Path(__file__).parent

ON_REDIS: Final = (
    "encryption/test_messages.py",
    "gates/test_concurrency.py",
    "gates/test_isolation.py",
    "http/test_real_server.py",
    "sqs/test_messages.py",
)
"""Files that run on Redis in every run, besides those in this directory, which are about the engine."""

ON_POSTGRES: Final = (
    "test_erasure.py",
    "test_groups.py",
    "test_leases.py",
    "test_snapshots.py",
    "gates/test_isolation.py",
    "cluster/test_spread_limits.py",
)
"""Files that run on PostgreSQL in every run."""

ROCKSDB_ONLY: Final = {
    "backup": "remote stores are backed up with their own tools, and tenantq refuses to",
    "encryption/test_damaged_keys.py": "damages its files and restores a backup",
    "encryption/test_missing_data_keys.py": "restores a backup",
    "encryption/test_nothing_leaks.py": "reads its files; tests/redis_store/test_durability.py reads those of Redis",
    "sqs/test_restored.py": "restores a backup",
    **dict.fromkeys(
        [
            f"http/test_{name}.py"
            for name in ("bad_input", "connection_limits", "replies", "requests", "slow_clients", "tls")
        ],
        "has a fake service, and no store",
    ),
}
"""Files and directories that are not run on remote stores, and why. Single tests are marked ``rocksdb_only``."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on the requested store, or on the stores that it uses by default."""
    path, marked = metafunc.definition.path, metafunc.definition.get_closest_marker
    kind, name = metafunc.config.getoption("--store"), path.relative_to(_HERE).as_posix()
    here_only = ROCKSDB_ONLY.get(name) or ROCKSDB_ONLY.get(path.parent.name)
    if (mark := marked("rocksdb_only")) is not None:
        (here_only,) = mark.args
    if kind == "redis" and (mark := marked("not_on_redis")) is not None:
        (here_only,) = mark.args
    if kind == "postgres" and "primaries" in metafunc.fixturenames:
        here_only = "uses a Redis Cluster"
    kinds: list[object] = [kind]
    if kind in {"redis", "postgres"} and here_only:
        kinds = [pytest.param(kind, marks=pytest.mark.skip(reason=here_only))]
    elif kind is None:
        kinds = ["redis" if name in ON_POSTGRES and path.parent.name == "cluster" else "rocksdb"]
        if not here_only:
            left_out = marked("redis_in_full") or marked("not_on_redis")
            kinds += ["redis"] if (path.parent == _HERE or name in ON_REDIS) and not left_out else []
            kinds += ["postgres"] if name in ON_POSTGRES else []
    if kinds != ["rocksdb"]:
        metafunc.parametrize("store_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def _store(store_kind: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Open shards without an explicit store on the one under test."""
    opener = remote_opener(store_kind, request)
    if opener is None:
        yield
        return

    async def open_remotely(shard: Shard, name: str) -> Store:
        return await opener(shard.path)(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shard, "_open_embedded", open_remotely)
        yield
    request.getfixturevalue(f"{store_kind}_process").clear()
