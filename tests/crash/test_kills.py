"""Behaviours 58 and 60: the state that a SIGKILL leaves behind."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from rocksdict import WriteBatch

from tenantq.errors import LeaseLost
from tenantq.store.rocks import RocksStore
from tests.crash import chaos, events
from tests.crash.damage import fingerprint
from tests.crash.recount import recount
from tests.shards import Q, T, freeze, message, pass_time
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard

KILLS = 35
SEED = 58


def test_58_kills_at_every_point_lose_and_invent_nothing(tmp_path: Path) -> None:
    """After each kill, confirmed adds are present, confirmed acks stay gone, and counters equal a recount."""
    result = chaos.run(tmp_path, kills=KILLS, seconds=None, seed=SEED)
    print(result.report())
    assert not result.oracle.wrongs, result.report()
    assert set(result.kills) >= set(events.POINTS)
    assert result.oracle.figures["ack confirmed"] > 100


def _drop_a_body(store: RocksStore) -> tuple[bytes, bytes | None]:
    key = store.scan(store.m, b"", b"\xff" * 64, 1)[0]
    return key, None


def _drop_an_index_row(store: RocksStore) -> tuple[bytes, bytes | None]:
    return store.scan(store.vi, b"", b"\xff" * 64, 1)[0], None


def _miscount(store: RocksStore) -> tuple[bytes, bytes | None]:
    (key, value), (_, other) = store.scan_items(store.qc, b"", b"\xff" * 64, 2)
    assert value != other
    return key, other


@pytest.mark.parametrize(
    ("family", "tamper", "noticed"),
    [("m", _drop_a_body, "lost"), ("vi", _drop_an_index_row, "drift"), ("qc", _miscount, "drift")],
)
def test_oracle_detects_changes_behind_the_engines_back(
    tmp_path: Path, family: str, tamper: Callable[[RocksStore], tuple[bytes, bytes | None]], noticed: str
) -> None:
    """A dropped body, a dropped index row or a wrong counter is reported."""
    one = chaos.Chaos(tmp_path, seed=5)
    for _ in range(2):
        one.kill_one()
    assert not one.oracle.wrongs, one.report()
    store = RocksStore(one.directory)
    key, value = tamper(store)
    batch = WriteBatch(raw_mode=True)
    if value is None:
        batch.delete(key, store.family(family).handle)
    else:
        batch.put(key, value, store.family(family).handle)
    store.write(batch)
    store.close()
    one.oracle.compare(recount(one.directory, one.tally))
    assert one.oracle.figures[noticed] > 0, one.oracle.wrongs


def test_oracle_detects_a_rolled_back_directory(tmp_path: Path) -> None:
    """An older copy of the directory is consistent, but breaks every later promise."""
    one = chaos.Chaos(tmp_path, seed=6)
    for _ in range(2):
        one.kill_one()
    shutil.copytree(one.directory, tmp_path / "older")
    for _ in range(3):
        one.kill_one()
    assert not one.oracle.wrongs, one.report()
    shutil.rmtree(one.directory)
    (tmp_path / "older").rename(one.directory)
    one.oracle.compare(recount(one.directory, one.tally))
    assert one.oracle.figures["lost"] + one.oracle.figures["resurrected"] > 0


async def test_60_receipt_survives_a_kill(open_shard: OpenShard, tmp_path: Path) -> None:
    """It is valid until its deadline, and nobody else gets the message."""
    before = await open_shard("before")
    await before.add(T, Q, [message("held"), message("waiting")])
    held = (await before.poll(T, Q, lease_ms=10_000))[0]
    freeze(tmp_path / "before", tmp_path / "after")  # the files as a SIGKILL at this moment leaves them
    after = await open_shard("after")
    assert [one.body for one in await after.poll(T, Q, max=10)] == [b"waiting"]
    assert [outcome.ok for outcome in await after.ack(T, Q, [held.receipt])] == [True]
    assert after.reads.stats(T, Q).in_flight == 1


async def test_60_lease_that_ended_while_down_returns_the_message(
    open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """After the restart the sweep returns it, the old receipt is refused, and the attempt counts."""
    before = await open_shard("before")
    await before.add(T, Q, [message("late")])
    late = (await before.poll(T, Q, lease_ms=1_000))[0]
    freeze(tmp_path / "before", tmp_path / "after")
    clock.advance(1_001)
    after = await open_shard("after")
    await pass_time(after, clock, 1)
    assert after.reads.stats(T, Q).ready == 1
    assert isinstance((await after.ack(T, Q, [late.receipt]))[0].error, LeaseLost)
    again = (await after.poll(T, Q))[0]
    assert (again.body, again.attempt) == (b"late", 2)


def test_60_next_process_honours_leases_of_a_killed_one(tmp_path: Path) -> None:
    """With real processes: workers ack what killed workers had leased."""
    one = chaos.Chaos(tmp_path, seed=60)
    for _ in range(40):
        one.kill_one()
        if one.oracle.figures["carried leases acked"] >= 2:
            break
    assert not one.oracle.wrongs, one.report()
    assert one.oracle.figures["carried leases acked"] >= 2


async def test_kill_during_opening_changes_nothing(open_shard: OpenShard, tmp_path: Path) -> None:
    """Opening a killed store, killing it at once and opening it again gives the same store."""
    shard = await open_shard("data")
    await shard.add(T, Q, [message(f"body {i}") for i in range(20)])
    freeze(tmp_path / "data", tmp_path / "copy")
    for number in range(3):
        again = Shard(tmp_path / "copy")
        await again.open()
        freeze(tmp_path / "copy", tmp_path / f"copy-{number}")
        await again.close()
        shutil.rmtree(tmp_path / "copy")
        (tmp_path / f"copy-{number}").rename(tmp_path / "copy")
    final = await open_shard("copy")
    assert len(await final.poll(T, Q, max=100)) == 20


def test_refused_second_process_does_not_disturb_the_first(tmp_path: Path) -> None:
    """A worker that finds the directory locked exits with a message and changes nothing."""
    store = RocksStore(tmp_path / "data")
    before = fingerprint(tmp_path / "data")
    status = chaos.run_worker(tmp_path / "data", tmp_path / "events", ["--seed", "1"])
    told = (tmp_path / "events.err").read_text(encoding="utf-8")
    assert status not in {0, -signal.SIGKILL}
    assert "StoreLocked" in told
    assert str(tmp_path / "data") in told
    assert fingerprint(tmp_path / "data") == before
    store.close()
