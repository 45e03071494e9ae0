"""Running: bounded, never idle while there is work, and drained gracefully."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tenantq.client import AsyncClient, AsyncMessage, Client, Message
from tenantq.errors import Invalid, NotFound
from tenantq.worker import Worker, load_worker
from tests.unit.worker.conftest import soon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.testing import FakeServer

    Make = Callable[..., Worker]


def test_exactly_the_allowed_number_of_handlers_runs(make_worker: Make, client: Client) -> None:
    """Coroutines and threads share the slots, and no slot stays idle."""
    worker = make_worker(concurrency=4)
    running = most = done = 0
    lock = threading.Lock()
    full = threading.Barrier(2, timeout=10)  # two threads and two coroutines meet

    def enter(step: int) -> None:
        nonlocal running, most, done
        with lock:
            running += step
            most = max(most, running)
            done += step < 0

    @worker.task("threads")
    def in_thread(number: int) -> None:
        enter(1)
        full.wait()
        enter(-1)

    @worker.task("loop")
    async def on_loop(number: int) -> None:
        enter(1)
        await asyncio.sleep(0.001)
        enter(-1)

    client.queue("threads").add_many(range(20))
    client.queue("loop").add_many(range(40))
    assert worker.run(burst=True)
    assert done == 60
    assert most <= 4


def test_polls_lease_many_messages_at_a_time(make_worker: Make, client: Client) -> None:
    """A thousand quick messages take far fewer requests."""
    worker = make_worker(concurrency=50)
    done: list[int] = []

    @worker.task("quick")
    async def quick(number: int) -> None:
        done.append(number)

    client.queue("quick").add_many(range(1_000))
    worker.run(burst=True)
    assert sorted(done) == list(range(1_000))
    assert client.queue("quick").stats().acked_total == 1_000


async def test_stopping_lets_handlers_finish_and_releases_the_rest(make_worker: Make, server: FakeServer) -> None:
    """Running messages are acked; waiting ones are released at once and use no attempt."""
    worker = make_worker(concurrency=2, prefetch=2)
    go = asyncio.Event()
    begun = 0

    @worker.task("mail")
    async def send(body: str) -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    async with server.async_client() as client:
        queue = client.queue("mail")
        await queue.add_many(["a", "b", "c", "d"])
        serving = asyncio.create_task(worker.serve())
        await soon(lambda: begun == 2)
        worker.stop()
        while (await queue.stats()).in_flight > 2:  # noqa: ASYNC110  # the server tells when it is asked
            await asyncio.sleep(0.005)
        assert not serving.done()
        go.set()
        assert await serving
        stats = await queue.stats()
        assert (stats.acked_total, stats.ready, stats.in_flight) == (2, 2, 0)
        assert [message.attempt for message in await queue.poll(4)] == [1, 1]


async def test_messages_that_do_not_finish_in_time_are_released(make_worker: Make, server: FakeServer) -> None:
    """A coroutine is cancelled, a thread is abandoned, and both messages are available to others at once."""
    worker = make_worker(drain_ms=50)
    begun: list[str] = []
    go = threading.Event()

    @worker.task("loop")
    async def on_loop(body: str) -> None:
        begun.append(body)
        await asyncio.sleep(3_600)

    @worker.task("thread")
    def in_thread(body: str) -> None:
        begun.append(body)
        go.wait(30)

    async with server.async_client() as client:
        await client.queue("loop").add("x")
        await client.queue("thread").add("x")
        serving = asyncio.create_task(worker.serve())
        await soon(lambda: len(begun) == 2)
        worker.stop()
        assert not await serving
        for name in ("loop", "thread"):
            (again,) = await client.queue(name).poll()
            assert again.attempt == 1
    go.set()


async def test_a_forced_stop_does_not_wait(make_worker: Make, server: FakeServer) -> None:
    """Regardless of the drain time."""
    worker = make_worker(drain_ms=3_600_000)
    begun = asyncio.Event()

    @worker.task("loop")
    async def on_loop(body: str) -> None:
        begun.set()
        await asyncio.sleep(3_600)

    async with server.async_client() as client:
        await client.queue("loop").add("x")
        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        worker.stop()
        worker.stop(force=True)
        assert not await serving
        assert (await client.queue("loop").stats()).ready == 1


async def test_cancelling_serve_drains_as_well(make_worker: Make, server: FakeServer) -> None:
    """A worker inside a larger program releases its messages."""
    worker = make_worker(drain_ms=10)
    begun = asyncio.Event()

    @worker.task("loop")
    async def on_loop(body: str) -> None:
        begun.set()
        await asyncio.sleep(3_600)

    async with server.async_client() as client:
        await client.queue("loop").add("x")
        serving = asyncio.create_task(worker.serve())
        await begun.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert (await client.queue("loop").stats()).ready == 1


async def test_leases_are_extended_while_messages_are_held(make_worker: Make, server: FakeServer) -> None:
    """For running and waiting messages. In real time, because a worker uses its own clock."""
    worker = make_worker(concurrency=1, prefetch=1, lease_ms=1_000)
    go = asyncio.Event()
    attempts: list[int] = []

    @worker.task("slow")
    async def slow(message: AsyncMessage) -> None:
        attempts.append(message.attempt)
        await go.wait()

    async with server.async_client() as client:
        queue = client.queue("slow")
        await queue.add_many(["a", "b"])
        serving = asyncio.create_task(worker.serve())
        await soon(lambda: bool(attempts))
        await asyncio.sleep(1.3)
        go.set()
        await soon(lambda: len(attempts) == 2)
        worker.stop()
        assert await serving
        stats = await queue.stats()
        assert (attempts, stats.acked_total, stats.lease_expired_total) == ([1, 1], 2, 0)


def test_a_fleet_serves_all_tenants(make_worker: Make, client: Client) -> None:
    """Or the named ones. Each message is settled in its own tenant."""
    for name in ("acme", "bolt", "core"):
        client.tenant(name).configure()
        client.tenant(name).queue("mail").add_many(["x"] * 5)
    seen: dict[str, int] = {}

    def count(message: Message) -> None:
        seen[message.tenant] = seen.get(message.tenant, 0) + 1

    some = make_worker(fleet=True, tenants=["acme", "bolt"], concurrency=1)
    some.task("mail")(count)
    some.run(burst=True)
    assert seen == {"acme": 5, "bolt": 5}
    everyone = make_worker(fleet=True)
    everyone.task("mail")(count)
    everyone.enqueue("mail", "more", tenant="acme")
    everyone.run(burst=True)
    assert seen == {"acme": 6, "bolt": 5, "core": 5}
    assert client.tenant("core").queue("mail").stats().acked_total == 5


def test_a_worker_can_be_limited_to_some_of_its_queues(make_worker: Make, client: Client) -> None:
    """Another process can serve the others."""
    worker = make_worker(queues=["one"])
    seen: list[str] = []
    for name in ("one", "two"):
        worker.task(name)(lambda message: seen.append(message.queue))
        client.queue(name).add("x")
    worker.run(burst=True)
    assert seen == ["one"]
    wrong = make_worker(queues=["three"])
    wrong.task("one")(lambda _: None)
    with pytest.raises(Invalid, match="three"):
        wrong.run()


def test_arguments_are_checked(server: FakeServer) -> None:
    """The error names the argument, and nothing runs."""
    settings = server.settings()
    for options in ({"concurrency": 0}, {"prefetch": -1}, {"lease_ms": 10}, {"drain_ms": -1}, {"tenants": ["acme"]}):
        with pytest.raises(Invalid, match=next(iter(options))):
            Worker(settings, **options)
    with pytest.raises(Invalid, match="has no tasks"):
        Worker(settings).run()
    with pytest.raises(Invalid, match="url"):
        Worker("localhost")


async def test_a_worker_runs_once_at_a_time(make_worker: Make) -> None:
    """Two loops over one worker would share its limits."""
    worker = make_worker()
    worker.task("mail")(lambda _: None)
    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0.01)
    with pytest.raises(Invalid, match="already"):
        await worker.serve()
    worker.stop()
    await serving


def test_a_worker_is_created_from_a_url_or_any_client(server: FakeServer, client: Client) -> None:
    """It uses their settings with its own connections."""
    assert "127.0.0.1:7070" in repr(Worker())
    for source in (client, AsyncClient(settings=server.settings())):
        worker = Worker(source)
        worker.task("mail")(lambda _: None)
        client.queue("mail").add("x")
        worker.run(burst=True)
    assert client.queue("mail").stats().acked_total == 2


MODULE = """
from tenantq import Worker
worker = Worker("http://127.0.0.1:1")
class Shop:
    worker = worker
not_a_worker = 7
"""


def test_a_worker_is_found_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module of the working directory. Each mistake has a clear error."""
    (tmp_path / "shop_tasks.py").write_text(MODULE)
    (tmp_path / "shop_broken.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert isinstance(load_worker("shop_tasks:worker"), Worker)
    assert isinstance(load_worker("shop_tasks:Shop.worker"), Worker)
    for address in ("", "shop_tasks", "shop_tasks:", ":worker", "shop tasks:worker", "shop_tasks:wor-ker"):
        with pytest.raises(Invalid, match="module:name"):
            load_worker(address)
    with pytest.raises(NotFound, match="no module shop_absent"):
        load_worker("shop_absent:worker")
    with pytest.raises(NotFound, match="Its workers: worker"):
        load_worker("shop_tasks:wroker")
    with pytest.raises(Invalid, match="is a int"):
        load_worker("shop_tasks:not_a_worker")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_worker("shop_broken:worker")


PROGRAM = """
import logging, sys, threading, time
from tenantq.testing import FakeServer
from tenantq.worker import Worker
logging.basicConfig(format="%(message)s")
logging.getLogger("tenantq.worker").setLevel(logging.INFO)
with FakeServer() as server:
    worker = Worker(server.settings(), drain_ms=int(sys.argv[1]))
    @worker.task("slow")
    def slow(body: str) -> None:
        print("begun", flush=True)
        time.sleep(float(body))
        print("ended", flush=True)
    slow.add(sys.argv[2])
    clean = worker.run()
    print("clean" if clean else "cut", server.client().queue("slow").stats().ready, flush=True)
    worker.close()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(number: signal.Signals) -> None:
    """The running handler finishes, and the program continues after run()."""
    with _program("20000", "0.3") as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert out.split() == ["ended", "clean", "0"]
    assert process.returncode == 0


def test_a_second_signal_forces_the_stop() -> None:
    """A thread that would sleep for an hour does not delay it."""
    with _program("3600000", "3600") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "stopping" not in process.stderr.readline():  # two signals of one kind may be merged
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert out.split() == ["cut", "1"]


def _program(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process
