"""The assignment of shards to members: a pure function of the view, run by one elected member.

Shards without a living owner, or whose member cannot open them, are assigned at once. Shards of a draining member, or of
one outside their region, follow a few per step. Only a cluster at rest is rebalanced by load: nobody joins or drains, no
shard is on its way, and the cooldown is over. Members that no other one reaches get no shards.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from tenantq.domain.cluster_view import ClusterView, Member

MOVES_PERCENT_MAX: Final = 5
"""Share of all shards that move in one step, but at least one shard."""

IDLE_SHARD_LOAD: Final = 0.001
"""Load of a shard that does nothing, so that shards of a dead member are spread evenly."""

BUSY_SHARD_LOAD: Final = 0.01
"""A lower load counts as none: in a cluster with little to do, shards would move for the sake of a few calls."""

IMBALANCE_MIN: Final = 0.1
"""A shard moves for balance only if its new member then carries less than the old one did, by this share of the mean."""


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

    moves = view.moves
    changes = _assign(view, _misdirected(view, moves), loads, totals)
    if changes:
        return AssignmentPlan(changes)
    room = moves_max(view.cluster.shards) - len(moves)
    draining = {id for id, member in members.items() if member.draining}
    leaving = [
        shard
        for shard, owner in sorted(alive.items())
        if shard not in moves and (may := eligible(view, shard)) and members[owner] not in may
    ]
    changes = _assign(view, leaving[: max(0, room)], loads, totals)
    if changes or draining or moves or not may_rebalance:
        return AssignmentPlan(changes)
    return AssignmentPlan(_rebalance(view, alive, loads, room), rebalanced=True)


def _misdirected(view: ClusterView, moves: Mapping[int, str]) -> list[int]:
    """Return the shards that are moving to a member that may no longer own them. It would only hand them on."""
    return [
        shard for shard, target in moves.items() if (may := eligible(view, shard)) and view.members[target] not in may
    ]


def _shard_loads(view: ClusterView) -> dict[int, float]:
    loads = dict.fromkeys(range(view.cluster.shards), IDLE_SHARD_LOAD)
    for member in view.members.values():
        for shard, load in member.loads.items():
            if shard in loads and load >= BUSY_SHARD_LOAD:
                loads[shard] = max(loads[shard], load + IDLE_SHARD_LOAD)
    return loads


def eligible(view: ClusterView, shard: int) -> list[Member]:
    """Return the members that may own a shard: in its region, not draining, and able to open it, as long as any is."""
    allowed = _allowed(view, view.cluster.region_of(shard))
    return [member for member in allowed if shard not in member.cannot_open] or allowed


def _allowed(view: ClusterView, region: str) -> list[Member]:
    """Return the members that are in a region and not draining."""
    return [
        member for member in view.members.values() if not member.draining and (not region or member.region == region)
    ]


def isolated(members: Collection[Member]) -> frozenset[str]:
    """Return the members that no other one reaches."""
    if all(not one.unreachable for one in members):
        return frozenset()
    return frozenset(
        one.id
        for one in members
        if len(members) > 1 and all(one.id in other.unreachable for other in members if other is not one)
    )


def _receivers(view: ClusterView, shard: int) -> list[Member]:
    """Return the members that may get a shard: eligible ones that others reach, or else the one that has the most shards.

    What an isolated member has stays there: it may still be reached by clients.
    """
    found = eligible(view, shard)
    reached = [member for member in found if member.id not in view.isolated]
    if reached or not found:
        return reached
    counts = Counter(view.assignment.values())
    return [max(found, key=lambda one: (counts[one.id], -one.joined_at, one.id))]


def _assign(
    view: ClusterView, shards: Iterable[int], loads: Mapping[int, float], totals: dict[str, float]
) -> dict[int, str]:
    """Give each shard to the member with the most room for it. A shard in a region without members stays where it is."""
    changes: dict[int, str] = {}
    for shard in sorted(shards, key=lambda one: (-loads[one], one)):
        candidates = _receivers(view, shard)
        if not candidates:
            continue
        owner = view.owner_of(shard)  # it may still run there, though the assignment is lost
        if owner in eligible(view, shard) and view.assignment.get(shard) not in view.members:
            target = owner
        else:
            target = min(candidates, key=lambda one: ((totals[one.id] + loads[shard]) / one.capacity, one.id))
        assert target is not None
        changes[shard] = target.id
        totals[target.id] += loads[shard]
    return changes


def _rebalance(view: ClusterView, alive: Mapping[int, str], loads: Mapping[int, float], room: int) -> dict[int, str]:
    """Move busy shards from busy members to others while each move clearly helps; then spread idle shards by their number.

    An idle shard would not make its member less busy, so load is no reason to move it.
    """
    if len(view.members) < 2:  # nobody to move to
        return {}
    busy = {shard: loads[shard] for shard in alive if loads[shard] > IDLE_SHARD_LOAD}
    by_load = _Balance(view, alive, busy)
    changes = by_load.moves(busy, room)
    if changes:
        return changes
    by_number = _Balance(view, alive, dict.fromkeys(alive, 1.0))
    return by_number.moves(alive.keys() - busy.keys(), room)


class _Balance:
    """What each member carries, by a weight of each shard."""

    def __init__(self, view: ClusterView, alive: Mapping[int, str], weights: Mapping[int, float]) -> None:
        self._view, self._weights = view, weights
        self._capacity = {id: member.capacity for id, member in view.members.items()}
        self._shards: dict[str, set[int]] = {id: set() for id in self._capacity}
        self._totals = dict.fromkeys(self._capacity, 0.0)
        for shard, owner in alive.items():
            self._shards[owner].add(shard)
            self._totals[owner] += weights.get(shard, 0.0)
        self._gap_min = IMBALANCE_MIN * sum(self._totals.values()) / sum(self._capacity.values())

    def moves(self, movable: Collection[int], room: int) -> dict[int, str]:
        """Return up to ``room`` moves of movable shards that clearly help."""
        changes: dict[int, str] = {}
        for _ in range(room):
            for source in sorted(self._capacity, key=lambda one: (-self._carried(one), one)):
                move = self._best_move(source, [shard for shard in self._shards[source] if shard in movable])
                if move is not None:
                    shard, target = move
                    self._shards[source].discard(shard)
                    self._totals[source] -= self._weights[shard]
                    self._totals[target] += self._weights[shard]
                    changes[shard] = target
                    break
            else:
                break
        return changes

    def _carried(self, id: str) -> float:
        return self._totals[id] / self._capacity[id]

    def _best_move(self, source: str, shards: Iterable[int]) -> tuple[int, str] | None:
        """Return the shard whose move leaves the busier of the two members with the least; None: no move helps."""
        targets: dict[str, Member | None] = {}  # by region: the member that carries least
        before = self._carried(source)
        best: tuple[float, int, str] | None = None
        for shard in sorted(shards):
            region = self._view.cluster.region_of(shard)
            if region not in targets:
                isolated = self._view.isolated
                others = (one for one in _allowed(self._view, region) if one.id not in {source, *isolated})
                targets[region] = min(others, key=lambda one: (self._carried(one.id), one.id), default=None)
            target = targets[region]
            if target is None or shard in target.cannot_open:
                continue
            weight = self._weights[shard]
            after = (self._totals[target.id] + weight) / target.capacity
            if before - after >= self._gap_min and after < before:
                busier = max(after, (self._totals[source] - weight) / self._capacity[source])
                if best is None or busier < best[0]:
                    best = (busier, shard, target.id)
        return best[1:] if best is not None else None
