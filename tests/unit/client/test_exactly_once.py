"""Lost answers: adds happen once, settled messages stay settled, and the caller learns of an unknown outcome."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.client import AsyncClient, Retries
from tenantq.client.http_connection import HttpReply
from tenantq.client.ordered_adds import OrderedAdds
from tenantq.client.outgoing_message import prepare_message
from tenantq.client.queue_calls import LeaseSettlement, QueueCalls, QueueRegistry
from tenantq.client.session import ClientSession
from tenantq.domain.message import NewMessage
from tenantq.errors import (
    BadAnswer,
    Closed,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Invalid,
    LeaseLost,
    RateLimited,
    TenantqError,
    TooLarge,
)
from tenantq.runtime.clock import ManualClock
from tenantq.testing import FakeServer
from tests.unit.client.doubles import (
    ScriptedTransport,
    faulty_server,
    hang,
    make_session,
    make_settings,
    problem,
    reply,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenantq.client.connection_pool import ApiRequest


def lost() -> ConnectionFailed:
    """Return the error of a connection that broke after the request had gone out."""
    error = ConnectionFailed("lost")
    error.maybe_done = True
    return error


def added(request: ApiRequest[Any]) -> HttpReply:
    """Answer an add: every message has an ID and is a duplicate."""
    messages = msgspec.json.decode(request.body or b"")["messages"]
    return reply({"messages": [{"id": f"id-{one['body']}", "duplicate": True} for one in messages]})


def settled(*errors: str | None) -> HttpReply:
    """Answer a settling call: one error code, or none, per receipt."""
    return reply(
        {
            "results": [
                {"receipt": "r", "ok": error is None} | ({"error": {"code": error, "detail": "no"}} if error else {})
                for error in errors
            ]
        }
    )


def calls_over(*script: Any, **changes: Any) -> tuple[QueueCalls, ScriptedTransport]:
    """Return a queue's calls on a scripted transport."""
    session, transport = make_session(*script, **changes)
    return QueueCalls(session, "/v1/queues/mail", None, "mail"), transport


async def test_a_retried_add_is_the_same_request_with_the_same_key() -> None:
    """The server adds it once, and the retry is not reported as a duplicate."""
    calls, transport = calls_over(lost(), added)
    outcomes = await asyncio.gather(*(calls.add(prepare_message(NewMessage(body=f"{n}".encode()))) for n in range(3)))
    assert [(one.id, one.duplicate) for one in outcomes] == [(f"id-{n}", False) for n in range(3)]
    first, second = transport.requests
    assert first.body == second.body
    assert len(msgspec.json.decode(first.body or b"")["key"]) == 32


async def test_every_request_has_a_unique_key() -> None:
    """Two batches are never taken for one."""
    calls, transport = calls_over(added)
    for _ in range(2):
        await calls.add(prepare_message(NewMessage(body=b"same")))
    assert len({msgspec.json.decode(one.body or b"")["key"] for one in transport.requests}) == 2


async def test_a_callers_own_key_reports_duplicates() -> None:
    """It is sent with the message, in addition to the key of the request."""
    calls, transport = calls_over(added)
    assert (await calls.add(prepare_message(NewMessage(body=b"x", key="mine")))).duplicate
    (message,) = msgspec.json.decode(transport.requests[0].body or b"")["messages"]
    assert message["key"] == "mine"


@pytest.mark.parametrize("many", [False, True])
async def test_after_a_lost_answer_a_limit_does_not_split_the_batch(many: bool) -> None:  # noqa: FBT001
    """The same batch is retried until it succeeds; in parts it might be added twice."""
    busy = problem("rate_limited", 429, retry_after_ms=10)
    calls, transport = calls_over(lost(), busy, added)
    messages = [NewMessage(body=f"{n}".encode()) for n in range(3)]
    if many:
        await OrderedAdds(calls).send([prepare_message(message) for message in messages])
    else:
        await asyncio.gather(*(calls.add(prepare_message(message)) for message in messages))
    assert len({request.body for request in transport.requests}) == 1
    assert len(transport.requests) == 3


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("status", "kind"), [(409, Conflict), (413, TooLarge), (422, Invalid)])
async def test_after_a_lost_answer_a_refusal_does_not_split_the_batch(
    many: bool,  # noqa: FBT001
    status: int,
    kind: type[TenantqError],
) -> None:
    """The batch may have been added, so parts of it could be added again. Every error has ``maybe_done``."""
    calls, transport = calls_over(lost(), HttpReply(status, {}, b"<html>hm</html>"), added)
    messages = [prepare_message(NewMessage(body=f"{n}".encode())) for n in range(4)]
    work: list[Any] = [OrderedAdds(calls).send(messages)] if many else [calls.add(message) for message in messages]
    outcomes: list[Any] = await asyncio.gather(*work, return_exceptions=True)
    assert {type(one) for one in outcomes} == {kind}
    assert all(one.maybe_done for one in outcomes)
    assert len({request.body for request in transport.requests}) == 1


@pytest.mark.parametrize("status", [408, 425])
async def test_status_408_and_425_are_retried(status: int) -> None:
    """A proxy may send them; the same request with the same key may succeed."""
    calls, transport = calls_over(HttpReply(status, {}, b"<html>hm</html>"), added)
    await asyncio.gather(*(calls.add(prepare_message(NewMessage(body=f"{n}".encode()))) for n in range(4)))
    assert len({request.body for request in transport.requests}) == 1
    assert len(transport.requests) == 2


async def test_acks_that_may_be_done_are_not_split() -> None:
    """In another request the server would report their leases as lost."""
    calls, transport = calls_over(lost(), HttpReply(413, {}, b""), settled("lease_lost"))
    with pytest.raises(TooLarge) as caught:
        await calls.ack_batch([LeaseSettlement(f"r{n}", 1 << 60) for n in range(3)])
    assert caught.value.maybe_done
    assert len(transport.requests) == 2


async def test_an_unknown_outcome_is_reported() -> None:
    """A later limit or refusal does not mean that nothing was added."""
    busy = problem("rate_limited", 429, retry_after_ms=10)
    for answer, kind in ((busy, RateLimited), (problem("forbidden", 403), Forbidden)):
        calls, transport = calls_over(lost(), answer)
        outcomes = await asyncio.gather(
            *(calls.add(prepare_message(NewMessage(body=f"{n}".encode()))) for n in range(3)), return_exceptions=True
        )
        assert {type(one) for one in outcomes} == {kind}
        assert all(isinstance(one, TenantqError) and one.maybe_done for one in outcomes)
        assert len({request.body for request in transport.requests}) == 1


async def test_a_refusal_of_the_first_attempt_is_certain() -> None:
    """Nothing had been sent before."""
    calls, _ = calls_over(problem("forbidden", 403))
    with pytest.raises(Forbidden) as caught:
        await calls.add(prepare_message(NewMessage(body=b"x")))
    assert not caught.value.maybe_done


async def test_a_receipt_lost_after_a_lost_answer_counts_as_settled_within_the_lease() -> None:
    """Only the first attempt can have used it. If the lease may have ended, the outcome is unknown and the error says so."""
    for settle in ("ack", "nack", "release"):
        clock = ManualClock()
        session = ClientSession(
            make_settings(clock=clock, retries=Retries(count=1, base_ms=0)),
            ScriptedTransport(lost(), settled("lease_lost", "lease_lost"), lost(), settled("lease_lost")),
        )
        calls = QueueCalls(session, "/v1/queues/mail", None, "mail")
        now = clock.monotonic_ms()
        arguments: tuple[Any, ...] = (None, "reason") if settle == "nack" else ()

        def call(until_ms: int, how: str = settle, calls: QueueCalls = calls, more: tuple[Any, ...] = arguments) -> Any:
            return calls.settle((how, *more), LeaseSettlement("r", until_ms))

        work = asyncio.gather(call(now + 1), call(now), return_exceptions=True)
        await _let_pauses_pass(clock, work)
        sure, unsure = work.result()
        assert sure is None
        assert isinstance(unsure, LeaseLost)
        assert "may have settled" in unsure.__notes__[0]
        await session.close()


async def test_a_receipt_lost_at_the_first_attempt_is_lost() -> None:
    """No earlier attempt can have settled it."""
    calls, _ = calls_over(settled("lease_lost"))
    with pytest.raises(LeaseLost):
        await calls.settle(("ack",), LeaseSettlement("r", 1 << 60))


async def test_a_lease_lost_while_extending_is_lost() -> None:
    """Extending is idempotent, so the lease is really lost."""
    calls, _ = calls_over(lost(), settled("lease_lost"))
    with pytest.raises(LeaseLost):
        await calls.settle(("extend", 1_000), LeaseSettlement("r", 1 << 60))


async def _let_pauses_pass(clock: ManualClock, work: asyncio.Future[Any]) -> None:
    while not work.done():
        await asyncio.sleep(0)
        clock.advance(0)


@pytest.mark.parametrize("coalesce", [True, False])
async def test_messages_leased_by_a_cancelled_poll_are_released(coalesce: bool) -> None:  # noqa: FBT001
    """With and without batched polls."""
    answer = asyncio.Event()
    item = {"id": "1", "receipt": "r", "body": "x", "attempt": 1, "priority": 0, "attributes": {}, "added_at": 0}

    async def lease(_: ApiRequest[Any]) -> HttpReply:
        await answer.wait()
        return reply({"messages": [{**item, "lease_until": 0, "tenant": "t", "queue": "mail"}]})

    calls, transport = calls_over(lease, settled(None), coalesce=coalesce)
    poll = asyncio.create_task(calls.polls.poll(1, 0, None, None))
    await until(lambda: transport.requests)
    poll.cancel()
    await asyncio.sleep(0)
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await calls.session.close()
    assert [request.target.rpartition("/")[2] for request in transport.requests] == ["poll", "release"]


async def test_an_answer_with_the_wrong_number_of_items_is_a_typed_error() -> None:
    """The answers cannot be matched to the items, and the call may have been executed."""
    calls, _ = calls_over(reply({"messages": []}))
    with pytest.raises(BadAnswer, match="has 0 items for 2 sent") as caught:
        await OrderedAdds(calls).send([prepare_message(NewMessage(body=b"x"))] * 2)
    assert caught.value.maybe_done
    calls, _ = calls_over(settled(None, None))
    with pytest.raises(BadAnswer, match="has 2 items for 1 sent"):
        await calls.settle(("ack",), LeaseSettlement("r", 0))


async def test_closing_ends_calls_on_queues_that_the_registry_dropped() -> None:
    """There are more queues than the registry keeps."""
    session, _ = make_session(lambda _: asyncio.Event().wait(), clock=ManualClock())
    registry = QueueRegistry(session)
    calls = registry.of(None, "first")
    for number in range(1_100):
        registry.of(None, f"q{number}")
    assert registry.of(None, "first") is not calls
    work: list[asyncio.Task[Any]] = []
    for number in range(4):
        work.append(asyncio.create_task(calls.add(prepare_message(NewMessage(body=b"x")))))
        work.append(asyncio.create_task(calls.polls.poll(1, 60_000 + number, None, None)))
        for _ in range(5):
            await asyncio.sleep(0)
    await session.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 5)
    assert {type(one) for one in outcomes} == {Closed}


class Relay(asyncio.Protocol):
    """Forwards events to another protocol, and data to ``receive``."""

    def __init__(self, protocol: asyncio.Protocol, receive: Callable[[bytes], None]) -> None:
        self._protocol = protocol
        self._receive = receive

    def data_received(self, data: bytes) -> None:
        """Forward data."""
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward the end of the connection."""
        self._protocol.connection_lost(exc)


class FlakyNetwork:
    """Breaks connections to a fake server at random: before a request arrives, or before its answer does."""

    def __init__(self, server: FakeServer, seed: int, one_in: int) -> None:
        self._connect = server._connect
        self._chance = random.Random(seed)
        self._one_in = one_in
        self.broken = 0

    async def __call__(self, make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.BaseProtocol:
        """Connect, and set a trap in both directions."""
        protocol: Any = await self._connect(make_protocol)
        end = protocol._transport

        def trapped(deliver: Callable[[bytes], None]) -> Callable[[bytes], None]:
            def pass_on(data: bytes) -> None:
                if self._chance.randrange(self._one_in) == 0:
                    self.broken += 1
                    end.abort()
                else:
                    deliver(data)

            return pass_on

        end.write = trapped(end.write)
        end.set_protocol(Relay(protocol, trapped(protocol.data_received)))
        joined: asyncio.BaseProtocol = protocol
        return joined


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Run a fake server."""
    with FakeServer() as server:
        yield server


@pytest.mark.parametrize("seed", range(4))
async def test_over_a_flaky_network_every_message_is_added_once_and_acked_once(server: FakeServer, seed: int) -> None:
    """One connection in six breaks at the worst moment, and every reported outcome is true."""
    hazard = FlakyNetwork(server, seed, 6)
    settings = msgspec.structs.replace(
        server.settings(retries=Retries(count=60, base_ms=1, max_ms=2_000)), connect=hazard
    )
    async with AsyncClient(settings=settings) as client:
        queue = client.queue("mail")
        outcomes = await asyncio.gather(*(queue.add(f"{n}") for n in range(300)))
        many = await queue.add_many([f"{n}" for n in range(300, 400)])
        ids = {one.id for one in [*outcomes, *many]}
        assert len(ids) == 400
        stats = await queue.stats()
        assert (stats.ready, stats.added_total) == (400, 400)
        await queue.configure(max_attempts=0)

        done: set[str] = set()
        while len(done) < 400:
            messages = await queue.poll(50, wait_ms=0, lease_ms=30_000)
            if not messages:
                server.clock.advance(30_001)  # messages leased by a lost answer return
                continue
            await asyncio.gather(*(message.ack() for message in messages))
            done |= {message.id for message in messages}
        stats = await queue.stats()
        assert (stats.ready, stats.in_flight, stats.acked_total) == (0, 0, 400)
        assert hazard.broken > 5


async def test_single_calls_without_coalescing_wait_at_a_limit_too() -> None:
    """An add and an ack are retried after the delay that the server asks for; an error of the message is raised."""
    refused = problem("rate_limited", 429, retry_after_ms=700)
    calls, transport = calls_over(refused, added, refused, settled(None), settled("lease_lost"), coalesce=False)
    assert (await calls.add(prepare_message(NewMessage(body=b"x")))).id == "id-x"
    await calls.settle(("ack",), LeaseSettlement("r", sure_until_ms=0))
    with pytest.raises(LeaseLost):
        await calls.settle(("ack",), LeaseSettlement("r", sure_until_ms=0))
    assert [request.target.rsplit("/", 1)[1] for request in transport.requests] == ["messages"] * 2 + ["ack"] * 3


async def test_calls_without_coalescing_get_closed_when_the_client_closes() -> None:
    """The error says that the add may have been executed."""
    async with faulty_server() as server:
        server.behave = [hang]
        client = AsyncClient(server.url, coalesce=False)
        adding = asyncio.create_task(client.queue("mail").add("x"))
        await server.arrived.wait()
        await client.close()
        with pytest.raises(Closed) as caught:
            await adding
        assert caught.value.maybe_done
