"""Shards are assigned to living members of their region, evenly by load, and only a few move at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenantq.cluster.assignment import isolated, moves_max, plan_assignment
from tenantq.domain.cluster_view import Cluster, ClusterView, Member


def member(id: str, *, owned: dict[int, int] | None = None, draining: bool = False, region: str = "",
           loads: dict[int, float] | None = None, capacity: float = 1.0,
           unreachable: tuple[str, ...] = (), cannot_open: tuple[int, ...] = ()) -> Member:  # fmt: skip
    """Describe a member."""
    return Member(id=id, peer_address="127.0.0.1:1", owned=owned or {}, draining=draining, region=region, loads=loads or {},
                  capacity=capacity, unreachable=unreachable, cannot_open=cannot_open)  # fmt: skip


def view(
    members: list[Member], assignment: dict[int, str], shards: int = 64, regions: tuple[str, ...] = ()
) -> ClusterView:
    """Describe a cluster."""
    cluster = Cluster(id="c", format="1", shards=shards, regions=regions)
    return ClusterView(cluster=cluster, members={one.id: one for one in members}, assignment=assignment)


def owned_by(id: str, shards: range, **facts: object) -> Member:
    """Describe a member and the shards that it owns."""
    return member(id, owned=dict.fromkeys(shards, 1), **facts)  # type: ignore[arg-type]  # each by its name


def settle(members: list[Member], assignment: dict[int, str], steps: int = 200, **facts: object) -> dict[int, str]:
    """Apply plans until there are none; each move completes before the next plan."""
    assignment = dict(assignment)
    loads = {shard: load for one in members for shard, load in one.loads.items()}
    for _ in range(steps):
        now = [
            member(one.id, owned={shard: 1 for shard, owner in assignment.items() if owner == one.id},
                   loads={shard: loads.get(shard, 0.0) for shard, owner in assignment.items() if owner == one.id},
                   draining=one.draining, region=one.region, capacity=one.capacity, cannot_open=one.cannot_open)
            for one in members
        ]  # fmt: skip
        plan = plan_assignment(view(now, assignment, **facts), may_rebalance=True)  # type: ignore[arg-type]  # each by its name
        if not plan.changes:
            return assignment
        assignment.update(plan.changes)
    raise AssertionError("the assignment never comes to rest")


def test_a_first_member_gets_every_shard_at_once() -> None:
    """Nothing is moved, so the bound on moves does not apply."""
    plan = plan_assignment(view([member("a")], {}), may_rebalance=False)
    assert plan.changes == dict.fromkeys(range(64), "a")


def test_shards_of_a_dead_member_are_assigned_at_once_and_evenly() -> None:
    """A crash is repaired in one step, whatever the bound on moves."""
    a, b = owned_by("a", range(22)), owned_by("b", range(22, 43))
    assignment = {shard: "a" if shard < 22 else "b" if shard < 43 else "dead" for shard in range(64)}
    changes = plan_assignment(view([a, b], assignment), may_rebalance=False).changes
    assert changes.keys() == set(range(43, 64))
    assert abs(list(changes.values()).count("a") - list(changes.values()).count("b")) <= 1


def test_a_joining_member_gets_its_share_in_bounded_steps() -> None:
    """At most five percent of the shards move in one step."""
    a, b = owned_by("a", range(64)), member("b")
    plan = plan_assignment(view([a, b], dict.fromkeys(range(64), "a")), may_rebalance=True)
    assert plan.rebalanced
    assert len(plan.changes) == moves_max(64) == 3
    after = settle([a, b], dict.fromkeys(range(64), "a"))
    assert 30 <= list(after.values()).count("b") <= 34


def test_a_shard_on_its_way_to_a_draining_member_goes_elsewhere() -> None:
    """It would move twice otherwise. A shard that the member owns already has to leave it, within the bound."""
    a, b, c = owned_by("a", range(2)), owned_by("b", range(2, 4), draining=True), owned_by("c", range(4, 64))
    assignment = {0: "b", 1: "c", 2: "b", 3: "b", **dict.fromkeys(range(4, 64), "c")}
    assert plan_assignment(view([a, b, c], assignment), may_rebalance=False).changes == {0: "a"}
    leaving = owned_by("a", range(2), draining=True)
    assert plan_assignment(view([leaving, b, c], assignment), may_rebalance=False).changes == {0: "c"}
    alone = plan_assignment(view([leaving, b], dict.fromkeys(range(64), "b")), may_rebalance=False)
    assert not alone.changes  # nobody may own them


def test_a_shard_that_its_member_cannot_open_goes_to_one_that_may() -> None:
    """It moves at once, whatever the bound on moves, and also if it was on its way from another member."""
    assignment = {shard: "a" if shard < 32 else "b" for shard in range(64)}
    lost = tuple(range(8))
    a, b = owned_by("a", range(8, 32), cannot_open=lost), owned_by("b", range(32, 64))
    assert plan_assignment(view([a, b], assignment), may_rebalance=False).changes == dict.fromkeys(lost, "b")
    a, b = owned_by("a", range(32), cannot_open=(40,)), owned_by("b", range(32, 64))
    assert plan_assignment(view([a, b], {**assignment, 40: "a"}), may_rebalance=False).changes == {40: "b"}


def test_a_shard_that_no_member_can_open_stays_where_it_is() -> None:
    """Its store is down for all of them. A member outside its region does not get it either."""
    assignment = dict.fromkeys(range(64), "a")
    a, b = owned_by("a", range(1, 64), cannot_open=(0,)), member("b", cannot_open=(0,))
    assert plan_assignment(view([a, b], assignment), may_rebalance=False).changes == {}
    assert plan_assignment(view([b], assignment), may_rebalance=False).changes[0] == "b"
    c, d = owned_by("a", range(1, 64), region="eu", cannot_open=(0,)), member("d", region="us")
    assert plan_assignment(view([c, d], assignment, regions=("eu",)), may_rebalance=False).changes == {}


def test_balancing_spares_shards_that_the_target_cannot_open() -> None:
    """Others move instead."""
    lost = tuple(range(40))
    a, b = owned_by("a", range(64)), member("b", cannot_open=lost)
    after = settle([a, b], dict.fromkeys(range(64), "a"))
    assert {after[shard] for shard in lost} == {"a"}
    assert {after[shard] for shard in range(40, 64)} == {"b"}


def test_no_balancing_while_a_shard_is_moving() -> None:
    """One step ends before the next begins."""
    a, b = owned_by("a", range(64)), member("b")
    assignment = {**dict.fromkeys(range(64), "a"), 0: "b"}
    assert not plan_assignment(view([a, b], assignment), may_rebalance=True).changes


def test_no_balancing_while_a_member_drains() -> None:
    """Only the shards of the draining member move, a few at a time."""
    a, b, c = owned_by("a", range(60)), owned_by("b", range(60, 64), draining=True), member("c")
    assignment = {shard: "a" if shard < 60 else "b" for shard in range(64)}
    changes = plan_assignment(view([a, b, c], assignment), may_rebalance=True).changes
    assert changes == {60: "c", 61: "c", 62: "c"}


def test_the_last_member_keeps_its_shards_while_it_drains() -> None:
    """No other member could own them."""
    a = owned_by("a", range(64), draining=True)
    assert not plan_assignment(view([a], dict.fromkeys(range(64), "a")), may_rebalance=True).changes


def test_shards_are_balanced_by_load() -> None:
    """Two busy shards end on different members."""
    a, b = owned_by("a", range(64), loads={0: 1.0, 1: 1.0}), member("b")
    after = settle([a, b], dict.fromkeys(range(64), "a"))
    assert after[0] != after[1]


def test_shards_do_not_move_under_little_load() -> None:
    """A few calls to one tenant are no reason to move others."""
    a, b = owned_by("a", range(32), loads={0: 0.004, 1: 0.002}), owned_by("b", range(32, 64))
    assignment = {shard: "a" if shard < 32 else "b" for shard in range(64)}
    assert settle([a, b], assignment) == assignment


def test_a_shard_never_leaves_its_region() -> None:
    """A region without a member keeps its shards unassigned."""
    eu, us = member("eu", region="eu"), member("us", region="us")
    changes = plan_assignment(view([eu, us], {}, regions=("eu", "us", "ap")), may_rebalance=True).changes
    assert {changes.get(shard, "nobody") for shard in range(0, 64, 3)} == {"eu"}
    assert {changes.get(shard, "nobody") for shard in range(1, 64, 3)} == {"us"}
    assert not changes.keys() & set(range(2, 64, 3))


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "eu", "us"]), st.booleans(), st.sampled_from([0.5, 1.0, 4.0])),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.sampled_from([0.0, 0.01, 0.2, 1.0]), min_size=8, max_size=8),
    st.lists(st.integers(0, 8), min_size=8, max_size=8),
    st.sampled_from([(), ("eu",), ("eu", "us")]),
)
def test_assignments_converge_with_every_shard_on_an_eligible_member(
    members: list[tuple[str, bool, float]], loads: list[float], owners: list[int], regions: tuple[str, ...]
) -> None:
    """For any members, loads and initial assignment. A shard is unassigned only if no member may own it."""
    ids = [f"m{number}" for number in range(len(members))]
    assignment = {shard: f"m{owner}" for shard, owner in enumerate(owners)}
    given = [
        member(id, region=region, draining=draining, capacity=capacity,
               loads={shard: load for shard, load in enumerate(loads) if assignment[shard] == id})
        for id, (region, draining, capacity) in zip(ids, members, strict=True)
    ]  # fmt: skip
    after = settle(given, assignment, shards=8, regions=regions)
    for shard in range(8):
        region = regions[shard % len(regions)] if regions else ""
        may = {one.id for one in given if not one.draining and (not region or one.region == region)}
        assert after[shard] in may or not may


def test_idle_shards_do_not_move_because_of_load() -> None:
    """They would not make a busy member less busy, so they would move forever."""
    loads = {0: 0.08, 1: 0.07, 2: 0.07, 3: 0.09, 4: 0.09, 5: 0.14, 6: 0.11, 7: 0.14}
    homes = {**dict.fromkeys((0, 1, 2, 3), "a"), **dict.fromkeys((4, 5), "b"), **dict.fromkeys((6, 7), "c")}
    homes |= dict(zip(range(8, 18), "aabbbbcccc", strict=True))  # six for each member
    members = [
        member(id, owned={shard: 1 for shard, owner in homes.items() if owner == id},
               loads={shard: load for shard, load in loads.items() if homes[shard] == id})
        for id in "abc"
    ]  # fmt: skip
    assert plan_assignment(view(members, homes, 18), may_rebalance=True).changes == {}


def isolating(given: ClusterView) -> ClusterView:
    """Return a view with the members that no other one reaches, as each member computes them."""
    return replace(given, isolated=isolated(given.members.values()))


def test_a_member_that_no_other_one_reaches_gets_no_shards() -> None:
    """Neither for balance nor after a crash. It keeps what it has, and one answer suffices."""
    a, b = owned_by("a", range(64), unreachable=("c",)), member("b", unreachable=("c",))
    c = member("c", unreachable=("a",))
    assignment = dict.fromkeys(range(64), "a")
    found = plan_assignment(isolating(view([a, b, c], assignment)), may_rebalance=True).changes
    assert set(found.values()) == {"b"}
    lost = {shard: "a" if shard < 40 else "c" if shard < 44 else "dead" for shard in range(64)}
    kept = [owned_by("a", range(40), unreachable=("c",)), b, owned_by("c", range(40, 44))]
    assert set(plan_assignment(isolating(view(kept, lost)), may_rebalance=True).changes.values()) == {"b"}
    reached = [a, member("b"), c]
    assert set(plan_assignment(isolating(view(reached, assignment)), may_rebalance=True).changes.values()) == {"b", "c"}


def test_of_two_members_that_do_not_reach_each_other_one_has_the_shards() -> None:
    """It keeps them, gets further ones, and hands them over only when it drains."""
    a, b = owned_by("a", range(60), unreachable=("b",)), member("b", unreachable=("a",))
    assignment = dict.fromkeys(range(60), "a")
    plan = plan_assignment(isolating(view([b, a], assignment, 60)), may_rebalance=True)
    assert not plan.changes
    grown = plan_assignment(isolating(view([b, a], assignment)), may_rebalance=True).changes
    assert grown == dict.fromkeys(range(60, 64), "a")
    new = [member("a", unreachable=("b",)), b]
    assert len(set(plan_assignment(isolating(view(new, {})), may_rebalance=True).changes.values())) == 1
    leaving = [replace(a, draining=True), b]
    assert set(plan_assignment(isolating(view(leaving, assignment, 60)), may_rebalance=True).changes.values()) == {"b"}
