"""Standard streams that are not there: `tenantq … >&-`. Whatever is opened next would get their descriptors."""

from __future__ import annotations

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
"""Opened the wrong way round, so that reading and writing fail as they should; there is nobody to tell of a missing stderr."""


def give_up_stdout() -> None:
    """Drop what stdout could not take, so that the end of the process does not try again and say that it failed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def flushed() -> bool:
    """Hand out what was printed and is still held back; False: stdout does not take it."""
    try:
        sys.stdout.flush()
    except OSError:
        give_up_stdout()
        return False
    return True


def open_missing() -> None:
    """Open the null device in place of each standard stream that is closed."""
    for descriptor, (name, way) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, way)
            if opened != descriptor:  # it was opened as something else meanwhile
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # lives as long as the process
