"""Operations: what waits in the lines and runs in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import asyncio

    from tenantq.domain.message import Caller, Delivery
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round
    from tenantq.errors import TenantqError
    from tenantq.runtime.clock import Timer

# A round runs its operations in this order, so that whatever scans the store runs before anything of the same round
# has changed the rows it scans.
REGISTER: Final = 0  # polls: only note their demand
ADVANCE: Final = 1  # count delayed rows that became visible
RANGE: Final = 2  # purge, drop: delete by range
SCAN: Final = 3  # sweep, redrive: walk over rows
POINT: Final = 4  # add, ack, ...: read and write single rows

BYTES_PER_COST: Final = 4_096


class Operation:
    """One request, or one slice of background work, of one tenant."""

    __slots__ = ("caller", "cost", "entered_round", "error", "future", "reply", "tenant")
    phase: ClassVar[int] = POINT
    journal_op: ClassVar[str] = ""  # what the journal calls it when it is refused

    def __init__(self, tenant: TenantState, caller: Caller, cost: float = 1) -> None:
        self.tenant = tenant
        self.caller = caller
        self.cost = cost
        self.future: asyncio.Future[Any] | None = None
        self.reply: Any = None
        self.error: TenantqError | None = None
        self.entered_round = 0

    @property
    def done(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.future is not None and self.future.done()

    def execute(self, round: Round) -> None:
        """Put the operation's effects into the round. Raise TenantqError only before the first effect."""
        raise NotImplementedError

    def resolve(self) -> None:
        """Give the waiting caller the reply or the error; called after the sync that covers it."""
        future = self.future
        if future is not None and not future.done():
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(self.reply)


class Poll(Operation):
    """A poll, waiting or not, of one queue."""

    __slots__ = ("bytes", "got", "lease_ms", "max", "queue_name", "timer", "wait_ms", "whole_groups")
    phase = REGISTER
    journal_op = "poll"

    def __init__(
        self, tenant: TenantState, caller: Caller, queue_name: str, max: int, wait_ms: int, lease_ms: int | None
    ) -> None:
        super().__init__(tenant, caller)
        self.queue_name = queue_name
        self.max = max
        self.wait_ms = wait_ms
        self.lease_ms = lease_ms
        self.got: list[Delivery] = []
        self.bytes = 0
        self.timer: Timer | None = None
        self.whole_groups = False  # of one group it takes several, in order

    def execute(self, round: Round) -> None:
        """Join the queue's waiting polls; the round serves them together."""
        round.register_poll(self)


class FleetPoll(Poll):
    """A poll of one queue name in many tenants."""

    __slots__ = ("allowed",)

    def __init__(
        self,
        tenant: TenantState,
        caller: Caller,
        queue_name: str,
        allowed: frozenset[int] | None,
        max: int,
        wait_ms: int,
        lease_ms: int | None,
    ) -> None:
        super().__init__(tenant, caller, queue_name, max, wait_ms, lease_ms)
        self.allowed = allowed  # ids of tenants; None: all

    def execute(self, round: Round) -> None:
        """Join the lane's waiting polls."""
        round.register_fleet_poll(self)
