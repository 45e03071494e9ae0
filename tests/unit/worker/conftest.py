"""A fake server for workers, and fast settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.testing import FakeServer
from tenantq.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenantq.client import Client


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Run a server in this process."""
    with FakeServer() as server:
        yield server


@pytest.fixture
def client(server: FakeServer) -> Client:
    """Return a client with an administrator's key."""
    return server.client()


@pytest.fixture
def make_worker(server: FakeServer) -> Iterator[Callable[..., Worker]]:
    """Create workers for that server and close what they opened."""
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        worker = Worker(server.settings(), **options)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.close()


async def soon(condition: Callable[[], bool]) -> None:
    """Wait until something has happened on another thread or over the network."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # no event of this loop tells of it
            await asyncio.sleep(0.005)
