"""Signals and unresponsive shards: a server with several shards always ends, and its exit code says how."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from tenantq.cluster.supervision import supervisor
from tests.acceptance.command import ADMIN_TOKEN
from tests.contract.shards.sharded import supervised, until
from tests.processes import descendants

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.contract.shards.sharded import Sharded


async def test_server_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    """It stops at once and cleanly, even if a shard has not received its orders yet."""
    asked = asyncio.Event()
    asked.set()
    before = descendants(os.getpid())  # servers that other tests share
    server = supervised(tmp_path / "data")
    try:
        assert await server.start(asked) is None
        async with asyncio.timeout(30):
            assert await server.stop()
        assert descendants(os.getpid()) <= before
    finally:
        server.kill()


async def test_shard_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop takes a limited time, the exit code shows it, and the others close cleanly."""
    monkeypatch.setattr(supervisor, "DRAIN_EXTRA_MS", 300)
    monkeypatch.setattr(supervisor, "STALLED_MS", 300)
    before = descendants(os.getpid())  # servers that other tests share
    server = supervised(tmp_path / "data")
    try:
        assert await server.start(asyncio.Event()) is not None
        stalled = int((tmp_path / "data" / "shards" / "1" / "lock").read_text())
        os.kill(stalled, signal.SIGSTOP)
        async with asyncio.timeout(30):
            assert not await server.stop()
        assert descendants(os.getpid()) <= before
    finally:
        server.kill()


def test_shards_leave_signals_to_their_supervisor(three_processes: Sharded) -> None:
    """A service manager may signal every process; a shard that stopped alone would leave a partial server."""
    tenant = three_processes.tenant_on(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(three_processes.pid_of(1), number)
    for _ in range(10):
        assert three_processes.ask("GET", f"/v1/tenants/{tenant}", url=three_processes.shards[1]).status_code == 200


def test_stalled_shard_affects_only_its_own_tenants(three_processes: Sharded) -> None:
    """After a second or two it counts as down, nobody waits for it, and it recovers on its own."""
    own, other = three_processes.tenant_on(2), three_processes.tenant_on(1)
    key, url = three_processes.key_of(other), three_processes.shards[0]
    stalled = three_processes.pid_of(2)
    os.kill(stalled, signal.SIGSTOP)
    try:
        assert three_processes.ask("GET", "/readyz", url=url).status_code == 200
        found = three_processes.ask("GET", "/v1/queues", url=url, token=key)
        assert found.status_code == 200  # the shard that has the key answers, although not all do
        asked = (
            three_processes.ask("GET", "/v1/queues", url=url, token=ADMIN_TOKEN[::-1]),
            three_processes.ask("GET", f"/v1/tenants/{own}", url=url),
            three_processes.ask("PUT", "/v1/tenants/of-a-time-of-need", url=url, json={}),
        )
        assert [one.status_code for one in asked] == [503, 503, 201]  # no shard has the last one
        assert three_processes.get("/readyz", url=url)["details"]["shards"]["2"]["status"] == "down"
        assert 'tenantq_shard_up{shard="2"} 0' in three_processes.ask("GET", "/metrics", url=url).text
        assert three_processes.ask("GET", f"/v1/tenants/{other}", url=url).status_code == 200
    finally:
        os.kill(stalled, signal.SIGCONT)
    until(
        lambda: all(
            three_processes.ask("GET", f"/v1/tenants/{own}", url=one).status_code == 200
            for one in three_processes.shards
        )
    )
    until(lambda: all(one["ready"] for one in three_processes.get("/readyz", url=url)["details"]["shards"].values()))
    assert three_processes.pid_of(2) == stalled
