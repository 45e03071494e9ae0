"""Fair lines: weighted turns, no saved-up turns, work-conserving."""

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.config import TenantConfig
from tenantq.domain.message import LOCAL
from tenantq.engine.fair_lines import FairLines, RoundBudget, TenantLine
from tenantq.engine.operation import Operation
from tenantq.engine.queue_state import TenantState
from tenantq.engine.settings import ShardSettings

if TYPE_CHECKING:
    from collections.abc import Iterable


def tenant(name: str, weight: int = 1) -> TenantState:
    """Return a tenant with its own line."""
    return TenantState(1, name, TenantConfig(weight=weight), TenantLine(weight))


def push(lines: FairLines, owner: TenantState, count: int, cost: float = 1) -> None:
    """Put operations into a tenant's line."""
    for _ in range(count):
        operation = Operation[None](owner, LOCAL)
        operation.cost = cost
        lines.push(owner.line, operation)


def served(turn: "Iterable[Operation[None]]") -> Counter[str]:
    """Return the cost served to each tenant."""
    costs: Counter[str] = Counter()
    for operation in turn:
        costs[operation.tenant.name] += int(operation.cost)
    return costs


@pytest.mark.parametrize("weights", [(1, 1), (1, 2, 5), (1, 10, 100), (7, 7, 3)])
@pytest.mark.parametrize("cost", [1, 5])
def test_service_follows_the_weights_within_two_percent(weights: tuple[int, ...], cost: int) -> None:
    """While all have work, for operations of any cost."""
    lines = FairLines(turn_cost=8)
    owners = [tenant(f"t{n}", weight) for n, weight in enumerate(weights)]
    for owner in owners:
        push(lines, owner, 30_000, cost)
    total: Counter[str] = Counter()
    while total.total() < 25_000:
        total += served(lines.take_turn(1_000))
    for owner in owners:
        share = total[owner.name] / total.total()
        assert abs(share - owner.config.weight / sum(weights)) < 0.02


def test_a_cheap_and_an_expensive_tenant_get_the_same_cost_not_the_same_count() -> None:
    """Fairness is measured in cost."""
    lines = FairLines(turn_cost=8)
    cheap, dear = tenant("cheap"), tenant("dear")
    push(lines, cheap, 20_000, 1)
    push(lines, dear, 2_000, 40)
    total: Counter[str] = Counter()
    while total.total() < 20_000:
        total += served(lines.take_turn(1_000))
    assert abs(total["cheap"] / total.total() - 0.5) < 0.02


def test_a_new_tenant_waits_at_most_one_turn() -> None:
    """Regardless of the length of the other lines."""
    lines = FairLines(turn_cost=8)
    loud, new = tenant("loud"), tenant("new")
    push(lines, loud, 10_000)
    for _ in range(50):
        lines.take_turn(8)
    push(lines, new, 1)
    turns = [served(lines.take_turn(1_000)) for _ in range(2)]
    assert sum(turn["new"] for turn in turns) == 1


def test_idle_time_saves_no_turns() -> None:
    """After a long pause a tenant gets its share from now on and does not catch up."""
    lines = FairLines(turn_cost=8)
    rested, busy = tenant("rested"), tenant("busy")
    push(lines, busy, 10_000)
    for _ in range(500):
        lines.take_turn(8)
    push(lines, rested, 5_000)
    total: Counter[str] = Counter()
    for _ in range(100):
        total += served(lines.take_turn(8))
    assert abs(total["rested"] - total["busy"]) <= 16


def test_fair_lines_are_work_conserving() -> None:
    """A single tenant gets the whole budget at once, and every operation is served once."""
    lines = FairLines(turn_cost=8)
    alone, other = tenant("alone"), tenant("other")
    push(lines, alone, 500)
    assert len(lines.take_turn(300)) == 300
    push(lines, other, 3)
    count = 0
    while lines:
        count += len(lines.take_turn(1_000))
    assert count == 203
    assert not lines.shared


def test_a_turn_takes_at_least_one_operation_even_over_budget() -> None:
    """A large operation is never stuck."""
    lines = FairLines(turn_cost=8)
    push(lines, tenant("big"), 2, cost=1_000)
    push(lines, tenant("small"), 2)
    turns = [lines.take_turn(4) for _ in range(3)]
    assert sorted(operation.cost for turn in turns for operation in turn) == [1, 1, 1_000, 1_000]


def test_a_line_charged_while_it_waits_moves_back() -> None:
    """Deliveries are charged outside of turns, so a stale heap entry is not a turn."""
    lines = FairLines(turn_cost=8)
    charged, calm = tenant("charged"), tenant("calm")
    push(lines, charged, 100)
    push(lines, calm, 100)
    charged.line.charge(40)
    first = [next(iter(served(lines.take_turn(8)))) for _ in range(5)]
    assert first == ["calm"] * 5


def test_order_within_a_line_is_kept() -> None:
    """First in, first out for each tenant."""
    lines = FairLines(turn_cost=3)
    owners = [tenant("a"), tenant("b", 2)]
    for owner in owners:
        push(lines, owner, 20)
    pushed = {owner.name: list(owner.line.operations) for owner in owners}
    got: dict[str, list[Operation[None]]] = {"a": [], "b": []}
    while lines:
        for operation in lines.take_turn(100):
            got[operation.tenant.name].append(operation)
    assert got == pushed


def test_drain_removes_everything() -> None:
    """For a shard that stops."""
    lines = FairLines(turn_cost=8)
    for name in ("a", "b"):
        push(lines, tenant(name), 5)
    assert len(lines.drain()) == 10
    assert not lines
    assert lines.drain() == []


def budget() -> RoundBudget:
    """Return a round budget with the default settings."""
    return RoundBudget(ShardSettings())


def test_a_large_operation_gets_its_own_round() -> None:
    """A small operation of another tenant does not wait for its write and sync."""
    lines, rounds = FairLines(turn_cost=4), budget()
    loud, quiet = tenant("loud"), tenant("quiet")
    push(lines, loud, 3, 200)
    push(lines, quiet, 1)
    seen = [served(rounds.pick(lines, 0)) for _ in range(4)]
    assert sorted(sorted(one.items()) for one in seen) == [[("loud", 200)]] * 3 + [[("quiet", 1)]]


def test_large_operations_wait_for_each_others_sync_and_small_ones_do_not() -> None:
    """At most one large operation is written but not yet synced while tenants share the rounds."""
    lines, rounds = FairLines(turn_cost=4), budget()
    loud, quiet = tenant("loud"), tenant("quiet")
    push(lines, loud, 2, 200)
    push(lines, quiet, 1)
    while served(rounds.pick(lines, 0, large_syncs=False))["loud"] == 0:
        pass
    push(lines, quiet, 1)
    assert served(rounds.pick(lines, 0, large_syncs=True)).keys() <= {"quiet"}
    assert rounds.pick(lines, 0, large_syncs=True) == []
    assert served(rounds.pick(lines, 0, large_syncs=False)) == {"loud": 200}
    assert not lines


def test_large_operations_are_not_starved_by_small_ones() -> None:
    """They are served by virtual time."""
    lines, rounds = FairLines(turn_cost=4), budget()
    loud, quiet = tenant("loud"), tenant("quiet")
    push(lines, loud, 10, 200)
    push(lines, quiet, 10_000)
    total: Counter[str] = Counter()
    while total["loud"] < 2_000:
        total += served(rounds.pick(lines, 0))
    assert total["quiet"] < 2_400
