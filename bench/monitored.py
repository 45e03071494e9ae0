"""``python -m bench.monitored serve …``: the server on a plain asyncio loop that remembers its longest turn.

SIGUSR1 resets the record, SIGUSR2 writes it, in milliseconds, to the file that ``BENCH_TURNS`` names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_longest_ms = 0.0
_run: Any = asyncio.Handle._run


def _timed(handle: Any) -> None:
    global _longest_ms  # noqa: PLW0603
    started = time.perf_counter()
    _run(handle)
    _longest_ms = max(_longest_ms, (time.perf_counter() - started) * 1e3)


def _reset(*_: object) -> None:
    global _longest_ms  # noqa: PLW0603
    _longest_ms = 0.0


def _write(*_: object) -> None:
    Path(os.environ["BENCH_TURNS"]).write_text(f"{_longest_ms:.3f}\n")


if __name__ == "__main__":
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # its turns cannot be timed from outside
    setattr(asyncio.Handle, "_run", _timed)  # noqa: B010  # a plain assignment to a method is refused by mypy
    signal.signal(signal.SIGUSR1, _reset)
    signal.signal(signal.SIGUSR2, _write)
    from tenantq.cli.main import main

    main()
