"""Where the queues of a spread tenant live."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tenantq.cluster import placement_plan
from tenantq.cluster.placement_plan import plan_pin
from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.domain.placement import placement_group, spread_shard, unit_name
from tenantq.errors import Conflict, Invalid

CLUSTER = Cluster(id="c", format="f", shards=16)
plan_spread = partial(placement_plan.plan_spread, served=("eu", "us"))
plan_dedication = partial(placement_plan.plan_dedication, served=("eu", "us"))
QUEUES = [f"queue-{number}" for number in range(2_000)]


def test_one_more_shard_moves_its_share_of_the_queues_to_it() -> None:
    """All other queues stay, and all shards have about as many."""
    four, five = (3, 9, 1, 12), (3, 9, 1, 12, 7)
    before = {queue: spread_shard("acme", queue, four) for queue in QUEUES}
    after = {queue: spread_shard("acme", queue, five) for queue in QUEUES}
    moved = [queue for queue in QUEUES if before[queue] != after[queue]]
    assert {after[queue] for queue in moved} == {7}
    assert 300 < len(moved) < 500
    assert min(Counter(after.values()).values()) > 300


@pytest.mark.parametrize(
    ("queue", "group"),
    [
        ("orders", "orders"),
        ("orders-dlq", "orders"),
        ("orders-dlq-dlq", "orders"),
        ("orders.fifo", "orders.fifo"),
        ("orders-dlq.fifo", "orders.fifo"),
        ("-dlq", "-dlq"),
        ("dlq", "dlq"),
    ],
)
def test_a_queue_and_its_dead_letters_are_one_group(queue: str, group: str) -> None:
    """The names of dead-letter queues lead to the queue of their letters."""
    assert placement_group(queue) == group
    assert unit_name("acme", queue) == f"acme/{group}"


def test_a_plan_keeps_the_home_and_the_shards_in_use() -> None:
    """Shards are added and removed at the end, dedicated ones are passed over."""
    rows = {"acme": TenantPlacement(shard=5), "alone": TenantPlacement(shard=6, dedicated=True, pinned=True)}
    four = plan_spread(CLUSTER, rows, "acme", 4, ())["acme"].next_shards
    assert four[0] == 5
    assert len(set(four)) == 4
    assert 6 not in four
    rows["acme"] = TenantPlacement(shard=5, shards=four)
    six = plan_spread(CLUSTER, rows, "acme", 6, ())["acme"].next_shards
    assert six[:4] == four
    assert plan_spread(CLUSTER, rows, "acme", 2, ())["acme"].next_shards == four[:2]
    assert plan_spread(CLUSTER, rows, "acme", 4, ()) == {}
    assert plan_spread(CLUSTER, rows, "acme", 1, ())["acme"].next_shards == (5,)


def test_impossible_plans_are_refused() -> None:
    """Too many shards, a change in progress, and tenants that cannot move as a whole."""
    rows = {"acme": TenantPlacement(shard=5), "other": TenantPlacement(shard=2)}
    regions = Cluster(id="c", format="f", shards=16, regions=("eu", "us"))
    for cluster, spread, allowed in ((CLUSTER, 17, ()), (CLUSTER, 0, ()), (regions, 9, ("us",))):
        with pytest.raises(Invalid, match="spread: must be between 1 and"):
            plan_spread(cluster, rows, "acme", spread, allowed)
    assert all(one % 2 for one in plan_spread(regions, rows, "acme", 8, ("us",))["acme"].next_shards)
    rows["acme"] = TenantPlacement(shard=5, shards=(5, 2), leaving=(9,))
    with pytest.raises(Conflict, match="are moving"):
        plan_spread(CLUSTER, rows, "acme", 3, ())
    with pytest.raises(Conflict, match="Set its spread to 1 first"):
        plan_pin(CLUSTER, rows, "acme", 7, ())
    with pytest.raises(Conflict, match="Set its spread to 1 first"):
        plan_dedication(CLUSTER, rows, "acme", 7, ())
    with pytest.raises(Conflict, match="spread tenants"):
        plan_dedication(CLUSTER, rows, "other", 2, ())


def test_plans_use_no_shard_that_no_server_can_own() -> None:
    """Such shards are empty, so they would be chosen first."""
    cluster = Cluster(id="c", format="f", shards=16, regions=("eu", "us"))
    rows = {f"tenant-{number}": TenantPlacement(shard=number) for number in range(0, 16, 2)}
    served = {"eu"}
    spread = placement_plan.plan_spread(cluster, rows, "tenant-0", 8, (), served)["tenant-0"].next_shards
    assert sorted(spread) == list(range(0, 16, 2))
    with pytest.raises(Invalid, match=r"number of available shards \(9, 8\)"):
        placement_plan.plan_spread(cluster, rows, "tenant-0", 9, (), served)
    plan = placement_plan.plan_dedication(cluster, rows, "tenant-0", None, (), served)
    moving = {name: row.moving_to for name, row in plan.items()}
    assert moving.pop("tenant-0") == 2
    assert list(moving) == ["tenant-2"]
    assert all(shard is not None and shard % 2 == 0 for shard in moving.values())
