"""The blocking client: one event-loop thread, any number of calling threads, and clear errors where it cannot be used."""

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
def test_the_blocking_and_async_clients_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    """With the same parameters in the same order."""
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


def test_public_names_exist_and_are_sorted() -> None:
    """Every name in ``__all__`` can be imported."""
    assert public.__all__ == sorted(public.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(public, name) for name in public.__all__)


def test_calls_of_many_threads_share_requests(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty adds from forty threads take fewer than forty requests."""
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


def test_iterables_are_consumed_in_the_calling_thread(server: FakeServer) -> None:
    """Database cursors need that. The iterable may itself call the client."""
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


def test_calls_of_a_closed_client_raise_closed(server: FakeServer) -> None:
    """Queues and messages that came from it raise it too."""
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
    """A call that waits at the server ends with Closed."""
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


def test_calls_on_a_stopping_loop_thread_raise_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that arrives just after the stop does not wait forever either."""
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
    monkeypatch.setattr(loop_thread, "refusal", lambda: None)  # as if it had been asked just before the stop
    with pytest.raises(Closed):
        loop_thread.run(endless())


def test_a_client_lives_as_long_as_its_queues_and_messages(server: FakeServer) -> None:
    """When the last of them is collected, its thread ends."""
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


def test_a_message_block_raises_its_own_error_if_the_client_is_closed(server: FakeServer) -> None:
    """That the message could not be released is only logged."""
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


def test_queues_can_be_requested_from_many_threads(server: FakeServer) -> None:
    """Also for more queues than the registry keeps."""
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


def test_a_blocking_call_on_the_loop_thread_is_refused(server: FakeServer) -> None:
    """It would deadlock; the error says to use the asynchronous client."""
    client = server.client()

    async def inside() -> None:
        client.queue("mail").add("x")

    with pytest.raises(Invalid, match="asynchronous"):
        client._loop_thread.run(inside())


def test_a_client_created_before_a_fork_is_refused_in_the_child(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread exists only in the parent."""
    client = server.client()
    real = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: real + 1)
        with pytest.raises(Invalid, match="fork"):
            client.queue("mail").add("x")
    client.queue("mail").add("x")


def test_the_thread_of_an_unreferenced_client_ends(server: FakeServer) -> None:
    """Closing the client is optional."""
    client = Client(settings=server.settings())
    client.queue("mail").add("x")
    thread = client._loop_thread._thread
    watched = weakref.ref(client)
    del client
    gc.collect()
    assert watched() is None
    thread.join(10)
    assert not thread.is_alive()


def test_results_can_be_iterated_partially(server: FakeServer) -> None:
    """Leaving the loop early leaves no task running."""
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


def test_the_fake_server_can_simulate_an_outage(server: FakeServer) -> None:
    """So programs can test how they react to one."""
    hasty = server.client(retries=0)
    with server.outage(), pytest.raises(Exception, match="cannot connect"):
        hasty.queue("mail").add("x")
    hasty.queue("mail").add("x")


def test_a_stopped_fake_server_leaves_nothing_behind() -> None:
    """Its directory is removed, its thread ends and its clients are closed."""
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
    """It would be split into characters."""
    queue = server.client().queue("mail")
    for body in ("hello", b"hello"):
        with pytest.raises(Invalid, match="Use add for one message"):
            queue.add_many(body)
    queue.add_many(["one"])
    assert [message.text for message in queue.poll(10)] == ["one"]


def test_settle_refuses_an_unknown_operation(server: FakeServer) -> None:
    """Nothing is sent."""
    with pytest.raises(Invalid, match="how: must be ack"):
        server.client().queue("mail").settle("acknowledge", ["receipt"])  # type: ignore[arg-type]  # deliberately wrong


def test_a_refused_connection_has_the_systems_error_text() -> None:
    """The representation of a fleet shows its queue and tenants."""
    with Client("http://127.0.0.1:1", retries=0) as client:
        with pytest.raises(ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
            client.health()
        assert repr(client.fleet("mail", tenants=["acme"])) == "<Fleet mail of acme>"


def test_help_names_the_blocking_types() -> None:
    """A blocking poll returns Message, not AsyncMessage."""
    assert inspect.signature(Queue.poll).return_annotation == "list[Message]"
    assert list(inspect.signature(Queue.poll).parameters) == list(inspect.signature(AsyncQueue.poll).parameters)
