"""The same suite against the fake of ``tenantq.testing`` and a real server over a socket. Tests move both clocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tenantq.client import AsyncClient, Client, Settings
from tenantq.client.loop_thread import LoopThread
from tenantq.client.settings import Retries, Tls, parse
from tenantq.server import Server
from tenantq.settings import ServerSettings
from tenantq.testing import ADMIN_TOKEN, FakeClock, FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ServerUnderTest(Protocol):
    """What the suite needs from a server."""

    clock: FakeClock

    def settings(self, tenant: str | None = None, *, role: str = "tenant-admin", **options: Any) -> Settings:
        """Return client settings for it."""


class RealServer:
    """A server as ``tenantq serve`` runs it, over a socket, syncing to disk, on a movable clock."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self._settings = ServerSettings(data_dir=str(directory), http="127.0.0.1:0", grace_ms=1_000)
        self._loop_thread = LoopThread.start("tenantq-real-server")

    def start(self) -> None:
        """Serve."""
        self._loop_thread.run(self._open())
        self.clock.attach(self._loop_thread.run, self._settled)

    def stop(self) -> None:
        """Stop."""
        self._loop_thread.run(self._server.close())
        self._loop_thread.stop()

    async def _open(self) -> None:
        self._server = Server(self._settings, admin_token=ADMIN_TOKEN, clock=self.clock)
        await self._server.start()

    async def _settled(self) -> None:
        shard = self._server.shard
        while True:
            await asyncio.sleep(0)
            await shard.loop._idle.wait()
            if not shard.loop._step_scheduled and not shard.state.lines:
                return

    def settings(self, tenant: str | None = None, *, role: str = "tenant-admin", **options: Any) -> Settings:
        """Return client settings for it, with a token of the platform administrator or of a role in a tenant."""
        token = options.pop("token", ADMIN_TOKEN)
        if tenant is not None:
            with Client(settings=self.settings()) as admin:
                admin.tenant(tenant).configure()
                token = admin.tenant(tenant).create_key(role, role=role).token
        arguments: dict[str, Any] = {
            "timeout_ms": 10_000,
            "connect_timeout_ms": 5_000,
            "retries": Retries(),
            "connections": 32,
            "coalesce": True,
            "tls": Tls(),
            **options,
        }
        return parse(f"http://127.0.0.1:{self._server.port}", token, **arguments)


@pytest.fixture(params=["fake", "real"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerUnderTest]:
    """Return one server of each kind."""
    started: FakeServer | RealServer = FakeServer() if request.param == "fake" else RealServer(tmp_path / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def client(server: ServerUnderTest) -> Iterator[Client]:
    """Return a blocking client of the platform administrator."""
    with Client(settings=server.settings()) as client:
        yield client


@pytest.fixture
def async_settings(server: ServerUnderTest) -> Settings:
    """Return the settings of an asynchronous client of the platform administrator."""
    return server.settings()


def open_async(settings: Settings) -> AsyncClient:
    """Return an asynchronous client; use it with ``async with``."""
    return AsyncClient(settings=settings)
