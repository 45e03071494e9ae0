"""The leases of Queueber clients. One covers all items of a poll, so the server remembers which receipts belong to it."""

from collections.abc import Sequence
from typing import Final

from tenantq.domain.message import Delivery
from tenantq.runtime.clock import Clock
from tenantq.runtime.randomness import MessageIds, Randomness, system_randomness

ITEMS_MAX: Final = 200_000
"""Leased items that the server remembers. Items of a forgotten lease are delivered again when it ends."""

_NO_TOKEN: Final = "f" * 16  # no lease has it in practice: the call passes the gates and gets LeaseLost
_NO_ID: Final = bytes(16)


class QueueberLeases:
    """Leases granted to Queueber clients of one server: the receipt of every item that is not removed yet."""

    def __init__(self, clock: Clock, randomness: Randomness | None = None) -> None:
        self._clock = clock
        self._ids = MessageIds(randomness or system_randomness())
        self._receipts: dict[bytes, dict[bytes, str]] = {}  # oldest first
        self._items = 0

    def grant(self, deliveries: Sequence[Delivery]) -> bytes:
        """Return the ID of a lease of these items."""
        (lease,) = self._ids.take(self._clock.wall_ms(), 1)
        self._receipts[lease] = {one.raw_id: one.receipt for one in deliveries}
        self._items += len(deliveries)
        while self._items > ITEMS_MAX:
            self.forget(next(iter(self._receipts)))
        return lease

    def receipt(self, lease: bytes, id: bytes) -> str:
        """Return the receipt of an item; one that is never valid if the lease does not hold it."""
        return self._receipts.get(lease, {}).get(id) or id.hex() + _NO_TOKEN

    def receipts(self, lease: bytes) -> list[str]:
        """Return the receipts of all items; one that is never valid if the lease is unknown."""
        return list(self._receipts.get(lease, {}).values()) or [_NO_ID.hex() + _NO_TOKEN]

    def forget(self, lease: bytes, id: bytes | None = None) -> None:
        """Forget an item that was removed, or the whole lease."""
        held = self._receipts.get(lease, {})
        for one in list(held) if id is None else [id]:
            self._items -= held.pop(one, None) is not None
        if not held:
            self._receipts.pop(lease, None)
