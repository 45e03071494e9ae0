"""Recent acks: which messages were acked lately, in a table of fixed size."""

from array import array
from collections.abc import Iterable
from typing import Final

_SLOTS: Final = 1 << 15  # 512 KB a shard


class RecentAcks:
    """Times of the latest acks. A new ack may replace an older one, and a restart forgets all."""

    def __init__(self) -> None:
        self._hashes = array("q", bytes(8 * _SLOTS))
        self._times = array("q", bytes(8 * _SLOTS))

    def note(self, keys: Iterable[bytes], now: int) -> None:
        """Note the messages that are acked now, by prefix and id."""
        hashes, times = self._hashes, self._times
        for key in keys:
            hashed = hash(key)  # seeded per process: no caller can aim at a slot
            slot = hashed % _SLOTS
            hashes[slot] = hashed
            times[slot] = now

    def acked_at(self, prefix: bytes, id: bytes) -> int | None:
        """Return when a message was acked, None if that is not known."""
        hashed = hash(prefix + id)
        return self._times[hashed % _SLOTS] if self._hashes[hashed % _SLOTS] == hashed else None
