"""Where a tenant belongs: even, stable, never outside the regions that it allows, and moving only what must move."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.placement import HeldTenant, Topology, TopologyShard, plan_moves, unplaced_tenants
from tenantq.errors import Invalid

NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{1,30}[a-z0-9]", fullmatch=True)
REGIONS = ("eu", "us", "ap", "")
TOPOLOGIES = st.lists(st.sampled_from(REGIONS), min_size=1, max_size=40).map(
    lambda regions: Topology(tuple(TopologyShard(f"s{at}", region) for at, region in enumerate(regions)))
)
ALLOWED = st.lists(st.sampled_from(("eu", "us", "ap", "sa")), max_size=3, unique=True)


@given(TOPOLOGIES, NAMES, ALLOWED)
def test_a_tenant_is_never_outside_the_regions_that_it_allows(
    topology: Topology, tenant: str, allowed: list[str]
) -> None:
    """Where there is none of them it is an error, and never another region; a shard without a region is none of them."""
    if allowed and not any(shard.region in allowed for shard in topology.shards):
        with pytest.raises(Invalid, match="no shard is in a region that the tenant allows"):
            topology.route(tenant, allowed)
        assert unplaced_tenants(topology, [("acme", tuple(allowed))])
        return
    found = topology.route(tenant, allowed)
    assert found in topology.shards
    assert not allowed or found.region in allowed
    assert found == topology.route(tenant, reversed(allowed))
    assert not unplaced_tenants(topology, [("acme", tuple(allowed))])


@given(TOPOLOGIES, NAMES, ALLOWED, st.sampled_from(("eu", "us")))
def test_a_new_shard_takes_tenants_and_moves_none_between_the_others(
    topology: Topology, tenant: str, allowed: list[str], region: str
) -> None:
    """And where the tenant may not be on it, nothing moves at all."""
    after = Topology((*topology.shards, TopologyShard("new", region)))
    if not topology.eligible(allowed):
        return
    old, new = topology.route(tenant, allowed), after.route(tenant, allowed)
    assert new.name in {old.name, "new"}
    if allowed and region not in allowed:
        assert new == old


@pytest.mark.parametrize("count", [1, 2, 9])
def test_tenants_are_spread_evenly_and_about_one_in_n_moves(count: int) -> None:
    """10,000 tenants with names that differ little: none of the shards has much more than its part."""
    before = Topology(tuple(TopologyShard(f"s{at}", "eu") for at in range(count)))
    tenants = [HeldTenant(name=f"customer-{at}", regions=(), queues=3, messages=2, bytes=10) for at in range(10_000)]
    found = plan_moves(tenants, before, before.grown(1))
    assert found.moved_share == pytest.approx(1 / (count + 1), rel=0.1)
    assert (found.moved_queues, found.moved_bytes) == (3 * found.moved_tenants, 10 * found.moved_tenants)
    assert {move.to_shard for move in found.moves} == {"eu-new-1"}
    for load in found.shards:
        assert load.tenants_after == pytest.approx(len(tenants) / (count + 1), rel=0.1)
        held = (load.queues_after, load.messages_after, load.bytes_after)
        assert held == (3 * load.tenants_after, 2 * load.tenants_after, 10 * load.tenants_after)
    counts = Counter(before.route(one.name).name for one in tenants)
    assert counts == {load.name: load.tenants_before for load in found.shards if load.tenants_before}


def test_another_process_finds_the_same_shards() -> None:
    """Nothing depends on the seed of a process's hashes."""
    shards = ", ".join(f"TopologyShard('s{at}', 'eu')" for at in range(7))
    script = (
        "from tenantq.domain.placement import TopologyShard, Topology\n"
        f"print([Topology(({shards},)).route(f'tenant-{{at}}', ['eu']).name for at in range(64)])"
    )
    topology = Topology(tuple(TopologyShard(f"s{at}", "eu") for at in range(7)))
    here = [topology.route(f"tenant-{at}", ["eu"]).name for at in range(64)]
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)
