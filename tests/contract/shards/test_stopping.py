"""Signals, and shards that do not do as they are told: a server of several shards always ends, and says how."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from tenantq.cli import exit_codes, supervisor
from tenantq.cli.supervisor import Supervisor
from tenantq.settings import OFF, ServerSettings
from tests.acceptance.command import ADMIN_TOKEN
from tests.processes import descendants

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.contract.shards.sharded import Sharded


def _supervisor(data_dir: Path) -> Supervisor:
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", rpc=OFF, grace_ms=0)
    return Supervisor(settings, 2, ADMIN_TOKEN)


async def test_who_is_asked_to_stop_while_it_starts_does(tmp_path: Path) -> None:
    """At once and in good order, also while a shard has not been told yet what to do."""
    asked = asyncio.Event()
    asked.set()
    others = descendants(os.getpid())  # of other tests
    server = _supervisor(tmp_path / "data")
    try:
        assert await server.start(asked) is None
        async with asyncio.timeout(30):
            assert await server.stop() == exit_codes.OK
        assert not descendants(os.getpid()) - others
    finally:
        server.kill()


async def test_a_shard_that_does_not_stop_is_killed_and_the_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands still for ever holds up the end for a bounded time; the others close in good order."""
    monkeypatch.setattr(supervisor, "DRAIN_EXTRA_MS", 300)
    monkeypatch.setattr(supervisor, "STALLED_MS", 300)
    others = descendants(os.getpid())
    server = _supervisor(tmp_path / "data")
    try:
        assert await server.start(asyncio.Event()) is not None
        stalled = int((tmp_path / "data" / "shards" / "1" / "lock").read_text())
        os.kill(stalled, signal.SIGSTOP)
        async with asyncio.timeout(30):
            assert await server.stop() == exit_codes.ERROR
        assert not descendants(os.getpid()) - others
    finally:
        server.kill()


def test_a_signal_to_a_shard_is_left_to_its_supervisor(three: Sharded) -> None:
    """A service manager may send it to every process; a shard that obeyed by itself would be half there."""
    tenant = three.tenant_on(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(three.pid_of(1), number)
    for _ in range(10):
        assert three.ask("GET", f"/v1/tenants/{tenant}", url=three.shards[1]).status_code == 200
