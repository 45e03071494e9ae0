"""The asynchronous client: the same core, many concurrent tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.client import AsyncClient, Settings
from tenantq.client.connection_pool import ApiRequest, ConnectionPool
from tenantq.errors import Closed, Conflict, Invalid, NotFound, TooLarge

if TYPE_CHECKING:
    from tenantq.client.http_connection import HttpReply


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count outgoing requests by the last part of their path."""
    seen: list[str] = []
    send = ConnectionPool.send

    async def noted(self: ConnectionPool, request: ApiRequest[Any]) -> HttpReply:
        seen.append(request.target.rsplit("/", 1)[1])
        return await send(self, request)

    monkeypatch.setattr(ConnectionPool, "send", noted)
    return seen


async def test_concurrent_calls_are_coalesced(async_settings: Settings, requests: list[str]) -> None:
    """500 adds, 500 polls and 500 acks take few requests, and every caller gets its own message."""
    async with AsyncClient(settings=async_settings) as client:
        queue = client.queue("mail")

        async def cycle(number: int) -> str:
            added = await queue.add(f"{number}")
            (message,) = await queue.poll(wait_ms=5_000)
            async with message:
                message.result = message.text
            return added.id

        ids = await asyncio.gather(*(cycle(number) for number in range(500)))
        assert len(set(ids)) == 500
        assert len(requests) < 150
        results = [result.text async for result in queue.iter_results(ids)]
        assert sorted(map(int, results)) == list(range(500))
        assert (await queue.stats()).acked_total == 500


async def test_a_poll_waits_for_its_queue_to_be_created(async_settings: Settings) -> None:
    """A consumer may start before the first producer. Without a wait the queue is reported as missing."""
    async with AsyncClient(settings=async_settings) as client:
        queue = client.queue("later")
        with pytest.raises(NotFound, match="queue 'later' does not exist"):
            await queue.poll()
        waiting = asyncio.create_task(queue.poll(wait_ms=60_000))
        await client.queue("other").add("nothing to do with it")
        assert not waiting.done()
        await queue.add("first")
        assert [message.text for message in await waiting] == ["first"]


async def test_coalescing_can_be_turned_off(async_settings: Settings, requests: list[str]) -> None:
    """Every call is then its own request, with the same outcome."""
    async with AsyncClient(settings=msgspec.structs.replace(async_settings, coalesce=False)) as client:
        queue = client.queue("mail")
        await asyncio.gather(*(queue.add(f"{n}") for n in range(10)))
        messages = await asyncio.gather(*(queue.poll() for _ in range(10)))
        await asyncio.gather(*(message.ack() for (message,) in messages))
        assert sorted(requests) == ["ack"] * 10 + ["messages"] * 10 + ["poll"] * 10


async def test_invalid_message_in_a_coalesced_request_affects_no_other(async_settings: Settings) -> None:
    """Each invalid message gets its own error, and all others are added."""
    async with AsyncClient(settings=async_settings) as client:
        queue = client.queue("mail")
        await queue.add("first", key="taken")
        calls = [queue.add(f"{n}") for n in range(20)]
        calls += [queue.add("other", key="taken"), queue.add("x", priority=77), queue.add(bytes(1 << 21))]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in outcomes[20:]] == [Conflict, Invalid, TooLarge]
        assert (await queue.stats()).ready == 21


async def test_results_too_large_for_one_request_are_sent_in_parts(async_settings: Settings) -> None:
    """Forty concurrent acks have a result of a megabyte each."""
    async with AsyncClient(settings=async_settings) as client:
        queue = client.queue("mail")
        added = await queue.add_many([f"{n}" for n in range(40)])
        messages = await queue.poll(40)
        await asyncio.gather(*(message.ack("y" * 1_000_000) for message in messages))
        assert len((await queue.result(added[-1].id)).text) == 1_000_000


async def test_cancelled_poll_returns_its_messages(async_settings: Settings) -> None:
    """Messages on their way to it return to the queue at once."""
    async with AsyncClient(settings=async_settings) as client:
        queue = client.queue("mail")
        await queue.configure()
        polls = [asyncio.create_task(queue.poll(wait_ms=20_000, lease_ms=600_000)) for _ in range(5)]
        await asyncio.sleep(0.05)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await queue.add_many([f"{n}" for n in range(5)])
        got: list[str] = []
        while len(got) < 5:
            got += [message.text for message in await queue.poll(5, wait_ms=5_000, lease_ms=500_000)]
        assert sorted(got) == [f"{n}" for n in range(5)]


async def test_cancelled_block_releases_its_message(async_settings: Settings) -> None:
    """The attempt is not used up."""
    async with AsyncClient(settings=async_settings) as client:
        queue = client.queue("mail")
        await queue.add("x")
        (message,) = await queue.poll()
        entered = asyncio.Event()

        async def work() -> None:
            async with message:
                entered.set()
                await asyncio.sleep(3_600)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (again,) = await queue.poll(wait_ms=1_000)
        assert again.attempt == 1


async def test_closed_client_refuses_calls(async_settings: Settings) -> None:
    """Calls in progress end, and later ones are refused."""
    client = AsyncClient(settings=async_settings)
    queue = client.queue("mail")
    await queue.add("x")
    (await queue.poll())[0]
    poll = asyncio.create_task(queue.poll(wait_ms=20_000))
    await asyncio.sleep(0.02)
    await client.close()
    with pytest.raises(Closed):
        await poll
    with pytest.raises(Closed):
        await queue.add("y")
    await client.close()


async def test_client_belongs_to_one_event_loop(async_settings: Settings) -> None:
    """Used from another loop, the error says what to do."""
    async with AsyncClient(settings=async_settings) as client:
        await client.health()

        def in_thread() -> None:
            asyncio.run(client.queue("mail").stats())

        with pytest.raises(Invalid, match="event loop"):
            await asyncio.to_thread(in_thread)
