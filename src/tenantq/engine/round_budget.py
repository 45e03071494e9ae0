"""The budget of a round: how much it runs, and of which tenants. Long rounds for a single tenant, short ones while several share."""

from __future__ import annotations

from typing import Any, Final

from tenantq.engine.fair_lines import FairLines, TenantLine
from tenantq.engine.operation import Operation
from tenantq.engine.settings import ShardSettings
from tenantq.runtime.clock import Clock

SHARED_LATELY_MS: Final = 1_000
"""How long rounds stay short after a call of another tenant."""

_GROWTH: Final = 1.25  # of the budget after a round that had time to spare


class RoundBudget:
    """Picks the operations of each round."""

    def __init__(self, settings: ShardSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._cost = float(settings.round_cost_alone)  # the budget of a tenant that is alone
        self._switches_seen = 1  # joining the first line is not a switch
        self._shared_until_ms = -1
        self.is_shared = False  # several tenants had work when the last round was picked, or lately

    def pick(self, lines: FairLines) -> list[Operation[Any]]:
        """Take the next round's operations from the lines, in fair turns, up to the budget."""
        shared = self.is_shared = self._is_shared(lines)
        operations: list[Operation[Any]] = []
        budget = float(self._settings.round_cost_shared) if shared else self._cost
        served: set[TenantLine] = set()
        while lines and budget > 0:
            if shared:  # one turn per round: a loud tenant gets few replies at a time, and so sends few calls at a time
                line = lines.next_line()
                if line in served:
                    break
                served.add(line)
            turn = lines.take_turn(budget, whole=not shared)
            budget -= sum([operation.cost for operation in turn])
            operations += turn
        return operations

    def adapt(self, lines: FairLines, operations: list[Operation[Any]], unstarted: list[Operation[Any]]) -> None:
        """Put back what the round had no time for, and adapt the budget to what it had time for."""
        if unstarted:
            lines.put_back(unstarted)
            done = sum(one.cost for one in operations) - sum(one.cost for one in unstarted)
            self._cost = max(float(self._settings.round_cost_shared), done)
        elif self._cost < self._settings.round_cost_alone:
            self._cost = min(float(self._settings.round_cost_alone), self._cost * _GROWTH)

    def _is_shared(self, lines: FairLines) -> bool:
        """Return whether several tenants have work, or had lately.

        The next call of a quiet tenant must not wait for a long round, and all its replies, of a loud one.
        """
        now_ms = self._clock.monotonic_ms()
        if lines.switches > self._switches_seen:
            self._switches_seen = lines.switches
            self._shared_until_ms = now_ms + SHARED_LATELY_MS
        return lines.shared or now_ms < self._shared_until_ms
