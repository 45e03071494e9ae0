"""``python -m bench.loop_monitor serve …``: the server on a plain asyncio loop that remembers its longest turn.

A turn is measured in CPU time of the loop's thread, so that other processes of a busy machine do not count. SIGUSR1 resets the
record, SIGUSR2 writes it, in milliseconds, to the file that ``BENCH_TURNS`` names. With ``BENCH_STACKS`` set, a watcher writes
the stack of every turn that lasts longer than that many milliseconds to standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

_longest_ms = 0.0
_turns = 0
_run: Any = asyncio.Handle._run
_stack_after_ms = float(os.environ.get("BENCH_STACKS", "0"))


def _timed(handle: Any) -> None:
    global _longest_ms, _turns  # noqa: PLW0603
    _turns += 1
    started = time.thread_time()
    _run(handle)
    took_ms = (time.thread_time() - started) * 1e3
    if _stack_after_ms and took_ms > _stack_after_ms:
        print(f"turn {_turns} took {took_ms:.1f} ms: {handle!r:.300}", file=sys.stderr)
    _turns += 1
    _longest_ms = max(_longest_ms, took_ms)


def _reset(*_: object) -> None:
    global _longest_ms  # noqa: PLW0603
    _longest_ms = 0.0


def _write(*_: object) -> None:
    Path(os.environ["BENCH_TURNS"]).write_text(f"{_longest_ms:.3f}\n")


def _watch(loop_thread: int) -> None:
    seen, since = 0, 0.0
    while True:
        time.sleep(0.002)
        if _turns != seen or _turns % 2 == 0:
            seen, since = _turns, time.perf_counter()
        elif time.perf_counter() - since > _stack_after_ms / 1e3:
            stack = traceback.extract_stack(sys._current_frames()[loop_thread])
            places = " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(stack[-8:]))
            print(f"turn {seen} at {places}", file=sys.stderr, flush=True)
            since = time.perf_counter()


if __name__ == "__main__":
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # its turns cannot be timed from outside
    setattr(asyncio.Handle, "_run", _timed)  # noqa: B010  # a plain assignment to a method is refused by mypy
    signal.signal(signal.SIGUSR1, _reset)
    signal.signal(signal.SIGUSR2, _write)
    if _stack_after_ms:
        threading.Thread(target=_watch, args=(threading.get_ident(),), daemon=True).start()
    from tenantq.cli.main import main

    main()
