"""Isolation: tenants and queues with similar names never mix."""

import asyncio
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenantq.engine.settings import ShardSettings
from tenantq.errors import NotFound
from tenantq.runtime.clock import ManualClock
from tests.administration import delete_queue, purge, put_tenant, queues
from tests.shards import message, pass_time
from tests.verbs import Shard

TENANTS = ("aaa", "aaaa", "aaa-a", "a-a", "000", "default")
QUEUES = ("a", "ab", "a-b", "a_b", "A", "x", "x-y", "x-dlq", "xx", "a.fifo", "ab.fifo", "0", "00", "-", "_")

places = st.tuples(st.sampled_from(TENANTS), st.sampled_from(QUEUES))
actions = st.tuples(st.sampled_from(["add", "add", "poll", "nack", "ack", "purge", "delete", "wait"]), places)


async def _run(steps: list[tuple[str, tuple[str, str]]]) -> None:
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as directory:
        options = ShardSettings(durability="os")
        shard = Shard(Path(directory) / "data", clock=clock, randomness=random.Random(5), settings=options)
        async with shard:
            for tenant in TENANTS:
                await put_tenant(shard, tenant, defaults={"max_attempts": 0})  # no dead letters
            await _act(shard, clock, steps)


async def _act(shard: Shard, clock: ManualClock, steps: list[tuple[str, tuple[str, str]]]) -> None:
    """Run random operations, and check that none sees or changes another queue's messages."""
    inside: dict[tuple[str, str], set[str]] = {}
    held: list[tuple[tuple[str, str], str, str]] = []
    for n, (action, (tenant, queue)) in enumerate(steps):
        here = (tenant, queue)
        known = inside.get(here)
        if action == "wait":
            await pass_time(shard, clock, 1)
        elif action == "add":
            (added,) = await shard.add(
                tenant,
                queue,
                [
                    message(f"{tenant}/{queue}/{n}", key="k", group="g")
                    if n % 3 == 0
                    else message(f"{tenant}/{queue}/{n}")
                ],
            )
            if added.error is None and not added.duplicate:
                inside.setdefault(here, set()).add(added.id)
        elif known is None:
            continue
        elif action == "poll":
            for got in await shard.poll(tenant, queue, max=3):
                assert (got.tenant, got.queue) == here
                assert got.body.decode().startswith(f"{tenant}/{queue}/")
                assert got.id in known
                held.append((here, got.id, got.receipt))
        elif action in {"ack", "nack"} and held:
            where, id, receipt = held.pop()
            if where != here:
                # a valid receipt in another queue is refused
                assert not (await shard.ack(tenant, queue, [receipt]))[0].ok
                assert not (await shard.extend(tenant, queue, [receipt], lease_ms=9))[0].ok
                assert not (await shard.remove(tenant, queue, [id]))[0].ok
                for call in (shard.reads.get(tenant, queue, id), shard.reads.result(tenant, queue, id)):
                    try:
                        await call
                    except NotFound:
                        continue
                    raise AssertionError("a message was seen from another place")
            if action == "ack":
                (outcome,) = await shard.ack(*where, [receipt])
                if outcome.ok:
                    inside[where].discard(id)
            else:
                await shard.nack(*where, [receipt], delay_ms=0)
        elif action == "purge":
            await purge(shard, tenant, queue)
            known.clear()
        elif action == "delete":
            await delete_queue(shard, tenant, queue, force=True)
            await pass_time(shard, clock, 0)
            del inside[here]
        for place, expected in inside.items():
            stats = shard.reads.stats(*place)
            assert stats.ready + stats.delayed + stats.in_flight == len(expected)
    for tenant in TENANTS:
        named = {queue for owner, queue in inside if owner == tenant}
        assert set(queues(shard, tenant)) == named


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(actions, min_size=10, max_size=60))
def test_39_similar_names_never_mix(steps: list[tuple[str, tuple[str, str]]]) -> None:
    """Deliveries, receipts, keys, groups, purges and deletes stay in their tenant and queue."""
    asyncio.run(_run(steps))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_39_random_names_never_mix(data: st.DataObject) -> None:
    """With random valid names, each queue delivers exactly what was added to it."""
    tenants = data.draw(
        st.lists(st.from_regex(r"[a-z0-9][a-z0-9-]{1,6}[a-z0-9]", fullmatch=True), min_size=2, max_size=5, unique=True)
    )
    queues = data.draw(
        st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,4}(\.fifo)?", fullmatch=True), min_size=2, max_size=6, unique=True)
    )

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            options = ShardSettings(durability="os")
            shard = Shard(Path(directory) / "data", clock=ManualClock(), randomness=random.Random(5), settings=options)
            async with shard:
                for tenant in tenants:
                    await put_tenant(shard, tenant)
                    for queue in queues:
                        await shard.add(
                            tenant, queue, [message(f"{tenant}/{queue}", key="same", attributes={"q": queue})]
                        )
                for tenant in tenants:
                    for queue in queues:
                        (got,) = await shard.poll(tenant, queue, max=10)
                        assert (got.body.decode(), got.attributes) == (f"{tenant}/{queue}", {"q": queue})

    asyncio.run(run())
