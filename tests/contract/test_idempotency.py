"""Idempotency keys: one message per key and window, within one queue of one tenant."""

import asyncio
import random
from pathlib import Path

import pytest

from tenantq.engine.settings import ShardSettings
from tenantq.errors import Conflict
from tenantq.runtime.clock import ManualClock
from tests.administration import purge, put_queue, put_tenant
from tests.conftest import OpenShard
from tests.shards import Q, T, freeze, message, pass_time
from tests.verbs import Shard


def rows(shard: Shard, family: str) -> int:
    """Return the number of rows in a family."""
    return len(shard.state.store.scan(shard.state.store.family(family), b"", b"\xff" * 64, 100_000))


async def test_29_two_sequential_adds_with_one_key_give_the_same_id_and_one_message(shard: Shard) -> None:
    """The second is marked as a duplicate."""
    (first,) = await shard.add(T, Q, [message("x", key="k")])
    (second,) = await shard.add(T, Q, [message("x", key="k")])
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.id == second.id
    assert shard.reads.stats(T, Q).added_total == 1


async def test_29_fifty_concurrent_adds_with_one_key_add_one_message(shard: Shard) -> None:
    """They may share a round, and repeat the key in one batch."""
    replies = await asyncio.gather(*(shard.add(T, Q, [message("x", key="k")] * 2) for _ in range(25)))
    added = [one for reply in replies for one in reply]
    assert len({one.id for one in added}) == 1
    assert [one.duplicate for one in added].count(False) == 1
    assert len(await shard.poll(T, Q, max=100)) == 1


async def test_29_key_is_remembered_after_the_ack_and_across_a_restart(open_shard: OpenShard) -> None:
    """The window counts, not the life of the message."""
    shard = await open_shard()
    (first,) = await shard.add(T, Q, [message("x", key="k")])
    (got,) = await shard.poll(T, Q)
    await shard.ack(T, Q, [got.receipt])
    await shard.close()
    shard = await open_shard()
    (second,) = await shard.add(T, Q, [message("x", key="k")])
    assert (second.id, second.duplicate) == (first.id, True)
    assert await shard.poll(T, Q) == []


async def test_30_same_key_in_two_tenants_and_queues_adds_different_messages(shard: Shard) -> None:
    """Nothing of the other is returned, not even on a conflict."""
    await put_tenant(shard, "other")
    (a,) = await shard.add(T, Q, [message("secret", key="k")])
    (b,) = await shard.add("other", Q, [message("mine", key="k")])
    (c,) = await shard.add(T, "elsewhere", [message("third", key="k")])
    assert len({a.id, b.id, c.id}) == 3
    assert not any(one.duplicate or one.error for one in (a, b, c))
    assert [one.body for one in await shard.poll("other", Q, max=9)] == [b"mine"]
    assert [one.body for one in await shard.poll(T, "elsewhere", max=9)] == [b"third"]


@pytest.mark.rocksdb_only("copies its files")
async def test_31_key_is_deduplicated_under_another_shard_name_and_settings(tmp_path: Path, clock: ManualClock) -> None:
    """This holds after a clean stop and after a crash.

    A store has one shard. The test shows that keys depend on tenant and queue only: any shard that opens the store,
    under any name, knows all earlier keys.
    """
    data = tmp_path / "data"
    tiny = ShardSettings(durability="os", round_cost_alone=1, turn_cost=1, sweep_rows=2, memory_bytes=8 << 20)
    ids: dict[str, str] = {}

    async def check(shard: Shard) -> None:
        for key, id in ids.items():
            same, other = await shard.add(T, Q, [message("x", key=key), message("y", key=key)])
            assert (same.id, same.duplicate) == (id, True)
            assert isinstance(other.error, Conflict)
        assert shard.reads.stats(T, Q).added_total == len(ids)

    for turn, (name, settings) in enumerate([("0", None), ("7", tiny), ("eu-1", None), ("0", tiny)]):
        rng = random.Random(turn)
        async with Shard(data, name=name, settings=settings, clock=clock, randomness=rng) as shard:
            if ids:
                await check(shard)
            (added,) = await shard.add(T, Q, [message("x", key=f"of turn {turn}")])
            assert not added.duplicate
            ids[f"of turn {turn}"] = added.id
            freeze(data, tmp_path / f"crashed-{turn}")  # the files as a SIGKILL at this moment leaves them
        async with Shard(tmp_path / f"crashed-{turn}", name="9", clock=clock, randomness=rng) as shard:
            await check(shard)
            assert {one.id for one in await shard.poll(T, Q, max=99)} == set(ids.values())


async def test_32_key_reuse_after_its_window_creates_a_new_message_and_keys_are_collected(
    shard: Shard, clock: ManualClock
) -> None:
    """The number of rows returns to its baseline."""
    await put_queue(shard, T, Q, dedup_ms=1_000)
    (first,) = await shard.add(T, Q, [message("x", key="k")])
    await shard.add(T, Q, [message(key=str(n)) for n in range(700)])
    await pass_time(shard, clock, 999)
    assert (await shard.add(T, Q, [message("x", key="k")]))[0].duplicate
    await pass_time(shard, clock, 1)
    assert (rows(shard, "ik"), rows(shard, "ex")) == (0, 0)
    (second,) = await shard.add(T, Q, [message("x", key="k")])
    assert not second.duplicate
    assert second.id != first.id


async def test_32_key_past_its_window_has_no_effect_before_it_is_collected(shard: Shard, clock: ManualClock) -> None:
    """The new window is a full one: collecting the old entry does not end it."""
    await put_queue(shard, T, Q, dedup_ms=1_000)
    await shard.add(T, Q, [message("x", key="k")])
    clock._pass(1_000)
    assert not (await shard.add(T, Q, [message("x", key="k")]))[0].duplicate
    await pass_time(shard, clock, 999)
    assert (await shard.add(T, Q, [message("x", key="k")]))[0].duplicate
    await pass_time(shard, clock, 1)
    assert (rows(shard, "ik"), rows(shard, "ex")) == (0, 0)


async def test_33_the_same_key_with_a_different_payload_is_a_conflict(shard: Shard) -> None:
    """Other messages of the batch are added; the conflict changes nothing and reveals no ID."""
    (first,) = await shard.add(T, Q, [message("x", key="k")])
    good, bad, same = await shard.add(T, Q, [message("y"), message("y", key="k"), message("x", key="k")])
    assert good.error is None
    assert isinstance(bad.error, Conflict)
    assert bad.error.status == 409
    assert (bad.error.tenant, bad.error.queue) == (T, Q)
    assert bad.raw_id == bytes(16)
    assert (same.id, same.duplicate) == (first.id, True)
    stats = shard.reads.stats(T, Q)
    assert (stats.ready, stats.added_total, stats.bytes) == (2, 2, 2)


async def test_purging_a_queue_forgets_its_keys(shard: Shard) -> None:
    """The same key then adds a new message."""
    await shard.add(T, Q, [message("x", key="k")])
    await purge(shard, T, Q)
    assert not (await shard.add(T, Q, [message("x", key="k")]))[0].duplicate
    assert len(await shard.poll(T, Q, max=5)) == 1


async def test_29_batch_with_a_key_is_added_once(shard: Shard) -> None:
    """A repeated request gets the same IDs, also with concurrent callers."""
    batch = [message(str(number)) for number in range(5)]
    first = await shard.add(T, Q, batch, batch_key="job-1")
    again = await asyncio.gather(*(shard.add(T, Q, batch, batch_key="job-1") for _ in range(20)))
    assert all([one.id for one in reply] == [one.id for one in first] for reply in again)
    assert all(one.duplicate for reply in again for one in reply)
    assert shard.reads.stats(T, Q).ready == 5
    other = await shard.add(T, Q, batch, batch_key="job-2")
    assert not any(one.duplicate for one in other)


async def test_29_a_batch_key_is_not_a_message_key(shard: Shard) -> None:
    """They have separate namespaces, and both work in one batch."""
    await shard.add(T, Q, [message("a", key="k")], batch_key="k")
    (known,) = await shard.add(T, Q, [message("a", key="k")], batch_key="other")
    assert known.duplicate
    assert shard.reads.stats(T, Q).ready == 1


async def test_33_a_batch_key_with_another_batch_is_a_conflict(shard: Shard) -> None:
    """Covers other bodies, another order, and more messages."""
    await shard.add(T, Q, [message("a"), message("b")], batch_key="k")
    for other in ([message("b"), message("a")], [message("a")], [message("ab"), message("")]):
        with pytest.raises(Conflict, match="another batch"):
            await shard.add(T, Q, other, batch_key="k")
    assert shard.reads.stats(T, Q).ready == 2


async def test_29_refused_messages_of_a_keyed_batch_can_be_retried(shard: Shard) -> None:
    """Added messages stay, once; the others get another chance."""
    await put_tenant(shard, T, quotas={"backlog": 2})
    batch = [message("a"), message("b"), message("c")]
    first = await shard.add(T, Q, batch, batch_key="k")
    assert [one.error is None for one in first] == [True, True, False]
    await put_tenant(shard, T, quotas={"backlog": 9})
    again = await shard.add(T, Q, batch, batch_key="k")
    assert [one.duplicate for one in again] == [True, True, False]
    assert [one.id for one in again[:2]] == [one.id for one in first[:2]]
    assert shard.reads.stats(T, Q).ready == 3
    assert all(one.duplicate for one in await shard.add(T, Q, batch, batch_key="k"))


async def test_32_batch_key_expires_with_the_window(shard: Shard, clock: ManualClock) -> None:
    """The same batch is then new work, and the row is deleted."""
    await put_queue(shard, T, Q, dedup_ms=1_000)
    await shard.add(T, Q, [message("a")], batch_key="k")
    await pass_time(shard, clock, 1_001)
    store = shard.state.store
    assert store.scan(store.ik, b"", b"\xff" * 40, 10) == []
    (again,) = await shard.add(T, Q, [message("a")], batch_key="k")
    assert not again.duplicate
