"""Closed standard streams, as in `tenantq … >&-`. The next opened file would get their descriptors."""

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
"""The null device is opened in the wrong direction, so reading stdin and writing stdout fail as on a closed stream."""


def give_up_stdout() -> None:
    """Redirect stdout to the null device, so the interpreter does not fail again when it flushes stdout at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def flushed() -> bool:
    """Flush stdout. Returns whether that succeeded."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up_stdout()
        return False
    return True


def open_missing() -> None:
    """Open the null device for each closed standard stream."""
    for descriptor, (name, way) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, way)
            if opened != descriptor:  # the descriptor is used by another file
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # lives as long as the process
