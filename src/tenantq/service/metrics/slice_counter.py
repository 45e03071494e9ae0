"""Slices of a scrape, between which requests run."""

from typing import Final

STEPS: Final = 64
"""Queues that a slice reads: well below a millisecond of work."""


class SliceCounter:
    """Use it as ``if slices.is_full(): await next_slice()``. A coroutine per queue would cost more than reading it."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEPS

    def is_full(self, steps: int = 1) -> bool:
        """Count steps; return whether to pause after them."""
        self._left -= steps
        if self._left > 0:
            return False
        self._left = STEPS
        return True
