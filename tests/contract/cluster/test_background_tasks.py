"""Background tasks that hit an internal error report it and continue; they never end unnoticed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster import link as link_module
from tenantq.cluster.link import Link
from tenantq.cluster.membership import Membership
from tenantq.cluster.peer_server import PeerServer
from tenantq.cluster.shard_thread import ShardThread
from tenantq.cluster.supervision.shard_process import ShardProcess
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.domain.cluster_view import Member
from tenantq.journal.exporter import Exporter
from tenantq.runtime.clock import SystemClock
from tenantq.server.telemetry import Telemetry
from tenantq.service.metrics.settings import TelemetrySettings
from tests.acceptance.collector import collecting
from tests.contract.cluster.hosts import client_of, hosting, registry_of, tenant_on
from tests.contract.cluster.test_members import pair, until
from tests.contract.cluster.test_tenant_moves import pin, wait_until_placed
from tests.contract.shards.sharded import supervised
from tests.redis_store.test_membership import Holder, Locks, NoLinks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.contract.cluster.hosts import SharedStore


def failing_first(method: Any, error: Exception) -> Callable[..., Any]:
    """Return a method that raises once, then does what ``method`` does."""
    errors = [error]

    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return await method(self, *arguments, **options)

    return call


class FaultyHolder(Holder):
    """Cannot open a shard the first time, for a reason that nobody expects."""

    failures = 0

    async def acquire(self, shard: int, is_assigned: Callable[[], bool]) -> None:
        if shard == 1 and not self.failures:
            self.failures += 1
            raise RuntimeError("can't start new thread")
        await super().acquire(shard, is_assigned)


async def test_shard_that_cannot_be_opened_is_reported(
    shared_store: SharedStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member opens its other shards, and retries."""
    monkeypatch.setattr("tenantq.cluster.membership.RETRY_MS", 1)
    registry = registry_of(shared_store, "faulty-holder")
    await asyncio.to_thread(registry.create, 2, ())
    holder = FaultyHolder("a", Locks())
    member = Membership(registry, holder, SystemClock(), Member(id="a", peer_address="a:1"), NoLinks())
    await member.start()
    await until(lambda: len(holder.owned()) == 2)
    await member.close()
    assert "shard 1 cannot be opened here" in caplog.text
    assert "can't start new thread" in caplog.text


async def test_link_reconnects_after_an_internal_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server becomes reachable again."""
    monkeypatch.setattr(link_module, "UNEXPECTED_S", 0.0)
    kind = type(asyncio.get_running_loop())
    monkeypatch.setattr(
        kind, "create_connection", failing_first(kind.create_connection, UnicodeError("label too long"))
    )
    up = asyncio.Event()

    async def begun(_: Link) -> None:
        up.set()

    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer("secret", {})
        await server.open(sock)
        link = Link("b", sock.getsockname()[1], ("secret", "a"), begun)
        link.start()
        await asyncio.wait_for(up.wait(), 20)
        await link.close()
        await server.close()
    assert "cannot connect to b" in caplog.text


async def test_move_is_reported_and_continues_after_an_internal_error(
    shared_store: SharedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator sees the reason in the log, and the tenant arrives."""
    monkeypatch.setattr(TenantMoves, "_move", failing_first(TenantMoves._move, RuntimeError("a bug in the copy")))
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "faulty-move")
        source, target = both.owned(0)[0], both.owned(1)[0]
        name = await tenant_on(both.clients[0], [source], "mover")
        await pin(both.clients[0], name, target)
        assert await wait_until_placed(both.clients[0], name) == target
    assert f"tenant {name} does not move to shard {target} yet" in caplog.text


async def test_shard_whose_thread_fails_is_released(
    shared_store: SharedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ownership is no longer renewed, so it can be opened again, here or elsewhere."""
    async with hosting(tmp_path, shared_store.url, "faulty-thread") as server:
        assert server.host is not None
        before = server.host.owned()[3]
        with monkeypatch.context() as fault:
            fault.setattr(ShardThread, "_finish_calls", failing_first(ShardThread._finish_calls, RuntimeError("a bug")))
            await server.host.release(3)
        host = server.host
        await until(lambda: host.owned().get(3, 0) > before)
    assert "shard 3 has stopped after an internal error" in caplog.text


async def test_export_that_cannot_start_is_reported(
    shared_store: SharedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the shard, which keeps serving."""
    monkeypatch.setattr(Exporter, "start", failing_first(Exporter.start, RuntimeError("a bug in the export")))
    async with hosting(tmp_path, shared_store.url, "faulty-export") as server, client_of(server) as client:
        await until(lambda: "does not export its journal" in caplog.text)
        assert (await client.get("/readyz")).status_code == 200


async def test_failed_process_restart_is_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with too many processes costs time, not a shard."""
    server = supervised(tmp_path / "data")
    try:
        assert await server.start(asyncio.Event()) is not None
        monkeypatch.setattr(
            ShardProcess, "spawn", failing_first(ShardProcess.spawn, BlockingIOError(11, "no more processes"))
        )
        lock = tmp_path / "data" / "shards" / "1" / "lock"
        killed = int(lock.read_text())
        os.kill(killed, signal.SIGKILL)
        await until(lambda: int(lock.read_text() or killed) != killed, 60)
        assert "no more processes" in caplog.text
        await server.stop()
    finally:
        server.kill()


async def test_process_with_an_invalid_report_counts_as_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a start would wait for it forever."""
    process = ShardProcess(0, [], None)
    program = "import os, sys, time; os.write(int(sys.argv[1]), b'nonsense\\n'); time.sleep(60)"
    startup: Any = type("Startup", (), {"descriptors": ()})
    await process.spawn([sys.executable, "-c", program], startup)
    try:
        await asyncio.wait_for(process.ready.wait(), 20)
        assert process.has_hung_up
    finally:
        process.kill()
        await process.ended()
    assert "reports something that is not a status" in caplog.text


async def test_metrics_are_exported_after_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    """One export is missing, and the log says why."""
    errors: list[Exception] = [ValueError("a bug in the scrape")]

    async def read(_reader: str) -> bytes:
        if errors:
            raise errors.pop()
        return b"# TYPE tenantq_up gauge\ntenantq_up 1\n"

    with collecting() as collector:
        settings = TelemetrySettings(otlp_endpoint=collector.url, traces=False, logs=False, metrics_interval_ms=100)
        telemetry = Telemetry(settings)
        telemetry.start_metrics(read)
        await until(lambda: bool(collector.requests))
        await telemetry.stop_metrics()
        await telemetry.close()
    assert "metrics are not exported this time" in caplog.text
