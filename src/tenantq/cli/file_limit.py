"""How many files and connections this process, and those it starts, may have open."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_UNBOUNDED: Final = 1 << 16
"""What is asked for where the system names no bound."""


def raise_file_limit() -> int:
    """Raise the soft limit as far as this user may, and return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNBOUNDED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _UNBOUNDED if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
