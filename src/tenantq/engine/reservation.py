"""Rights of a tenant's part that a call in progress is going to use."""

from __future__ import annotations

from collections.abc import Mapping

from tenantq.engine.part_state import PartState

_MESSAGES = ("messages_per_hour", "messages_per_day", "backlog")


class Reservation:
    """Keeps rights from other calls, and from other parts, until the call has used them or has ended."""

    def __init__(self, part: PartState, amounts: Mapping[str, int]) -> None:
        self._part = part
        self.amounts = {name: amount for name, amount in amounts.items() if amount > 0}
        for name, amount in self.amounts.items():
            part.reserved[name] += amount

    def added(self, messages: int, size: int) -> None:
        """Release what a part of the call's messages needed, in the round that has added or refused them."""
        for name in _MESSAGES:
            self._release(name, messages)
        self._release("stored_bytes", size)

    def close(self) -> None:
        """Release the rest."""
        for name, amount in list(self.amounts.items()):
            self._release(name, amount)

    def _release(self, name: str, amount: int) -> None:
        kept = self.amounts.get(name, 0)
        released = min(amount, kept)
        if released:
            self.amounts[name] = kept - released
            self._part.reserved[name] -= released
