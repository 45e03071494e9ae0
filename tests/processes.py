"""Processes as the kernel lists them: what a command started, and whether it still runs."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def _parents() -> dict[int, int]:
    """Return the parent of each running process. Zombies do not count."""
    found: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(place.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, directly and indirectly."""
    parents = _parents()
    found: set[int] = set()
    waiting = {pid}
    while waiting:
        waiting = {child for child, parent in parents.items() if parent in waiting} - found
        found |= waiting
    return found


def alive(pids: set[int]) -> set[int]:
    """Return the processes that still run."""
    return pids & _parents().keys()


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, as a power cut would."""
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
