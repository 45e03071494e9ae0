"""A call that passed the gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from tenantq.domain.access import Principal
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.gates.slots import Ticket
    from tenantq.runtime.clock import Clock
    from tenantq.runtime.histogram import Histogram


class Entered:
    """Who it is of, and its place. Leave it when the call is done; ``with entered:`` does so in any case."""

    __slots__ = ("_clock", "_since_us", "_took", "caller", "principal", "state", "tenant", "ticket")

    def __init__(
        self,
        principal: Principal,
        state: TenantState,
        caller: Caller,
        ticket: Ticket,
        clock: Clock,
        took: Histogram | None,
        since_us: int,
    ) -> None:
        self.principal = principal
        self.state = state  # of the tenant
        self.tenant = state.name
        self.caller = caller
        self.ticket = ticket
        self._clock = clock
        self._took = took  # where to count how long it took; None: it is not measured, or was
        self._since_us = since_us

    def park(self) -> None:
        """Let others have its place: from here on it only waits, and what it waits is not counted."""
        self._count()
        self.ticket.park()

    def _count(self) -> None:
        took, self._took = self._took, None
        if took is not None:
            took.count(self._clock.monotonic_us() - self._since_us)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count()
        self.ticket.release()
