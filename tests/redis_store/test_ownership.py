"""One server at a time owns a shard; others stand by, take over, and fence an owner whose lease ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor.store_check import examine
from tenantq.errors import StoreFormat, StoreLocked, Unavailable
from tenantq.store.redis import ownership
from tenantq.store.redis.link import SlotLink
from tenantq.store.redis.store import RedisStore
from tests.administration import put_queue
from tests.redis_servers import OnRedis, RedisServer
from tests.remote_store.fleet import opening
from tests.shards import Q, T, message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tenantq.store.redis.link import RedisCommand
    from tests.remote_store.fleet import Open


@pytest.fixture
async def open_on(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Open]:
    """Open shards on one store, each with its own directory, on the real clock."""
    async with opening(OnRedis, redis_server, tmp_path) as open_one:
        yield open_one
    redis_server.client().flushall()


async def test_opening_a_shard_takes_two_requests_after_the_claim(open_on: Open) -> None:
    """Nobody serves the shard in the meantime, so its rows are read together."""
    shard = await open_on("one")
    for number in range(5):
        await put_queue(shard, T, f"queue-{number}")
        await shard.add(T, f"queue-{number}", [message()])
    await shard.close()
    again = await open_on("two", lease_ms=60_000)
    store = again.state.store
    assert isinstance(store, RedisStore)
    assert store._link.took.total <= 3  # one of them precedes the claim
    assert [again.reads.stats(T, f"queue-{number}").ready for number in range(5)] == [1] * 5


async def test_doctor_cannot_claim_the_shard_of_a_running_server(open_on: Open, tmp_path: Path) -> None:
    """It can once the server has stopped."""
    shard = await open_on("one")
    await shard.add(T, Q, [message()])
    opener = shard._open_store
    assert isinstance(opener, OnRedis)
    with pytest.raises(StoreLocked, match="is owned by"):
        examine(tmp_path / "elsewhere", open_store=opener.to_read)
    await shard.close()
    assert examine(tmp_path / "elsewhere", open_store=opener.to_read).clean
    assert not (tmp_path / "elsewhere").exists()


async def test_doctor_reports_a_missing_store_and_creates_none(redis_server: RedisServer, tmp_path: Path) -> None:
    """A mistyped name must not look like an empty store."""
    opener = OnRedis(redis_server, tmp_path / "any", name="mistyped")
    with pytest.raises(StoreFormat, match="no tenantq store with"):
        examine(tmp_path / "any", open_store=opener.to_read)
    assert redis_server.client().keys("*mistyped*") == []


async def test_repeated_claim_succeeds_at_once(
    open_on: Open, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the lease of the first claim, and a late copy fences nobody."""
    real = SlotLink.calls
    claims: list[list[RedisCommand]] = []

    def twice(link: SlotLink, commands: list[RedisCommand], **options: object) -> list[object]:
        if commands[0][1] == ownership._CLAIM.digest:
            claims.append(commands)
            real(link, commands, **options)  # type: ignore[arg-type]  # forwarded unchanged
        return real(link, commands, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SlotLink, "calls", twice)
    shard = await asyncio.wait_for(open_on("one", lease_ms=600_000), 20)
    assert len(claims) == 1
    await shard.add(T, Q, [message()])
    redis_server.client().execute_command(*claims[0][0])
    await shard.add(T, Q, [message()])
    assert shard.reads.stats(T, Q).ready == 2


async def test_commit_sent_twice_is_applied_once(open_on: Open) -> None:
    """A commit is sent again if its first reply may be lost."""
    shard = await open_on("one")
    store = shard.state.store
    assert isinstance(store, RedisStore)
    real, sent = store._link.calls, list[object]()

    def twice(commands: list[tuple[object, ...]], **options: object) -> list[object]:
        if commands[0][0] == "EVALSHA" and len(commands[0]) > 9:
            sent.append(commands)
            real(commands, **options)  # type: ignore[arg-type]  # forwarded unchanged
        return real(commands, **options)  # type: ignore[arg-type]

    store._link.calls = twice  # type: ignore[method-assign,assignment]
    await shard.add(T, Q, [message("a"), message("b")])
    store._link.calls = real  # type: ignore[method-assign]
    assert sent
    assert shard.reads.stats(T, Q).ready == 2
    assert len(await shard.poll(T, Q, max=9)) == 2
    assert shard.failure is None


async def test_snapshot_with_too_many_later_changes_is_unavailable(
    open_on: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error tells the reader to start again, and the shard continues."""
    monkeypatch.setattr("tenantq.store.redis.snapshot.KEPT_BYTES_MAX", 2_000)
    shard = await open_on("one")
    await shard.add(T, Q, [message(b"x" * 500) for _ in range(20)])
    facts = await shard.snapshots.open(T, Q)
    assert len((await shard.snapshots.read(T, Q, facts.id)).messages) == 20
    got = await shard.poll(T, Q, max=20)
    await shard.ack(T, Q, [one.receipt for one in got])
    with pytest.raises(Unavailable, match="Start again"):
        await shard.snapshots.read(T, Q, facts.id)
    assert shard.failure is None
    assert shard.reads.stats(T, Q).in_flight == 0


async def test_shard_stops_when_its_renewals_fail(open_on: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server could own it, while this one still answers polls."""

    def fail(_: SlotLink) -> None:
        raise RuntimeError("a bug in the check")

    monkeypatch.setattr(SlotLink, "look_again", fail)
    shard = await open_on("a")
    async with asyncio.timeout(20):
        await shard.loop.stopped.wait()
    assert "a bug in the check" in str(shard.failure)
