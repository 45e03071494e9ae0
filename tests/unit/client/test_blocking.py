"""The blocking face: one thread behind it, any number in front, and plain words where it cannot be used."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tenantq import client as public
from tenantq.client import (
    AsyncClient,
    AsyncFleet,
    AsyncMessage,
    AsyncQueue,
    AsyncTenant,
    Client,
    Fleet,
    Message,
    Queue,
    Tenant,
)
from tenantq.client.connection_pool import ConnectionPool
from tenantq.client.loop_thread import LoopThread
from tenantq.errors import Closed, ConnectionFailed, Invalid
from tenantq.testing import FakeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tenantq.client.connection_pool import ApiRequest
    from tenantq.client.http_connection import HttpReply

T = TypeVar("T")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Run a fake server."""
    with FakeServer() as server:
        yield server


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [(Client, AsyncClient), (Queue, AsyncQueue), (Tenant, AsyncTenant), (Fleet, AsyncFleet), (Message, AsyncMessage)],
)
def test_both_faces_have_the_same_calls_with_the_same_arguments(blocking: type, asynchronous: type) -> None:
    """What one can do, the other can."""
    inner = {
        "ordered_adds",
        "finish",
        "start_heartbeat",
        "stop_heartbeat",
        "start_batch_ack",
        "finish_batch_ack",
        "lease_state",
        "tracing",
    }
    names = {name for name in dir(asynchronous) if not name.startswith("_")} - inner
    assert names <= {name for name in dir(blocking) if not name.startswith("_")}
    for name in names:
        ours, theirs = getattr(blocking, name), getattr(asynchronous, name)
        if inspect.isfunction(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
            assert ours.__doc__, name


def test_the_list_of_public_names_is_true() -> None:
    """Everything is there, in order."""
    assert public.__all__ == sorted(public.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(public, name) for name in public.__all__)


def test_calls_of_many_threads_go_out_together(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty threads, one client, few requests."""
    requests = 0
    send = ConnectionPool.send

    async def counted(self: ConnectionPool, request: ApiRequest[Any]) -> HttpReply:
        nonlocal requests
        requests += 1
        return await send(self, request)

    client = server.client()
    queue = client.queue("mail")
    queue.configure()
    monkeypatch.setattr(ConnectionPool, "send", counted)
    start = threading.Barrier(40)

    def add(number: int) -> str:
        start.wait()
        return queue.add(f"{number}").id

    with ThreadPoolExecutor(40) as threads:
        ids = set(threads.map(add, range(40)))
    assert len(ids) == 40
    assert requests < 40


def test_what_a_caller_iterates_is_iterated_in_its_own_thread(server: FakeServer) -> None:
    """Cursors of databases want that; and whoever is slow, or asks the client meanwhile, holds nobody up."""
    queue = server.client().queue("mail")
    threads: list[threading.Thread] = []

    def noted(items: Iterable[T]) -> Iterator[T]:
        for item in items:
            threads.append(threading.current_thread())
            queue.add("meanwhile")
            yield item

    added = queue.add_many(noted(["a", "b"]))
    assert all(one.error is None for one in added)
    messages = queue.poll(10)
    assert queue.settle("extend", noted([one.receipt for one in messages]), lease_ms=60_000)
    queue.ack_many(noted(messages))
    for message in queue.poll(10):
        message.ack("done")
    assert list(queue.iter_results(noted([]), timeout_ms=1)) == []
    assert set(threads) == {threading.current_thread()}


def test_a_closed_client_says_so(server: FakeServer) -> None:
    """As often as it is asked."""
    client = server.client()
    queue = client.queue("mail")
    with client:
        queue.add("x")
        (message,) = queue.poll()
    for call in (queue.stats, message.ack, client.health):
        with pytest.raises(Closed):
            call()
    client.close()


@pytest.mark.parametrize("kind", ["poll", "fleet", "result", "wait_result", "iter_results"])
def test_closing_ends_a_call_of_another_thread(server: FakeServer, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that waits at the server is waited for, and whoever waits learns why."""
    client = server.client()
    queue = client.queue("mail")
    other = client.queue("other")
    id = queue.add("x").id
    other.configure()
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: other.poll(wait_ms=60_000),
        "fleet": lambda: client.fleet("other").poll(wait_ms=60_000),
        "result": lambda: queue.result(id, wait_ms=60_000),
        "wait_result": lambda: queue.wait_result(id),
        "iter_results": lambda: list(queue.iter_results([id])),
    }
    sent = threading.Event()
    send = ConnectionPool.send

    async def noted(self: ConnectionPool, request: ApiRequest[Any]) -> HttpReply:
        asyncio.get_running_loop().call_soon(sent.set)
        return await send(self, request)

    monkeypatch.setattr(ConnectionPool, "send", noted)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(calls[kind])
        sent.wait()
        client.close()
        with pytest.raises(Closed):
            call.result(10)


def test_what_is_on_the_loop_as_it_ends_or_comes_just_after_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for a thread that has gone."""
    loop_thread = LoopThread.start()
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(loop_thread.run, endless())
        begun.wait()
        loop_thread.stop()
        with pytest.raises(Closed):
            call.result(10)
    monkeypatch.setattr(loop_thread, "refusal", lambda: None)  # as when it was asked for a moment too early
    with pytest.raises(Closed):
        loop_thread.run(endless())


def test_a_client_lives_as_long_as_anything_that_came_from_it(server: FakeServer) -> None:
    """Nobody has to keep it for its queue's sake, or its message's; then it goes."""
    queue = Client(settings=server.settings()).tenant("default").queue("mail")
    thread = queue._loop_thread._thread
    gc.collect()
    id = queue.add("x").id
    (message,) = Client(settings=server.settings()).queue("mail").poll()
    gc.collect()
    message.ack("done")
    results = Client(settings=server.settings()).queue("mail").iter_results([id])
    gc.collect()
    assert [result.text for result in results] == ["done"]
    del queue
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_block_in_which_the_client_was_closed_raises_what_was_raised_in_it(server: FakeServer) -> None:
    """That the message could not be given back is logged."""
    client = server.client()
    queue = client.queue("mail")
    queue.add("x")
    (message,) = queue.poll()

    def work() -> None:
        with message:
            client.close()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()


def test_any_number_of_threads_may_ask_for_queues(server: FakeServer) -> None:
    """More of them than are kept, and while calls are under way."""
    client = server.client(retries=0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask(number: int) -> None:
        for count in range(4_000):
            client.tenant(f"t{number}-{count}").queue("mail")

    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(8)))
    finally:
        sys.setswitchinterval(interval)


def test_its_own_thread_must_not_wait_for_itself(server: FakeServer) -> None:
    """A deadlock is refused with what to do instead."""
    client = server.client()

    async def inside() -> None:
        client.queue("mail").add("x")

    with pytest.raises(Invalid, match="asynchronous"):
        client._loop_thread.run(inside())


def test_a_client_made_before_a_fork_is_refused_in_the_child(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread has stayed with the parent."""
    client = server.client()
    real = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: real + 1)
        with pytest.raises(Invalid, match="fork"):
            client.queue("mail").add("x")
    client.queue("mail").add("x")


def test_a_forgotten_client_ends_its_thread(server: FakeServer) -> None:
    """Nobody has to remember to close it."""
    client = Client(settings=server.settings())
    client.queue("mail").add("x")
    thread = client._loop_thread._thread
    watched = weakref.ref(client)
    del client
    gc.collect()
    assert watched() is None
    thread.join(10)
    assert not thread.is_alive()


def test_results_can_be_iterated_and_left_early(server: FakeServer) -> None:
    """Whoever breaks off leaves nothing running."""
    client = server.client()
    queue = client.queue("mail")
    ids = [queue.add(f"{n}").id for n in range(30)]
    for message in queue.poll(30):
        message.ack(message.text)
    assert sorted(int(result.text) for result in queue.iter_results(ids)) == list(range(30))
    for result in queue.iter_results([*ids, queue.add("never").id]):
        assert result.done
        break
    assert not [task for task in asyncio.all_tasks(client._loop_thread.loop) if "wait_result" in repr(task)]


def test_the_fake_can_be_out_of_reach(server: FakeServer) -> None:
    """For tests of what a program does then."""
    hasty = server.client(retries=0)
    with server.outage(), pytest.raises(Exception, match="cannot connect"):
        hasty.queue("mail").add("x")
    hasty.queue("mail").add("x")


def test_a_fake_that_is_stopped_is_gone() -> None:
    """Its directory, its thread, its clients."""
    server = FakeServer()
    with pytest.raises(Closed):
        server.clock.advance(1)
    server.start()
    client = server.client()
    client.queue("mail").add("x")
    directory = server._directory
    with pytest.raises(Invalid, match="already"):
        server.start()
    assert server._directory == directory
    assert directory is not None
    assert directory.exists()
    server.stop()
    assert not directory.exists()
    with pytest.raises(Closed):
        client.queue("mail").add("x")
    server.stop()


def test_add_many_refuses_a_single_body(server: FakeServer) -> None:
    """It would be divided into characters."""
    queue = server.client().queue("mail")
    for body in ("hello", b"hello"):
        with pytest.raises(Invalid, match="Use add for one message"):
            queue.add_many(body)
    queue.add_many(["one"])
    assert [message.text for message in queue.poll(10)] == ["one"]


def test_settle_refuses_an_unknown_operation(server: FakeServer) -> None:
    """Before anything is sent."""
    with pytest.raises(Invalid, match="how: must be ack"):
        server.client().queue("mail").settle("acknowledge", ["receipt"])  # type: ignore[arg-type]  # deliberately wrong


def test_a_refused_connection_is_named_by_the_system() -> None:
    """And a fleet shows its queue and tenants."""
    with Client("http://127.0.0.1:1", retries=0) as client:
        with pytest.raises(ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
            client.health()
        assert repr(client.fleet("mail", tenants=["acme"])) == "<Fleet mail of acme>"


def test_help_names_the_blocking_types() -> None:
    """A blocking poll returns Message, not AsyncMessage."""
    assert inspect.signature(Queue.poll).return_annotation == "list[Message]"
    assert list(inspect.signature(Queue.poll).parameters) == list(inspect.signature(AsyncQueue.poll).parameters)
