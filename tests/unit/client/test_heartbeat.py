"""The heartbeat of a message in progress extends its lease in time, also if an answer is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.client.queue_calls import LeaseState, QueueCalls
from tenantq.client.session import ClientSession
from tenantq.runtime.clock import ManualClock
from tenantq.wire.messages import DeliveredItem
from tests.unit.client.doubles import ScriptedTransport, faulty_server, hang, make_settings, reply, respond, until

if TYPE_CHECKING:
    from tenantq.client.connection_pool import ApiRequest

ITEM = DeliveredItem(
    id="id",
    receipt="r",
    body="x",
    attempt=1,
    priority=0,
    attributes={},
    added_at=0,
    lease_until=0,
    tenant="t",
    queue="q",
)
EXTENDED = {"results": [{"receipt": "r", "ok": True, "lease_until": 1}]}


def lengths(requests: list[ApiRequest[Any]]) -> list[int]:
    """Return the lease lengths that were asked for."""
    return [msgspec.json.decode(request.body or b"")["lease_ms"] for request in requests]


async def turns() -> None:
    """Let everything happen that is due."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_shortened_lease_is_extended_in_time() -> None:
    """The next heartbeat is a third of the new length away, not of the old one."""
    clock = ManualClock()
    transport = ScriptedTransport(reply(EXTENDED))
    calls = QueueCalls(ClientSession(make_settings(clock=clock), transport), "/v1/queues/q", None, "q")
    message = AsyncMessage(LeaseState(ITEM, 9_000, clock.monotonic_ms() + 9_000), calls)
    async with message:
        await message.extend(900)
        for _ in range(3):
            clock.advance(300)
            await turns()
        assert lengths(transport.requests) == [900] * 4
        message._lease.settled = True


async def test_an_unanswered_heartbeat_is_retried_before_the_lease_ends() -> None:
    """One stalled request costs a quarter of the lease, not the client's whole timeout."""
    clock = ManualClock()
    polled = msgspec.json.encode({"messages": [msgspec.to_builtins(ITEM)]})
    acked = msgspec.json.encode({"results": [{"receipt": "r", "ok": True}]})
    async with faulty_server() as server:
        server.behave = [respond(body=polled), hang, respond(body=msgspec.json.encode(EXTENDED)), respond(body=acked)]
        async with AsyncClient(settings=make_settings(server.url, clock=clock)) as client:
            (message,) = await client.queue("q").poll(lease_ms=6_000)
            started_ms = clock.monotonic_ms()
            async with message:
                clock.advance(2_000)
                await until(lambda: len(server.heads) == 2)
                clock.advance(1_500)
                await turns()
                clock.advance(50)
                await until(lambda: len(server.heads) == 3)
                assert clock.monotonic_ms() - started_ms < 6_000
                await until(lambda: message.lease_until == 1)
            assert message.settled
        assert [head.split()[1].rpartition("/")[2] for head in server.heads] == ["poll", "extend", "extend", "ack"]
