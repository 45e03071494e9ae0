"""A call that passed the gates."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tenantq.domain.access import Principal
from tenantq.domain.message import Caller
from tenantq.engine.queue_state import TenantState
from tenantq.gates.slots import Ticket
from tenantq.runtime.clock import Clock
from tenantq.runtime.histogram import Histogram


class AdmittedCall:
    """The caller, its tenant and its slot. ``with admitted:`` releases the slot when the call ends."""

    __slots__ = ("_clock", "_durations", "_since_us", "caller", "principal", "state", "tenant", "ticket")

    def __init__(
        self,
        principal: Principal,
        state: TenantState,
        caller: Caller,
        ticket: Ticket,
        clock: Clock,
        durations: Histogram | None,
        since_us: int,
    ) -> None:
        self.principal = principal
        self.state = state  # of the tenant
        self.tenant = state.name
        self.caller = caller
        self.ticket = ticket
        self._clock = clock
        self._durations = durations  # None: the call is not measured, or was measured already
        self._since_us = since_us

    def park(self) -> None:
        """Release the slot while the call waits for messages. The waiting time is not measured."""
        self._measure()
        self.ticket.park()

    def _measure(self) -> None:
        durations, self._durations = self._durations, None
        if durations is not None:
            durations.count(self._clock.monotonic_us() - self._since_us)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._measure()
        self.ticket.release()
