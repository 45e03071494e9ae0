"""Method calls on other shards: arguments and results arrive unchanged, and no leased message is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.cluster.call_server import CallServer
from tenantq.cluster.error_codec import decode_error, encode_error
from tenantq.cluster.link_calls import KIND, LinkCalls
from tenantq.cluster.one_shard import OneShard
from tenantq.cluster.peers import Peers
from tenantq.cluster.remote_method import remote_methods
from tenantq.cluster.routed_service import FACETS, RoutedFacet, shard_methods
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.domain.access import Grant
from tenantq.domain.message import AddResult, Delivery, NewMessage
from tenantq.domain.placement import TopologyShard
from tenantq.errors import Forbidden, Invalid, RateLimited, ShardDown, SignatureRefused, TenantqError, Unavailable
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import ManualClock
from tenantq.service.call import Call
from tenantq.service.service import Service
from tenantq.sqs.cooldowns import COOLDOWNS
from tenantq.testing import FakeServer
from tests.unit.client.doubles import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

CALL = Call(bearer="secret", certificate={"subject": ((("commonName", "a"),),)}, remote="10.0.0.1", connection=object())
LEASED = [Delivery(bytes(16), "receipt", b"x", 1, 1, {}, None, 1, 2, "acme", "mail")]


class Facet:
    """A facet whose methods record their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.cancelled = 0

    async def add(
        self,
        call: Call,
        tenant: str | None,
        messages: Sequence[NewMessage | TenantqError],
        *,
        grant: Grant | None = None,
    ) -> list[AddResult]:
        """Return an ID, or the error in place of a message."""
        self.calls.append((call, tenant, messages, grant))
        return [
            AddResult(b"", error=one) if isinstance(one, TenantqError) else AddResult(bytes(16)) for one in messages
        ]

    async def refuse(self, call: Call, tenant: str | None) -> None:
        """Refuse."""
        raise RateLimited("too fast", limit=5, current=9, retry_after_ms=77, tenant=tenant)

    async def poll(self, call: Call, tenant: str | None, *, wait_ms: int = 0) -> list[Delivery]:
        """Wait, and lease a message even if the cancellation comes too late."""
        self.has_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if wait_ms != 1:
                raise
        return LEASED

    def release(self, deliveries: list[Delivery]) -> None:
        """Record the released messages."""
        self.calls.append([(one.tenant, one.queue, one.receipt) for one in deliveries])


@asynccontextmanager
async def two_shards() -> AsyncIterator[tuple[ShardCalls, Facet]]:
    """Let shard 0 call a facet on shard 1."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = tuple(sock.getsockname()[1] for sock in socks)
    facet, tasks, calls, peers = Facet(), set[asyncio.Task[None]](), list[ShardCalls](), list[Peers]()
    methods = remote_methods({}, {"facet": Facet}, {"peer.release": Facet.release})

    def begin(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.get_running_loop().create_task(work))

    for number, sock in enumerate(socks):
        spec = ShardSpec(
            number=number,
            shards=(TopologyShard("0"), TopologyShard("1")),
            secret="s",  # noqa: S106  # a test's own
            peer_ports=ports,
            home_dir="",
        )
        here = OneShard(number, cast("Any", None))
        here.facets |= {"facet": facet, "peer": facet}
        peers.append(Peers(spec, ManualClock()))
        calls.append(ShardCalls(here, ManualClock(), 2, hold_ms=0))
        calls[-1].remote = peers[-1]
        peers[-1].calls = LinkCalls(methods, calls[-1].release, begin)
        server = CallServer(methods, {}, here.find, calls[-1].release)
        server.turns = Turns(asyncio.get_running_loop())
        peers[-1].answers(KIND, server.answer)
        sock.setblocking(False)
        await peers[-1].open(sock)
    for one in peers:
        assert await one.wait_for_all(10_000)
    yield calls[0], facet
    for one in peers:
        await one.close()
    await asyncio.gather(*tasks)
    for sock in socks:
        sock.close()


async def test_arguments_and_results_arrive_unchanged() -> None:
    """Including values that the owner would refuse and errors in place of items. Only the connection differs."""
    bad, good = Invalid("body: is missing", tenant="acme"), NewMessage(body=b"x", priority=99, attributes={"a": "b"})
    async with two_shards() as (calls, facet):
        added = await calls.call(1, "facet.add", CALL, "acme", [good, bad], grant=Grant(role="viewer"))
        ((call, tenant, messages, grant),) = facet.calls
        assert (call.bearer, call.certificate, call.remote, tenant) == ("secret", CALL.certificate, "10.0.0.1", "acme")
        assert call.connection not in {None, CALL.connection}
        assert (messages[0], grant) == (good, Grant(role="viewer"))
        assert (type(messages[1]), messages[1].message, messages[1].tenant) == (Invalid, bad.message, "acme")
        assert (added[0], added[1].error.message) == (AddResult(bytes(16)), bad.message)
        with pytest.raises(Invalid, match="64 bits"):
            await calls.call(1, "facet.add", CALL, "acme", [NewMessage(body=b"", priority=1 << 70)])


async def test_an_error_of_the_owner_is_raised_with_its_fields() -> None:
    """Clients get the same limits and retry times as from the owner itself."""
    async with two_shards() as (calls, _):
        with pytest.raises(RateLimited, match="too fast") as raised:
            await calls.call(1, "facet.refuse", CALL, "acme")
        error = raised.value
        assert (error.limit, error.current, error.retry_after_ms, error.tenant) == (5, 9, 77, "acme")


@pytest.mark.parametrize("is_too_late", [False, True])
async def test_a_cancelled_poll_stops_at_the_owner_and_leases_nothing(*, is_too_late: bool) -> None:
    """Messages that the owner had already leased are released."""
    async with two_shards() as (calls, facet):
        polling = asyncio.ensure_future(calls.call(1, "facet.poll", CALL, "acme", wait_ms=1 if is_too_late else 2))
        await facet.has_begun.wait()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await until(lambda: facet.cancelled)
        if is_too_late:
            await until(lambda: facet.calls)
            assert facet.calls == [[("acme", "mail", "receipt")]]


async def test_a_call_to_a_shard_that_is_down_fails_at_once() -> None:
    """The error says to retry later."""
    async with two_shards() as (calls, _):
        await cast("Peers", calls.remote).links[1].close()
        with pytest.raises(ShardDown):
            await calls.call(1, "facet.refuse", CALL, "acme")


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("no"),
        SignatureRefused("wrong", aws_code="IncompleteSignature"),
        RateLimited("slow", limit=1, current=2, retry_after_ms=3, queue="q"),
        Unavailable(),
    ],
)
def test_errors_keep_their_class_and_fields(error: TenantqError) -> None:
    """Everything that a transport shows of them."""
    found = decode_error(encode_error(error))
    assert (type(found), found.message, vars(found)) == (type(error), error.message, vars(error))


def test_every_facet_method_can_be_forwarded() -> None:
    """The types of every signature can be encoded, and methods about a tenant are routed."""
    methods = shard_methods(COOLDOWNS, {})
    assert {"sqs_purges.note", "sqs_deletions.is_on"} <= methods.keys()
    with FakeServer() as server:
        service: Service = server._service
        for name in FACETS:
            called = {path.partition(".")[2] for path in methods if path.startswith(f"{name}.")}
            assert called, name
            routed = RoutedFacet(name, FACETS[name], getattr(service, name), cast("Any", None), cast("Any", None))
            assert {one for one in vars(routed) if not one.startswith("_")} <= called
