"""Signals, and shards that do not do as they are told: a server of several shards always ends, and says how."""

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


async def test_who_is_asked_to_stop_while_it_starts_does(tmp_path: Path) -> None:
    """At once and in good order, also while a shard has not been told yet what to do."""
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


async def test_a_shard_that_does_not_stop_is_killed_and_the_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands still for ever holds up the end for a bounded time; the others close in good order."""
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


def test_a_signal_to_a_shard_is_left_to_its_supervisor(three_processes: Sharded) -> None:
    """A service manager may send it to every process; a shard that obeyed by itself would be half there."""
    tenant = three_processes.tenant_on(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(three_processes.pid_of(1), number)
    for _ in range(10):
        assert three_processes.ask("GET", f"/v1/tenants/{tenant}", url=three_processes.shards[1]).status_code == 200


def test_a_shard_that_stands_still_costs_its_own_tenants_alone(three_processes: Sharded) -> None:
    """A second or three_processes, and it counts as down, with everything that one that died means; nobody waits for it, and it comes back by itself."""
    own, other = three_processes.tenant_on(2), three_processes.tenant_on(1)
    key, url = three_processes.key_of(other), three_processes.shards[0]
    stalled = three_processes.pid_of(2)
    os.kill(stalled, signal.SIGSTOP)
    try:
        assert three_processes.ask("GET", "/readyz", url=url).status_code == 200
        found = three_processes.ask("GET", "/v1/queues", url=url, token=key)
        assert found.status_code == 200  # who has the key says so, though not all have answered
        asked = (
            three_processes.ask("GET", "/v1/queues", url=url, token=ADMIN_TOKEN[::-1]),
            three_processes.ask("GET", f"/v1/tenants/{own}", url=url),
            three_processes.ask("PUT", "/v1/tenants/of-a-time-of-need", url=url, json={}),
        )
        assert [one.status_code for one in asked] == [503] * 3
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
