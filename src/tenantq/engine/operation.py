"""Operations: requests and background work that wait in their tenant's line and run in rounds."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import get_annotations
from typing import Any, ClassVar, Final, Generic, TypeVar

from tenantq.domain.message import Caller
from tenantq.engine.arguments import Check, check_of
from tenantq.engine.effects import Effects
from tenantq.engine.fair_lines import TenantLine
from tenantq.engine.queue_state import TenantState
from tenantq.errors import TenantqError

# A round runs its operations in this order: an operation that scans the store must run before another operation of the
# round changes the rows it scans.
REGISTER: Final = 0  # polls: only register their demand
ADVANCE: Final = 1  # count delayed rows that became visible
RANGE: Final = 2  # purge, drop: delete by range
SCAN: Final = 3  # sweep, redrive: walk over rows
POINT: Final = 4  # add, ack, ...: read and write single rows
LAST: Final = 5  # a tenant leaves or arrives: nothing of the round comes after it

BYTES_PER_COST: Final = 4_096

PART_ITEMS: Final = 128
PART_BYTES: Final = 512 << 10
"""A larger batch runs as several operations, so that rounds stay short."""

R = TypeVar("R")


def parts_of(sizes: list[int]) -> list[slice]:
    """Return the parts in which a batch of items with these sizes runs."""
    if len(sizes) <= PART_ITEMS and sum(sizes) < PART_BYTES:
        return [slice(0, len(sizes))]
    parts: list[slice] = []
    start = at = size = 0
    for at, one in enumerate(sizes, 1):
        size += one
        if at - start == PART_ITEMS or size >= PART_BYTES:
            parts.append(slice(start, at))
            start, size = at, 0
    if start < at:
        parts.append(slice(start, at))
    return parts


_BatchOperation = TypeVar("_BatchOperation", bound="Operation[Any]")


def split(operation: _BatchOperation, field: str, sizes: list[int]) -> list[tuple[_BatchOperation, int]]:
    """Return the operations in which a checked batch runs, and how many items each has; none if it is not divided.

    ``field`` holds the items of the batch, which have these sizes.
    """
    parts, operations = parts_of(sizes), list[tuple[_BatchOperation, int]]()
    if len(parts) == 1:
        return []
    for part in parts:
        one = copy.copy(operation)
        setattr(one, field, getattr(operation, field)[part])
        one.cost = part.stop - part.start + sum(sizes[part]) / BYTES_PER_COST
        operations.append((one, part.stop - part.start))
    return operations


@dataclass(eq=False)
class Operation(Generic[R]):
    """One request, or one slice of background work, of one tenant. ``R`` is what ``Shard.submit`` returns for it.

    Subclasses check their arguments when they are constructed, so nothing invalid is ever queued. Fields of dataclasses are
    checked by their types; see ``arguments.check_of``.
    """

    tenant: TenantState  # in whose line it waits
    caller: Caller
    cost: float = field(default=1, init=False)
    future: asyncio.Future[R] | None = field(default=None, init=False)  # None: no caller waits for the reply
    reply: R = field(default=None, init=False)  # type: ignore[assignment]  # operations with another result set it
    error: TenantqError | None = field(default=None, init=False)
    queued_us: int = field(default=0, init=False)  # when its wait for a turn began; 0: it had its turn
    unfinished: bool = field(default=False, init=False)  # the round had no room for all of it
    phase: ClassVar[int] = POINT
    journal_op: ClassVar[str] = ""  # its name in the journal if it is refused
    stores_messages: ClassVar[bool] = False  # refused while the disk has less space than its reserve
    checks: ClassVar[tuple[tuple[str, Check], ...]] = ()  # of fields

    def __init_subclass__(cls) -> None:
        own = ((name, check_of(name, kind)) for name, kind in get_annotations(cls, eval_str=True).items())
        cls.checks = (*cls.checks, *((name, check) for name, check in own if check is not None))

    def __post_init__(self) -> None:
        for name, check in self.checks:
            check(getattr(self, name))

    @property
    def subject(self) -> str:
        """What it was about, for the journal if it is refused."""
        return ""

    @property
    def done(self) -> bool:
        """Whether the caller has the reply or has gone."""
        return self.future is not None and self.future.done()

    @property
    def line(self) -> TenantLine:
        return self.tenant.line

    def parts(self) -> Sequence[tuple[Operation[R], int]]:
        """Return the operations in which a large batch runs, and how many items each has; none if it runs as one."""
        return ()

    def execute(self, effects: Effects) -> None:
        """Add the operation's effects to the round. Raises TenantqError only before its first effect."""
        raise NotImplementedError

    def undo(self, seq: int) -> None:
        """Forget what the round of journal record ``seq`` did, which is not written. The operation runs again."""
        del seq
        self.error, self.unfinished = None, False

    def resolve(self) -> None:
        """Give the waiting caller the reply or the error; called after the sync that covers it."""
        future = self.future
        if future is not None and not future.done():
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(self.reply)
