"""One server at a time owns a shard; others wait, take over, and fence an owner that was silent for too long."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tenantq.doctor.store_check import examine
from tenantq.errors import StoreFailed, Unavailable
from tenantq.runtime.clock import SystemClock
from tenantq.store.postgres import client as client_module
from tenantq.store.shard_lease import ReleaseSignal, ShardHeld
from tests.postgres_servers import OnPostgres, PostgresServer
from tests.remote_store.fleet import opening, stop_renewing
from tests.shards import Q, T, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.remote_store.fleet import Open


@pytest.fixture
async def open_on(tmp_path: Path, postgres_server: PostgresServer) -> AsyncIterator[Open]:
    """Open shards with directories of their own on one store, on the real clock."""
    async with opening(OnPostgres, postgres_server, tmp_path) as open_one:
        yield open_one


async def test_a_reader_on_a_new_connection_checks_its_ownership(
    open_on: Open, postgres_server: PostgresServer
) -> None:
    """The new connection may lead to another server, which has lost commits."""
    shard = await open_on("one", lease_ms=600_000)
    (added,) = await shard.add(T, Q, [message("a")])
    postgres_server.execute("UPDATE fleet.shards SET commit = commit - 1")
    postgres_server.execute("SELECT pg_terminate_backend(pid) FROM fleet.shards")
    with pytest.raises(StoreFailed, match="a failover has lost"):
        await shard.reads.get(T, Q, added.id)


async def test_a_lease_of_a_server_whose_clock_is_ahead_lasts_no_longer_than_it_says(
    open_on: Open, postgres_server: PostgresServer
) -> None:
    """A failover can bring a primary whose clock is behind."""
    first = await open_on("one")
    stop_renewing(first)
    postgres_server.execute("UPDATE fleet.shards SET until = clock_timestamp() + interval '1 hour'")
    second = await asyncio.wait_for(open_on("two"), 20)
    assert second.failure is None


async def test_an_owner_that_was_paused_within_a_commit_does_not_keep_the_shard(
    open_on: Open, postgres_server: PostgresServer
) -> None:
    """Its transaction has the lock of the shard's row: its backend is ended when the lease is long over."""
    first = await open_on("one", patience_ms=400)
    stop_renewing(first)
    stuck = postgres_server.connect()
    stuck.execute("UPDATE fleet.shards SET pid = pg_backend_pid()")
    stuck.execute("BEGIN")
    stuck.execute("UPDATE fleet.shards SET commit = commit + 1")
    second = await asyncio.wait_for(_open_patiently(open_on), 30)
    with pytest.raises(psycopg.OperationalError):
        stuck.execute("COMMIT")
    await second.add(T, Q, [message()])


async def _open_patiently(open_on: Open) -> Shard:
    while True:
        try:
            return await open_on("two", patience_ms=400)
        except StoreFailed:
            await asyncio.sleep(0.05)


def test_a_claim_waits_for_the_release_that_it_is_told_of(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """A planned handover does not wait for the next attempt."""
    first = OnPostgres(postgres_server, tmp_path / "one", name="fleet", lease_ms=600_000).open()
    second = OnPostgres(postgres_server, tmp_path / "two", name="fleet", lease_ms=600_000)
    with pytest.raises(ShardHeld, match="is owned by"):
        second.open()
    released = ReleaseSignal()

    def release() -> None:
        first.close()
        released.set()

    timer = threading.Timer(0.2, release)
    timer.start()
    opened = second.open(wait_ms=20_000, released=released)
    assert opened.ownership.epoch == 2
    opened.close()
    timer.join()


def test_a_shard_can_be_read_while_a_server_owns_it(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """The doctor takes no ownership, and sees one state of it."""

    async def serve_and_examine() -> None:
        opener = OnPostgres(postgres_server, tmp_path / "one", name="fleet")
        async with Shard(tmp_path / "one", open_store=opener, clock=SystemClock()) as shard:
            await shard.add(T, Q, [message(), message()])
            report = await asyncio.to_thread(examine, tmp_path / "elsewhere", open_store=opener.to_read)
            assert (report.clean, report.figures.messages) == (True, 2)
            await shard.add(T, Q, [message()])

    asyncio.run(serve_and_examine())
    assert not (tmp_path / "elsewhere").exists()


# ---- snapshots ----


async def test_a_snapshot_ends_with_its_life(open_on: Open, postgres_server: PostgresServer) -> None:
    """Deleted rows keep their space no longer, whether or not the snapshot is read; the shard works on."""
    shard = await open_on("one", snapshot_ms=1_000)
    await shard.add(T, Q, [message() for _ in range(3)])
    facts = await shard.snapshots.open(T, Q)
    assert len((await shard.snapshots.read(T, Q, facts.id)).messages) == 3
    ends = asyncio.get_running_loop().time() + 20
    idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%fleet snapshot'"
    while postgres_server.execute(idle) != [(0,)]:
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.1)
    with pytest.raises(Unavailable, match="snapshot"):
        await shard.snapshots.read(T, Q, facts.id)
    await shard.add(T, Q, [message()])
    assert shard.failure is None


async def test_snapshots_use_a_limited_number_of_connections(open_on: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one; a closed one makes room."""
    monkeypatch.setattr(client_module, "SNAPSHOTS_MAX", 2)
    shard = await open_on("one")
    await shard.add(T, Q, [message()])
    first, _ = [await shard.snapshots.open(T, Q) for _ in range(2)]
    with pytest.raises(Unavailable, match="2 snapshots are open"):
        await shard.snapshots.open(T, Q)
    shard.snapshots.close(T, Q, first.id)
    await shard.snapshots.open(T, Q)
