"""Fixtures: a listener on a fake service, a manual clock, raw clients. Every test runs on both kinds of event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, cast

import pytest
import uvloop

from tenantq.domain.signup import SignupSettings
from tenantq.http import HttpListener, HttpSettings
from tests.contract.http.fake_service import FakeService
from tests.contract.http.raw_client import RawClient
from tests.contract.http.real_server import real_server

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tenantq.server import Server
    from tenantq.service.service import Service

Connect = Callable[..., Awaitable[RawClient]]
Serve = Callable[..., Awaitable[HttpListener]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on the standard event loop and on uvloop."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def fake() -> FakeService:
    """Return a service without rules."""
    return FakeService()


@pytest.fixture
async def serve(fake: FakeService, clock: ManualClock) -> AsyncIterator[Serve]:
    """Start listeners with the test's own settings."""
    listeners: list[HttpListener] = []

    async def serve_one(**settings: int) -> HttpListener:
        listener = HttpListener(cast("Service", fake), HttpSettings(**settings), clock=clock)
        fake.include_metrics(listener.context.metrics)
        await listener.start("127.0.0.1", 0)
        listeners.append(listener)
        return listener

    yield serve_one
    for listener in listeners:
        closing = asyncio.ensure_future(listener.close())
        await asyncio.sleep(0)
        await listener.close()  # the second call forces
        await closing


@pytest.fixture
async def listener(serve: Serve) -> HttpListener:
    """Start a listener with default settings."""
    return await serve()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Start a whole server on the test's own directory."""
    async with real_server(tmp_path / "data", signups=SignupSettings(enabled=True)) as server:
        yield server


@pytest.fixture
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Open raw connections to a listener."""
    clients: list[RawClient] = []

    async def connect_one(listener: HttpListener, tls: ssl.SSLContext | None = None) -> RawClient:
        client = await RawClient.open(listener.port, tls)
        clients.append(client)
        return client

    yield connect_one
    for client in clients:
        await client.close()
