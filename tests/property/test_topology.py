"""Tenant placement: even, stable, never outside the allowed regions, and moving only what must move."""

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
def test_tenant_is_never_placed_outside_its_regions(topology: Topology, tenant: str, allowed: list[str]) -> None:
    """Without a shard in an allowed region it is an error. A shard without a region is in none of them."""
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
def test_new_shard_takes_tenants_and_moves_none_between_the_others(
    topology: Topology, tenant: str, allowed: list[str], region: str
) -> None:
    """Tenants that may not be on it do not move at all."""
    after = Topology((*topology.shards, TopologyShard("new", region)))
    if not topology.eligible(allowed):
        return
    old, new = topology.route(tenant, allowed), after.route(tenant, allowed)
    assert new.name in {old.name, "new"}
    if allowed and region not in allowed:
        assert new == old


@pytest.mark.parametrize("count", [1, 2, 9])
def test_tenants_are_spread_evenly_and_about_one_in_n_moves(count: int) -> None:
    """With 10,000 similar names, no shard has much more than its share."""
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


def test_placement_is_the_same_in_every_process() -> None:
    """It does not depend on a process's hash seed."""
    shards = ", ".join(f"TopologyShard('s{at}', 'eu')" for at in range(7))
    script = (
        "from tenantq.domain.placement import TopologyShard, Topology\n"
        f"print([Topology(({shards},)).route(f'tenant-{{at}}', ['eu']).name for at in range(64)])"
    )
    topology = Topology(tuple(TopologyShard(f"s{at}", "eu") for at in range(7)))
    here = [topology.route(f"tenant-{at}", ["eu"]).name for at in range(64)]
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)
