"""The journal of a running shard, as its readers use it."""

from __future__ import annotations

from typing import Protocol


class LiveJournal(Protocol):
    """The journal of a running shard."""

    @property
    def synced_span(self) -> tuple[int, int]:
        """The first record that is kept and the last that is durable."""

    def scan(self, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to ``limit`` existing records in order, as they are stored. Thread-safe."""
