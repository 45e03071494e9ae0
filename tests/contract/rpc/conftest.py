"""Fixtures: a whole server that listens for Cap'n Proto, and real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from tenantq.domain.access import Grant
from tenantq.rpc.kj_loop import kj_loop
from tenantq.service.call import Call
from tests.contract.http.real_server import ADMIN, real_server
from tests.contract.rpc.client import RpcClient

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.server import Server

Connect = Callable[..., Awaitable[RpcClient]]
MakeKey = Callable[..., Awaitable[str]]
Serve = Callable[..., Awaitable["Server"]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on the standard event loop and on uvloop."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start servers with the test's own settings; KJ's loop runs for them and for the clients."""
    servers: list[Server] = []

    async def serve_one(**given: Any) -> Server:
        server = real_server(tmp_path / f"data-{len(servers)}", rpc="127.0.0.1:0", **given)
        servers.append(server)
        await server.start()
        return server

    async with kj_loop():
        yield serve_one
        for server in servers:
            await server.close(grace_ms=0)


@pytest.fixture
async def server(serve: Serve) -> Server:
    """Start a server with default settings."""
    return await serve()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Open connections to a server, by default logged in as the administrator."""
    clients: list[RpcClient] = []

    async def connect_one(server: Server, token: str | None = ADMIN, **options: Any) -> RpcClient:
        assert server.rpc_port is not None
        client = await RpcClient.open(server.rpc_port, **options)
        clients.append(client)
        if token is not None:
            await client.login(token)
        return client

    yield connect_one
    for client in clients:
        client.close()


@pytest.fixture
async def make_key(server: Server) -> MakeKey:
    """Create a tenant if it does not exist, and a key of it."""

    async def make_one(tenant: str, role: str = "tenant-admin", **tenant_settings: Any) -> str:
        admin = Call(bearer=ADMIN)
        await server.service.tenants.put(admin, tenant, tenant_settings)
        return (await server.service.access.create_key(admin, tenant, "test", Grant(role=role))).token

    return make_one
