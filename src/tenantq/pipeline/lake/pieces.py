"""Pieces: the files that each partition of a split table has, and to which of them a row belongs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000


class Pieces:
    """The files of some partitions, numbered from 0. A partition has one file per ``most`` rows, about.

    The number of files depends on nothing but the number of rows.
    """

    def __init__(self, sizes: Mapping[str, int], most: int) -> None:
        self._names = sorted(sizes)
        counts = [1 + max(0, sizes[name] - 1) // most for name in self._names]
        self._counts = np.array(counts, "i8")
        self._first = np.array([0, *accumulate(counts)], "i8")
        begins = [np.datetime64(_begin(name), "us").astype("i8").item() for name in self._names]
        self._begins = np.array(begins, "i8")
        self.count = int(self._first[-1])

    def parts(self, begins: NDArray[Any], hashes: NDArray[Any]) -> NDArray[Any]:
        """Return the file of each row, given when its partition begins, in microseconds, and a hash of the row."""
        at = np.minimum(np.searchsorted(self._begins, begins), len(self._begins) - 1)
        if len(at) and (self._begins[at] != begins).any():
            raise ValueError("a row belongs to a partition that is not written")
        found: NDArray[Any] = self._first[at] + (hashes % self._counts[at].astype("u8")).astype("i8")
        return found

    def place(self, part: int) -> tuple[str, int]:
        """Return the partition of a file, and its number there."""
        at = int(np.searchsorted(self._first, part, "right")) - 1
        return self._names[at], part - int(self._first[at])


def _begin(partition: str) -> str:
    """Return the time in a directory name such as date=2026-01-01/hour=05."""
    return "T".join(part.partition("=")[2] for part in partition.split("/"))
