"""The load of shards, by which they are assigned."""

from __future__ import annotations

import random

import msgspec
import pytest

from tenantq.cluster.assignment import plan_assignment
from tenantq.cluster.membership import COOLDOWN_MS
from tenantq.cluster.shard_loads import MEAN_OVER_MS, ShardLoads
from tenantq.domain.cluster_view import Cluster, ClusterView, Member


@pytest.mark.parametrize("every_ms", [20, 50, 400])
def test_a_load_does_not_depend_on_how_often_it_is_measured(every_ms: int) -> None:
    """Members measure more often while shards move."""
    loads = ShardLoads(0)
    for now_ms in range(0, 2 * MEAN_OVER_MS, every_ms):
        found = loads.measure(now_ms, {7: now_ms * 250})
    assert found == {7: pytest.approx(0.25)}


def test_a_burst_counts_little_and_a_new_shard_nothing() -> None:
    """The mean of a shard that was opened just now is that of its first moments."""
    loads = ShardLoads(0)
    for now_ms in range(0, 2 * MEAN_OVER_MS, 400):
        loads.measure(now_ms, {7: 0})
    assert loads.measure(now_ms + 400, {7: 400_000}) == {7: pytest.approx(0.04)}
    assert loads.measure(now_ms + 800, {7: 400_000, 8: 9_000_000})[8] == 0.0
    assert loads.measure(now_ms + 1_200, {7: 400_000, 8: 9_200_000})[8] == pytest.approx(0.5)


def test_shards_with_steady_load_stay() -> None:
    """Their calls arrive at random: what one member measures is always a bit more than what another does."""
    rng = random.Random(16)
    ids = ["a", "b", "c"]
    view = ClusterView(
        cluster=Cluster(id="c", format="1", shards=16),
        members={id: Member(id=id, peer_address="") for id in ids},
        assignment={shard: ids[shard % 3] for shard in range(16)},
        assigner="a",
        directory_version=0,
    )
    members = {id: ShardLoads(0) for id in ids}
    busy_us = dict.fromkeys(range(12), 0)
    moves, moved_ms = 0, 0
    for now_ms in range(0, 300_000, 400):
        for shard in busy_us:
            busy_us[shard] += sum(rng.random() < 0.3 for _ in range(20)) * 2_000  # about 6 calls of 2 ms
        measured = {
            id: loads.measure(
                now_ms, {shard: busy_us.get(shard, 0) for shard, at in view.assignment.items() if at == id}
            )
            for id, loads in members.items()
        }
        view = msgspec.structs.replace(
            view,
            members={
                id: Member(id=id, peer_address="", owned=dict.fromkeys(found, 1), loads=found)
                for id, found in measured.items()
            },
        )
        plan = plan_assignment(view, may_rebalance=now_ms - moved_ms >= COOLDOWN_MS)
        if plan.changes:
            moves, moved_ms = moves + len(plan.changes), now_ms
            view = msgspec.structs.replace(view, assignment={**view.assignment, **plan.changes})
    assert moves <= 3
