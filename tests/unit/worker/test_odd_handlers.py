"""Handlers and hooks that raise SystemExit or similar affect only their own message."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tenantq.client import Client
    from tenantq.client.received import Received
    from tenantq.worker import Worker

    Make = Callable[..., Worker]


def test_a_handler_that_raises_exit_or_cancellation_has_failed(
    make_worker: Make, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that cancels its own task. Each uses an attempt, and no message stays leased."""
    worker = make_worker(lease_ms=1_000)
    ran: list[str] = []

    @worker.task("odd", timeout_ms=60_000)
    async def odd(body: str) -> None:
        ran.append(body)
        task = asyncio.current_task()
        assert task is not None
        if body == "generator":
            raise GeneratorExit
        task.cancel()
        if body == "cancels itself":
            await asyncio.sleep(3_600)

    bodies = ["generator", "cancels itself", "is done before"]
    queue = client.queue("odd")
    queue.configure(max_attempts=1)
    queue.add_many(bodies)
    assert worker.run(burst=True)
    assert sorted(ran) == sorted(bodies)
    stats = queue.stats()
    assert (stats.in_flight, stats.ready, stats.acked_total) == (0, 0, 1)
    assert "the handler raised GeneratorExit()" in caplog.text
    assert "cancelled itself" in caplog.text
    assert "internal error in the worker" not in caplog.text


def test_hooks_that_exit_affect_only_their_message(make_worker: Make, client: Client) -> None:
    """Before a handler the message fails; afterwards nothing changes."""

    def leave(message: Received, *_: object) -> None:
        if message.text in ("before", "after"):
            sys.exit(3)

    worker = make_worker(concurrency=2, after=[leave])
    done: list[str] = []

    @worker.before
    def check(message: Received) -> None:
        if message.text == "before":
            sys.exit(3)

    @worker.task("mail", retry=lambda _, __: sys.exit(3))
    async def send(body: str) -> None:
        done.append(body)

    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.add_many(["before", "after", "fine"])
    assert worker.run(burst=True)
    assert sorted(done) == ["after", "fine"]
    assert (queue.stats().acked_total, queue.stats().in_flight) == (2, 0)
