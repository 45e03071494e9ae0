"""A commit counts once, whatever happens on its way, and none counts that is not durable."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor.store_check import examine
from tenantq.errors import DiskFull, StoreFailed
from tenantq.runtime.clock import SystemClock
from tenantq.store.postgres.server_check import SessionLimits
from tenantq.store.postgres.store import PostgresStore
from tests.postgres_servers import OnPostgres, PostgresServer
from tests.postgres_store.cutting_proxy import CuttingProxy
from tests.shards import Q, T, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.postgres_store.cutting_proxy import Cut


@pytest.fixture
async def proxied(tmp_path: Path, durable_server: PostgresServer) -> AsyncIterator[tuple[Shard, CuttingProxy]]:
    """Open a shard through a proxy; its lease is so long that only rounds use the store."""
    proxy = CuttingProxy(durable_server.port)
    opener = OnPostgres(proxy, tmp_path / "one", "fsync", name="cut", lease_ms=600_000, patience_ms=10_000)
    shard = Shard(tmp_path / "one", open_store=opener, clock=SystemClock())
    await shard.open()
    await shard.add(T, Q, [message("first")])
    yield shard, proxy
    await shard.close()
    proxy.close()


@pytest.mark.parametrize("what", ["request", "answer", "end of answer"])
async def test_a_commit_whose_outcome_is_unknown_is_sent_again_and_counts_once(
    proxied: tuple[Shard, CuttingProxy], what: Cut
) -> None:
    """Whether or not the server had applied it."""
    shard, proxy = proxied
    proxy.cut(what)
    await shard.add(T, Q, [message("a"), message("b")])
    assert proxy.cuts == 1
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"first", b"a", b"b"]
    store = shard.state.store
    assert isinstance(store, PostgresStore)
    assert store._session.connects == 2
    assert shard.failure is None


async def test_a_commit_that_stays_unknown_ends_the_ownership(tmp_path: Path, durable_server: PostgresServer) -> None:
    """Nothing of it is confirmed, and the next owner continues from what the store has."""
    proxy = CuttingProxy(durable_server.port)
    opener = OnPostgres(proxy, tmp_path / "one", "fsync", name="cut", lease_ms=1_000, patience_ms=500)
    shard = Shard(tmp_path / "one", open_store=opener, clock=SystemClock())
    await shard.open()
    await shard.add(T, Q, [message("first")])
    proxy.cut("answer")
    store = shard.state.store
    assert isinstance(store, PostgresStore)
    store._session._patience_s = 0.0
    with pytest.raises(StoreFailed, match="Nothing of this round is confirmed"):
        await shard.add(T, Q, [message("unknown")])
    assert shard.failure is not None
    await shard.close()
    again = OnPostgres(durable_server, tmp_path / "two", "fsync", name="cut")
    async with Shard(tmp_path / "two", open_store=again, clock=SystemClock()) as second:
        assert [one.body for one in await second.poll(T, Q, max=9)] == [b"first", b"unknown"]
    proxy.close()


async def test_another_batch_with_the_same_number_is_refused(tmp_path: Path, durable_server: PostgresServer) -> None:
    """The nonce tells them apart: the first one was confirmed."""
    opener = OnPostgres(durable_server, tmp_path / "one", "fsync", name="cut")
    store = opener.open()
    batch = store.new_batch()
    batch.put(b"a", b"1", store.meta.handle)
    store.write(batch)
    store._owner.commit -= 1  # as where the answer was lost for good
    other = store.new_batch()
    other.put(b"b", b"2", store.meta.handle)
    with pytest.raises(StoreFailed, match="commit 1 is not the one that was sent"):
        store.write(other)
    assert (store.get(store.meta, b"a"), store.get(store.meta, b"b")) == (b"1", None)
    store.close()


def test_a_commit_that_deletes_many_rows_takes_the_time_it_needs(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """PostgreSQL deletes row by row. A shard that failed at it would fail again under its next owner."""
    store = OnPostgres(postgres_server, tmp_path / "one", name="many").open()
    assert store.m.handle == 1
    postgres_server.execute(
        r"INSERT INTO many.rows SELECT '0', '\x01' || int8send(n), '' FROM generate_series(1, 200000) AS n"
    )
    session = store._session
    session.disconnect()
    session._limits, session._answer_s, session._patience_s = SessionLimits(50, 1_000), 0.1, 1.0
    batch = store.new_batch()
    batch.delete_range(b"", b"\xff" * 8, store.m.handle)
    batch.put(b"a", b"1", store.meta.handle)
    store.write(batch)
    store.close()
    assert postgres_server.execute("SELECT count(*) FROM many.rows") == [(1,)]


@pytest.fixture
def without_standby(durable_server: PostgresServer) -> Iterator[PostgresServer]:
    """Have commits wait for a standby that does not exist, until ``no_longer_wait``."""
    yield durable_server
    no_longer_wait(durable_server)


def wait_for_standby(server: PostgresServer) -> None:
    """Have commits wait for a standby from now on."""
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.execute("SELECT pg_reload_conf()")


def no_longer_wait(server: PostgresServer) -> None:
    """Have commits wait for no standby, also those that wait now."""
    server.execute("ALTER SYSTEM RESET synchronous_standby_names")
    server.execute("SELECT pg_reload_conf()")


async def waiting_backend(server: PostgresServer, but: int = 0) -> int:
    """Return a backend that waits for the standby."""
    while True:
        found = server.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        if found and found[0][0] != but:
            return int(found[0][0])
        await asyncio.sleep(0.02)


async def test_a_commit_whose_wait_for_a_standby_was_cancelled_is_not_confirmed(
    tmp_path: Path, without_standby: PostgresServer
) -> None:
    """PostgreSQL then answers COMMIT with a warning. The commit is sent again, waits again, and counts once."""
    server = without_standby
    opener = OnPostgres(server, tmp_path / "one", "fsync", name="cut", patience_ms=60_000, lease_ms=600_000)
    async with Shard(tmp_path / "one", open_store=opener, clock=SystemClock()) as shard:
        added: list[str] = []
        wait_for_standby(server)
        store = shard.state.store
        assert isinstance(store, PostgresStore)
        judged = threading.Event()

        def cancel() -> None:
            first = asyncio.run(waiting_backend(server))
            begun = len(added)
            server.execute(f"SELECT pg_cancel_backend({first})")
            asyncio.run(waiting_backend(server, but=first))
            if len(added) == begun:  # the add has not returned
                judged.set()
            no_longer_wait(server)

        thread = threading.Thread(target=cancel)
        thread.start()
        while thread.is_alive():  # PostgreSQL uses a changed setting a moment later
            added.append(str(len(added)))
            await shard.add(T, Q, [message(added[-1])])
        await asyncio.to_thread(thread.join)
        assert judged.is_set()
        polled = [one.body.decode() for one in await shard.poll(T, Q, max=1_000)]
        assert polled == added
        assert store._session.retries == 1


async def test_a_server_that_crashes_loses_nothing_confirmed(tmp_path: Path) -> None:
    """It recovers from its log; shards wait for it."""
    server = PostgresServer()
    try:
        opener = OnPostgres(server, tmp_path / "one", "fsync", name="crash", patience_ms=60_000, lease_ms=60_000)
        async with Shard(tmp_path / "one", open_store=opener, clock=SystemClock()) as shard:
            added = [one.id for one in await shard.add(T, Q, [message(str(number)) for number in range(50)])]
            server.crash()
            server.start()
            added += [one.id for one in await shard.add(T, Q, [message("after")])]
            polled = await shard.poll(T, Q, max=100)
            assert [one.id for one in polled] == added
            assert shard.failure is None
        assert examine(tmp_path / "elsewhere", open_store=opener.to_read).clean
    finally:
        server.stop()


async def test_a_full_disk_refuses_work_and_loses_nothing(tmp_path: Path, durable_server: PostgresServer) -> None:
    """The round is refused as a whole. While the disk is full, adds are refused before they begin."""
    opener = OnPostgres(durable_server, tmp_path / "one", "fsync", name="brim")
    async with Shard(tmp_path / "one", open_store=opener, clock=SystemClock()) as shard:
        await shard.add(T, Q, [message("kept")])
        durable_server.execute(
            "CREATE FUNCTION brim.refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
        )
        durable_server.execute('CREATE TRIGGER refuse BEFORE INSERT ON "brim"."rows_0" EXECUTE FUNCTION brim.refuse()')
        with pytest.raises(DiskFull, match="No space left"):
            await shard.add(T, Q, [message("refused")])
    durable_server.execute('DROP TRIGGER refuse ON "brim"."rows_0"')
    async with Shard(tmp_path / "one", open_store=opener, clock=SystemClock()) as shard:
        with pytest.raises(DiskFull):  # the process remembers it for some seconds
            await shard.add(T, Q, [message("refused")])
        opener.client._full_until = 0.0
        shard.state.space._measure_at_ms = 0
        await shard.add(T, Q, [message("again")])
        assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"kept", b"again"]


async def test_a_server_that_hangs_delays_a_round_and_no_longer_than_the_patience(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """A backend that is stopped does not answer, although its connection is fine."""
    opener = OnPostgres(postgres_server, tmp_path / "one", "os", name="hang", patience_ms=700, lease_ms=60_000)
    shard = Shard(tmp_path / "one", open_store=opener, clock=SystemClock())
    await shard.open()
    await shard.add(T, Q, [message()])
    ((pid,),) = postgres_server.execute("SELECT pid FROM hang.shards")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreFailed, match="no answer"):
            await shard.add(T, Q, [message()])
    finally:
        os.kill(pid, signal.SIGCONT)
        await shard.close()
