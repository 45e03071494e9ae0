"""Polling: persistent while the server is in trouble, and ended by permanent errors."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Forbidden, NotFound, Unauthenticated
from tenantq.runtime.backoff import Backoff
from tenantq.worker import Worker
from tests.unit.worker.conftest import soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.client import Client
    from tenantq.testing import FakeServer

    Make = Callable[..., Worker]


async def test_a_worker_waits_for_a_missing_queue(
    make_worker: Make, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It processes the first message soon after the queue is created."""
    monkeypatch.setattr("tenantq.worker.poller._ABSENT_PAUSE_MS", 10)
    worker = make_worker()
    done = asyncio.Event()

    @worker.task("later")
    async def later(body: str) -> None:
        done.set()

    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0.05)
    async with server.async_client() as client:
        await client.queue("later").add("x")
        await asyncio.wait_for(done.wait(), 20)
    worker.stop()
    assert await serving


async def test_a_worker_survives_an_outage(server: FakeServer) -> None:
    """It continues when the server is back, and nothing is lost."""
    worker = Worker(server.settings(retries=1), wait_ms=1_000)
    done: list[str] = []

    @worker.task("mail")
    async def send(body: str) -> None:
        done.append(body)

    async with server.async_client() as client:
        queue = client.queue("mail")
        await queue.add("before")
        serving = asyncio.create_task(worker.serve())
        await soon(lambda: done == ["before"])
        with server.outage():
            await asyncio.sleep(0.3)
        await queue.add("after")
        await soon(lambda: "after" in done)
        worker.stop()
        assert await serving


def test_an_invalid_token_ends_the_worker_with_its_error(server: FakeServer) -> None:
    """It would otherwise silently do nothing."""
    worker = Worker(server.settings(token="tq_wrong"))  # noqa: S106  # of nobody
    worker.task("mail")(lambda _: None)
    with pytest.raises(Unauthenticated):
        worker.run()


async def test_a_wrong_url_is_logged_once(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not a missing queue, but a proxy may be repaired. A burst ends with the error."""
    monkeypatch.setattr("tenantq.worker.poller._BACKOFF", Backoff(1, 5))
    worker = Worker(msgspec.structs.replace(server.settings(), prefix="/v1"))
    worker.task("mail")(lambda _: None)
    serving = asyncio.create_task(worker.serve())
    await soon(lambda: "Check the address" in caplog.text)
    await asyncio.sleep(0.1)  # a few more polls
    worker.stop()
    assert await serving
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["ERROR"]
    assert "fake.invalid:80/v1" in caplog.text
    with pytest.raises(NotFound, match="unknown path"):
        await worker.serve(burst=True)


@pytest.mark.parametrize("burst", [False, True])
def test_a_key_that_may_not_poll_ends_the_worker(server: FakeServer, client: Client, *, burst: bool) -> None:
    """No poll ever succeeded, so the credential is wrong."""
    client.queue("mail").add("x")
    token = client.tenant("default").create_key("seller", role="producer").token
    worker = Worker(server.settings(token=token))
    worker.task("mail")(lambda _: None)
    with pytest.raises(Forbidden, match="action 'poll' on queue 'mail' is not allowed"):
        worker.run(burst=burst)


async def test_a_worker_survives_a_temporarily_revoked_permission(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs an error at once, and work continues when the permission is back."""
    monkeypatch.setattr("tenantq.worker.poller._BACKOFF", Backoff(1, 5))
    worker = Worker(server.settings(), wait_ms=100)
    done: list[str] = []
    worker.task("mail")(lambda message: done.append(message.text))
    client.queue("mail").add("1")
    serving = asyncio.create_task(worker.serve())
    await soon(lambda: done == ["1"])
    client.tenant("default").suspend("unpaid")
    await soon(lambda: "poll failed" in caplog.text)
    assert {one.levelname for one in caplog.records if "poll failed" in one.message} == {"ERROR"}
    client.tenant("default").resume()
    client.queue("mail").add("2")
    await soon(lambda: done == ["1", "2"])
    worker.stop()
    assert await serving
