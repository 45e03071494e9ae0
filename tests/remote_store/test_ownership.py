"""One server at a time owns a shard of any remote store; others wait, take over, and fence an owner whose lease ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.errors import LeaseLost, StoreFailed, StoreFormat
from tenantq.runtime.clock import SystemClock
from tests.administration import queues
from tests.postgres_servers import OnPostgres, PostgresServer
from tests.redis_servers import OnRedis, RedisServer
from tests.remote_store.fleet import LEASE_MS, opening, stop_renewing
from tests.shards import Q, T, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.remote_store.fleet import Open


@pytest.fixture(params=["redis", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the store."""
    return str(request.param)


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> Any:
    """Return an empty server."""
    found = request.getfixturevalue(f"{kind}_process")
    found.clear()
    return found


@pytest.fixture
async def open_on(kind: str, server: Any, tmp_path: Path) -> AsyncIterator[Open]:
    """Open shards on one store, each with its own directory."""
    async with opening(OnRedis if kind == "redis" else OnPostgres, server, tmp_path) as open_one:
        yield open_one


async def test_60_a_waiting_server_takes_over_when_the_owner_is_paused(open_on: Open) -> None:
    """Leases and receipts stay valid, and the old owner confirms nothing more."""
    first = await open_on("one")
    await first.add(T, Q, [message("a"), message("b")])
    held, late = await first.poll(T, Q, max=2, lease_ms=60_000)
    waiting = asyncio.create_task(open_on("two"))
    await asyncio.sleep(LEASE_MS / 1_000 * 2)
    assert not waiting.done()  # the owner is alive and renews its lease
    stop_renewing(first)
    second = await asyncio.wait_for(waiting, 20)
    assert (await second.ack(T, Q, [held.receipt]))[0].ok
    with pytest.raises(StoreFailed, match="owns this shard now"):
        await first.add(T, Q, [message("never")])
    assert first.failure is not None
    assert first.loop.stopped.is_set()
    assert second.reads.stats(T, Q).in_flight == 1
    assert (await second.ack(T, Q, [late.receipt]))[0].ok
    (again,) = await second.ack(T, Q, [held.receipt])
    assert isinstance(again.error, LeaseLost)
    assert second.reads.stats(T, Q).ready == 0


class OtherMachine(SystemClock):
    """The clocks of another machine, with another boot time and a wrong wall clock."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + 5_000_000 + self._ahead_ms

    def boot_id(self) -> bytes:
        return bytes([7]) * 16


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
async def test_leases_do_not_depend_on_the_wall_clocks_of_servers(open_on: Open, ahead_ms: int) -> None:
    """A new owner measures them on the store's clock: leases do not end early, and delays do not last longer."""
    first = await open_on("one")
    await first.add(T, Q, [message("a")])
    (held,) = await first.poll(T, Q, lease_ms=60_000)
    await first.add(T, Q, [message("soon", delay_ms=1_500)])
    await first.close()
    second = await open_on("two", clock=OtherMachine(ahead_ms))
    assert await second.poll(T, Q) == []
    (soon,) = await second.poll(T, Q, wait_ms=20_000)
    assert soon.body == b"soon"
    assert (await second.ack(T, Q, [held.receipt]))[0].ok


async def test_a_paused_owner_cannot_read(open_on: Open) -> None:
    """What it would return may be outdated."""
    first = await open_on("one")
    (added,) = await first.add(T, Q, [message("a")])
    stop_renewing(first)
    second = await open_on("two")
    await second.remove(T, Q, [added.id])
    with pytest.raises(StoreFailed, match="owns this shard now"):
        await first.reads.get(T, Q, added.id)


def change_state(server: RedisServer | PostgresServer, column: str, value: int) -> None:
    """Change a number in the row of the shard's owner."""
    if isinstance(server, RedisServer):
        server.client().hset("t:{fleet:0}:s", column, str(value))
    else:
        server.execute(f"UPDATE fleet.shards SET {column} = {value}")  # noqa: S608  # of this file


async def test_an_idle_owner_that_was_taken_over_stops_by_itself(open_on: Open, server: Any) -> None:
    """The renewal of its lease finds out, without any request."""
    shard = await open_on("one")
    change_state(server, "epoch", 99)
    await asyncio.wait_for(shard.loop.stopped.wait(), 20)
    assert shard.failure is not None


async def test_a_missing_commit_stops_the_shard(open_on: Open, server: Any) -> None:
    """A failover lost confirmed work. Continuing would mix two histories; the next owner continues from what the store has."""
    shard = await open_on("one")
    await shard.add(T, Q, [message()])
    change_state(server, "commit", 0)
    with pytest.raises(StoreFailed, match="a failover has lost"):
        await shard.add(T, Q, [message()])
    await shard.close()
    again = await open_on("two")
    assert again.reads.stats(T, Q).ready == 1


async def test_a_clean_close_releases_the_shard_at_once(open_on: Open) -> None:
    """The waiting server does not wait for the lease to end."""
    first = await open_on("one", lease_ms=600_000)
    waiting = asyncio.create_task(open_on("two"))
    await asyncio.sleep(0.1)
    await first.close()
    second = await asyncio.wait_for(waiting, 20)
    assert second.failure is None


async def test_a_waiting_server_can_be_cancelled(open_on: Open) -> None:
    """Its directory is free afterwards, and the owner continues."""
    first = await open_on("one")
    waiting = asyncio.create_task(open_on("two"))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await first.add(T, Q, [message()])
    await first.close()
    second = await open_on("two")
    assert second.reads.stats(T, Q).ready == 1


async def test_shard_time_does_not_go_back_on_takeover(open_on: Open) -> None:
    """The new owner continues the shard clock, and does not jump ahead."""
    first = await open_on("one")
    await first.add(T, Q, [message(), message()])
    now = first.state.shard_clock.now_ms()
    await first.close()
    second = await open_on("two")
    assert second.state.shard_clock.now_ms() >= now
    assert second.state.shard_clock.now_ms() - now < 60_000


async def test_an_emptied_store_is_refused(open_on: Open, server: Any) -> None:
    """The directory remembers its store, because what was confirmed is missing from the new one."""
    shard = await open_on("one")
    await shard.add(T, Q, [message()])
    await shard.close()
    server.clear()
    with pytest.raises(StoreFormat, match="emptied or replaced"):
        await open_on("one")
    fresh = await open_on("new")
    assert list(queues(fresh, T)) == []


async def test_a_directory_of_the_embedded_store_is_refused(open_on: Open, tmp_path: Path) -> None:
    """Its journal and segments belong to another shard."""
    async with Shard(tmp_path / "one"):
        pass
    with pytest.raises(StoreFormat, match="another data directory"):
        await open_on("one")
