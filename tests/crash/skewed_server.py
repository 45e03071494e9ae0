"""``tenantq`` on a host with its own clocks: ``python -m tests.crash.skewed_server CLOCK_FILE UPTIME_MS serve …``.

The first eight bytes of CLOCK_FILE are added to the wall clock, in ms, and can be changed at any time. The monotonic clock starts
elsewhere and the boot ID differs, as on another machine.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import sys
from pathlib import Path
from typing import Any

from tenantq.cli.main import main
from tenantq.runtime.clock import SystemClock

_OFFSET = struct.Struct("<q")


def set_offset(clock_file: Path, ms: int) -> None:
    """Move the wall clock of a host."""
    with clock_file.open("r+b" if clock_file.exists() else "w+b") as file:
        file.write(_OFFSET.pack(ms))


def skew(clock_file: Path, uptime_ms: int) -> None:
    """Replace the clocks of this process."""
    with clock_file.open("rb") as file:
        shared = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    wall, monotonic_us = SystemClock.wall_ms, SystemClock.monotonic_us
    boot_id = hashlib.blake2b(str(clock_file).encode(), digest_size=16).digest()
    clock: Any = SystemClock
    clock.wall_ms = lambda self: wall(self) + _OFFSET.unpack(shared)[0]
    clock.monotonic_us = lambda self: monotonic_us(self) + uptime_ms * 1_000
    clock.monotonic_ms = lambda self: clock.monotonic_us(self) // 1_000
    clock.boot_id = lambda _: boot_id


if __name__ == "__main__":
    skew(Path(sys.argv[1]), int(sys.argv[2]))
    sys.argv[1:3] = []
    main()
