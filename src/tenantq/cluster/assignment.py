"""The assignment of shards to members: a pure function of the view, run by one elected member.

Shards without a living owner are assigned at once. Shards of a draining member, or of one outside their region, follow a few per step. Only a cluster
at rest is rebalanced by load: nobody joins or drains, no shard is on its way, and the cooldown is over.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tenantq.domain.cluster_view import ClusterView, Member

MOVES_PERCENT_MAX: Final = 5
"""Share of all shards that move in one step, but at least one shard."""

IDLE_SHARD_LOAD: Final = 0.001
"""Load of a shard that does nothing, so that idle shards are spread evenly too."""

BUSY_SHARD_LOAD: Final = 0.01
"""A lower load counts as none: in a cluster with little to do, shards would move for the sake of a few calls."""

IMBALANCE_MIN: Final = 0.1
"""A shard moves for balance only if its new member then has less load than the old one had, by this share of the mean."""


class AssignmentPlan(msgspec.Struct, frozen=True):
    """What the assigner wants to change."""

    changes: dict[int, str]  # by shard: its new member
    rebalanced: bool = False  # the changes only improve the balance


def moves_max(shards: int) -> int:
    """Return how many shards may move in one step."""
    return max(1, shards * MOVES_PERCENT_MAX // 100)


def plan_assignment(view: ClusterView, *, may_rebalance: bool) -> AssignmentPlan:
    """Return the next changes of the assignment; none if it is as it should be.

    ``may_rebalance`` is False during the cooldown and while a member that just joined has not waited long enough.
    """
    members = view.members
    alive = {shard: owner for shard, owner in view.assignment.items() if owner in members}
    loads = _shard_loads(view)
    totals = dict.fromkeys(members, 0.0)
    for shard, owner in alive.items():
        totals[owner] += loads[shard]

    lost = [shard for shard in range(view.cluster.shards) if shard not in alive]
    changes = _assign(view, lost, loads, totals)
    if changes:
        return AssignmentPlan(changes)

    room = moves_max(view.cluster.shards) - len(view.moves)
    draining = {id for id, member in members.items() if member.draining}
    leaving = [
        shard
        for shard, owner in sorted(alive.items())
        if shard not in view.moves and (may := eligible(view, shard)) and members[owner] not in may
    ]
    changes = _assign(view, leaving[: max(0, room)], loads, totals)
    if changes or draining or view.moves or not may_rebalance:
        return AssignmentPlan(changes)
    return AssignmentPlan(_rebalance(view, alive, loads, totals, room), rebalanced=True)


def _shard_loads(view: ClusterView) -> dict[int, float]:
    loads = dict.fromkeys(range(view.cluster.shards), IDLE_SHARD_LOAD)
    for member in view.members.values():
        for shard, load in member.loads.items():
            if shard in loads and load >= BUSY_SHARD_LOAD:
                loads[shard] = max(loads[shard], load + IDLE_SHARD_LOAD)
    return loads


def eligible(view: ClusterView, shard: int) -> list[Member]:
    """Return the members that may own a shard: in its region, and not draining."""
    region = view.cluster.region_of(shard)
    return [
        member for member in view.members.values() if not member.draining and (not region or member.region == region)
    ]


def _assign(
    view: ClusterView, shards: Iterable[int], loads: Mapping[int, float], totals: dict[str, float]
) -> dict[int, str]:
    """Give each shard to the member with the most room for it. A shard in a region without members stays where it is."""
    changes: dict[int, str] = {}
    for shard in sorted(shards, key=lambda one: (-loads[one], one)):
        candidates = eligible(view, shard)
        if not candidates:
            continue
        owner = view.owner_of(shard)  # it may still run there, though the assignment is lost
        if owner in candidates and view.assignment.get(shard) not in view.members:
            target = owner
        else:
            target = min(candidates, key=lambda one: ((totals[one.id] + loads[shard]) / one.capacity, one.id))
        assert target is not None
        changes[shard] = target.id
        totals[target.id] += loads[shard]
    return changes


def _rebalance(
    view: ClusterView, alive: Mapping[int, str], loads: Mapping[int, float], totals: dict[str, float], room: int
) -> dict[int, str]:
    """Move shards from busy members to idle ones while each move clearly helps."""
    capacity = {id: member.capacity for id, member in view.members.items()}
    if len(capacity) < 2:  # nobody to move to
        return {}
    gap_min = IMBALANCE_MIN * sum(totals.values()) / sum(capacity.values())
    shards: dict[str, set[int]] = {id: set() for id in capacity}
    for shard, owner in alive.items():
        shards[owner].add(shard)
    changes: dict[int, str] = {}
    for _ in range(room):
        for source in sorted(capacity, key=lambda one: (-totals[one] / capacity[one], one)):
            move = _best_move(view, source, shards[source], loads, totals, gap_min)
            if move is not None:
                shard, target = move
                shards[source].discard(shard)
                totals[source] -= loads[shard]
                totals[target] += loads[shard]
                changes[shard] = target
                break
        else:
            break
    return changes


def _best_move(
    view: ClusterView,
    source: str,
    shards: Iterable[int],
    loads: Mapping[int, float],
    totals: dict[str, float],
    gap_min: float,
) -> tuple[int, str] | None:
    """Return the shard whose move leaves the busier of the two members with the least load; None: no move helps."""
    targets: dict[str, Member | None] = {}  # by region: the least busy member
    capacity = view.members[source].capacity
    before = totals[source] / capacity
    best: tuple[float, int, str] | None = None
    for shard in sorted(shards):
        region = view.cluster.region_of(shard)
        if region not in targets:
            others = (one for one in eligible(view, shard) if one.id != source)
            targets[region] = min(others, key=lambda one: (totals[one.id] / one.capacity, one.id), default=None)
        target = targets[region]
        if target is None:
            continue
        after = (totals[target.id] + loads[shard]) / target.capacity
        if before - after >= gap_min and after < before:
            busier = max(after, (totals[source] - loads[shard]) / capacity)
            if best is None or busier < best[0]:
                best = (busier, shard, target.id)
    return best[1:] if best is not None else None
