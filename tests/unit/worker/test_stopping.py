"""Stopping takes no longer than allowed, whatever handlers and the server do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from tests.unit.worker.conftest import soon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from tenantq.testing import FakeServer
    from tenantq.worker import Worker

    Make = Callable[..., Worker]


@contextlib.contextmanager
def silence(server: FakeServer) -> Iterator[None]:
    """Make the server leave requests unanswered inside the block, without closing connections."""
    assert server._loop_thread is not None
    go = threading.Event()

    def hang() -> None:
        go.wait(60)

    server._loop_thread.soon(hang)
    try:
        yield
    finally:
        go.set()


async def test_a_handler_that_ignores_cancellation_is_abandoned(
    make_worker: Make, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is available to others, and the stop reports that it has not finished."""
    worker = make_worker(drain_ms=10)
    begun, go = asyncio.Event(), asyncio.Event()

    @worker.task("stubborn")
    async def stubborn(body: str) -> None:
        begun.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async with server.async_client() as client:
        await client.queue("stubborn").add("x")
        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        worker.stop()
        async with asyncio.timeout(10):
            assert not await serving
        assert "stubborn: the handler ignores its cancellation" in caplog.text
        (again,) = await client.queue("stubborn").poll()
        assert again.attempt == 1
    go.set()


PROGRAM = """
import asyncio
from tenantq.testing import FakeServer
from tenantq.worker import Worker
with FakeServer() as server:
    worker = Worker(server.settings(), drain_ms=10)
    @worker.task("stubborn")
    async def stubborn(body: str) -> None:
        print("begun", flush=True)
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass
    stubborn.add("x")
    clean = worker.run()
    print("clean" if clean else "cut", server.client().queue("stubborn").stats().ready, flush=True)
    worker.close()
"""


def test_a_signal_ends_a_process_whose_handler_ignores_cancellation() -> None:
    """The event loop does not wait for it either."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        try:
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert out.split() == ["cut", "1"]
    assert process.returncode == 0


async def test_an_unresponsive_server_does_not_delay_a_stop(make_worker: Make, server: FakeServer) -> None:
    """Messages that could not be released return when their leases end. A forced stop hardly waits."""
    loop = asyncio.get_running_loop()
    took: dict[bool, float] = {}
    for force in (False, True):
        worker = make_worker(drain_ms=3_600_000 if force else 10, concurrency=1, prefetch=1)
        begun = asyncio.Event()

        async def slow(message, begun: asyncio.Event = begun) -> None:  # type: ignore[no-untyped-def]  # it takes the message
            begun.set()
            await asyncio.sleep(3_600)

        worker.task("slow")(slow)
        async with server.async_client() as client:
            await client.queue("slow").add_many(["x", "y", "z"])
        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        with silence(server):
            started = loop.time()
            worker.stop(force=force)
            assert not await serving
            took[force] = loop.time() - started
    assert took[False] < 8  # of the 63 s and more that a client would wait
    assert took[True] < 4


async def test_timed_out_threads_get_the_drain_time(make_worker: Make, server: FakeServer) -> None:
    """One that ends within it has finished, although too late for its message."""
    worker = make_worker(drain_ms=60_000)
    go = threading.Event()

    @worker.task("slow", timeout_ms=20)
    def slow(body: str) -> None:
        go.wait(30)

    async with server.async_client() as client:
        await client.queue("slow").add("x")
        serving = asyncio.create_task(worker.serve())
        while not (await client.queue("slow").stats()).nacked_total:  # noqa: ASYNC110  # the server tells when it is asked
            await asyncio.sleep(0.005)
        worker.stop()
        await asyncio.sleep(0.05)
        assert not serving.done()
        go.set()
        assert await serving


def test_a_worker_releases_its_messages_when_its_program_ends(make_worker: Make, server: FakeServer) -> None:
    """All tasks on the loop are cancelled, including the handlers; no attempt is used."""
    worker = make_worker(drain_ms=10)

    async def program() -> None:
        begun = asyncio.Event()

        @worker.task("loop")
        async def on_loop(body: str) -> None:
            begun.set()
            await asyncio.sleep(3_600)

        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        assert not serving.done()

    queue = server.client().queue("loop")
    queue.add("x")
    asyncio.run(program())
    assert (queue.stats().ready, queue.stats().nacked_total) == (1, 0)


async def test_a_stop_before_the_start_takes_effect(make_worker: Make, server: FakeServer) -> None:
    """The worker ends as soon as it runs, and only once."""
    worker = make_worker()
    done: list[str] = []
    worker.task("mail")(lambda message: done.append(message.text))
    async with server.async_client() as client:
        await client.queue("mail").add("x")
    serving = asyncio.create_task(worker.serve())
    worker.stop()  # before the task has taken its first step
    async with asyncio.timeout(10):
        assert await serving
    serving = asyncio.create_task(worker.serve())
    await soon(lambda: done == ["x"])
    worker.stop()
    assert await serving
