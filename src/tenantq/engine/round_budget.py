"""The budget of a round: how much it runs, and of which tenants. Long rounds for a single tenant, short ones while several share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenantq.engine.fair_lines import FairLines, TenantLine
    from tenantq.engine.operation import Operation
    from tenantq.engine.settings import ShardSettings
    from tenantq.runtime.clock import Clock

SHARED_LATELY_MS: Final = 1_000
"""How long rounds stay short after another tenant's call."""

_GROWTH: Final = 1.25  # of a round that had time to spare


class RoundBudget:
    """Picks the operations of each round."""

    def __init__(self, settings: ShardSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._cost = float(settings.round_cost_alone)  # what a tenant that is alone may put into a round now
        self._switches_seen = 1  # the first line that is joined is no switch
        self._shared_until_ms = -1

    def pick(self, lines: FairLines) -> list[Operation[Any]]:
        """Take the next round's operations out of the lines, in fair turns, up to the round's bound."""
        shared = self._is_shared(lines)
        operations: list[Operation[Any]] = []
        budget = float(self._settings.round_cost_shared) if shared else self._cost
        served: set[TenantLine] = set()
        while lines and budget > 0:
            if shared:  # one turn a round: replies to a loud tenant come in small numbers, and so do its next calls
                line = lines.next_line()
                if line in served:
                    break
                served.add(line)
            turn = lines.take_turn(budget, whole=not shared)
            budget -= sum(operation.cost for operation in turn)
            operations += turn
        return operations

    def adapt(self, lines: FairLines, operations: list[Operation[Any]], unstarted: list[Operation[Any]]) -> None:
        """Put back what the round had no time for, and pick as much next time as there was time for, or a little more."""
        if unstarted:
            lines.put_back(unstarted)
            done = sum(one.cost for one in operations) - sum(one.cost for one in unstarted)
            self._cost = max(float(self._settings.round_cost_shared), done)
        elif self._cost < self._settings.round_cost_alone:
            self._cost = min(float(self._settings.round_cost_alone), self._cost * _GROWTH)

    def _is_shared(self, lines: FairLines) -> bool:
        """Tell whether several tenants have work, or had lately.

        A quiet tenant's next call must not find the machine busy with a long round, and all its replies, of a loud one.
        """
        now_ms = self._clock.monotonic_ms()
        if lines.switches > self._switches_seen:
            self._switches_seen = lines.switches
            self._shared_until_ms = now_ms + SHARED_LATELY_MS
        return lines.shared or now_ms < self._shared_until_ms
