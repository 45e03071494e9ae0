"""Where a queue belongs: even, stable, never outside the regions that its tenant allows, and moving only what must move."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.errors import Invalid
from tenantq.queue_moves import HeldQueue, home_ids, homeless, moves
from tenantq.topology import Shard, Topology

IDS = st.integers(1, 2**32 - 1)
REGIONS = ("eu", "us", "ap", "")
TOPOLOGIES = st.lists(st.sampled_from(REGIONS), min_size=1, max_size=40).map(
    lambda regions: Topology(tuple(Shard(f"s{at}", region) for at, region in enumerate(regions)))
)
ALLOWED = st.lists(st.sampled_from(("eu", "us", "ap", "sa")), max_size=3, unique=True)


@given(TOPOLOGIES, IDS, IDS, ALLOWED)
def test_a_queue_is_never_outside_the_regions_that_its_tenant_allows(
    topology: Topology, tenant: int, queue: int, allowed: list[str]
) -> None:
    """Where there is none of them it is an error, and never another region; a shard without a region is none of them."""
    if allowed and not any(shard.region in allowed for shard in topology.shards):
        with pytest.raises(Invalid, match="no shard is in a region that the tenant allows"):
            topology.route(tenant, queue, allowed)
        assert homeless(topology, [("acme", tuple(allowed))])
        return
    found = topology.route(tenant, queue, allowed)
    assert found in topology.shards
    assert not allowed or found.region in allowed
    assert found == topology.route(tenant, queue, reversed(allowed))
    assert not homeless(topology, [("acme", tuple(allowed))])


@given(TOPOLOGIES, IDS, IDS, ALLOWED, st.sampled_from(("eu", "us")))
def test_a_new_shard_takes_queues_and_moves_none_between_the_others(
    topology: Topology, tenant: int, queue: int, allowed: list[str], region: str
) -> None:
    """And where the tenant may not be on it, nothing moves at all."""
    after = Topology((*topology.shards, Shard("new", region)))
    if not topology.eligible(allowed):
        return
    old, new = topology.route(tenant, queue, allowed), after.route(tenant, queue, allowed)
    assert new.name in {old.name, "new"}
    if allowed and region not in allowed:
        assert new == old


@pytest.mark.parametrize("count", [1, 2, 9])
def test_queues_are_spread_evenly_and_about_one_in_n_moves(count: int) -> None:
    """10,000 queues with ids as they are given out: none of the shards has much more than its part."""
    before = Topology(tuple(Shard(f"s{at}", "eu") for at in range(count)))
    queues = [
        HeldQueue(tenant=f"t{t}", tenant_id=t, regions=(), name=f"q{q}", home_id=q, messages=1, bytes=10)
        for t in range(1, 2_001)
        for q in range(1, 6)
    ]
    found = moves(queues, before, before.grown(1))
    assert found.moved_share == pytest.approx(1 / (count + 1), rel=0.1)
    assert {move.to_shard for move in found.moves} == {"eu-new-1"}
    for load in found.shards:
        assert load.queues_after == pytest.approx(len(queues) / (count + 1), rel=0.1)
        assert (load.messages_after, load.bytes_after) == (load.queues_after, 10 * load.queues_after)
    counts = Counter(before.route(one.tenant_id, one.home_id).name for one in queues)
    assert counts == {load.name: load.queues_before for load in found.shards if load.queues_before}


def test_another_process_finds_the_same_shards() -> None:
    """Nothing depends on the seed of a process's hashes."""
    shards = ", ".join(f"Shard('s{at}', 'eu')" for at in range(7))
    script = (
        "from tenantq.topology import Shard, Topology\n"
        f"print([Topology(({shards},)).route(t, q, ['eu']).name for t in range(1, 9) for q in range(1, 9)])"
    )
    here = [
        Topology(tuple(Shard(f"s{at}", "eu") for at in range(7))).route(t, q, ["eu"]).name
        for t in range(1, 9)
        for q in range(1, 9)
    ]
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)


def test_dead_letters_lie_with_their_queue() -> None:
    """Also where the name is configured, where several share them, and where letters have letters of their own."""
    queues = {
        "mail": (1, None), "mail-dlq": (5, None), "mail-dlq-dlq": (6, None), "web": (2, "lost"), "api": (3, "lost"),
        "lost": (4, None), "ring": (7, "gnir"), "gnir": (8, "ring"),
    }  # fmt: skip
    homes = home_ids(queues)
    assert homes == {
        "mail": 1, "mail-dlq": 1, "mail-dlq-dlq": 1, "web": 2, "api": 3, "lost": 2, "ring": 8, "gnir": 7,
    }  # fmt: skip
