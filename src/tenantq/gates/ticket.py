"""The slots of a request in flight."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from tenantq.gates.slot_queue import CallTask, Slot, SlotScope


class SlotGate(Protocol):
    """What gives out tickets and takes their slots back."""

    connections: SlotScope

    def end(self, ticket: Ticket, slots: list[Slot]) -> None:
        """Release the last slots of a ticket, and forget it."""

    def release(self, slots: list[Slot]) -> None:
        """Release slots, narrowest first."""


class Ticket:
    """The slots of one request in flight. ``with ticket:`` releases them when the request ends."""

    __slots__ = ("_gate", "slots", "task")

    def __init__(self, gate: SlotGate, slots: list[Slot], task: CallTask) -> None:
        self._gate = gate
        self.slots = slots
        self.task = task  # of the caller, until the slots are released

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release all slots. A second call does nothing."""
        slots, self.slots = self.slots, []
        if slots:
            self._gate.end(self, slots)

    def outlive_task(self) -> None:
        """Keep the slots after the task that took them has ended. The holder of the ticket releases them."""
        self.task = None

    def park(self) -> None:
        """Release all slots but the connection's, because the request only waits now, like a long poll without messages."""
        connections = self._gate.connections
        slots = self.slots
        self.slots = [slot for slot in slots if slot[0] is connections]
        if not self.slots:
            self._gate.end(self, slots)
        else:
            self._gate.release(slots[1:])
