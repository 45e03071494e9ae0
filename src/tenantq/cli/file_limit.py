"""The limit of open files and connections of this process and its children."""

import contextlib
import resource
from typing import Final

_UNBOUNDED: Final = 1 << 16
"""The limit to set if the system has none."""


def raise_file_limit() -> int:
    """Raise the soft limit as far as the user may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNBOUNDED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _UNBOUNDED if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
