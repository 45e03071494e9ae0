"""How a server process is configured: garbage collector, threads and the allocator of large blocks."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_CHILD = """
import gc, sys
from tenantq.cli.commands.serve import run_loop

def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

async def work():
    print(gc.get_threshold()[0], sys.getswitchinterval())
    before, pins = resident_kib(), []
    for _ in range(3):  # glibc would keep blocks of this size on its heap from the second time on
        blocks = []
        for _ in range(20):
            blocks.append(bytearray(b"x") * (3 << 20))
            pins.append(bytearray(20_000))  # and could not shrink the heap below these
        del blocks
    print(resident_kib() - before)
    return 0

sys.exit(run_loop(work()))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_the_server_process_is_tuned_for_latency_and_memory() -> None:
    """Otherwise garbage collection slows every add, and one burst of large bodies enlarges the process permanently."""
    ran = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=120, check=True)
    threshold, interval, grown_kib = ran.stdout.split()
    assert (int(threshold), float(interval)) == (10_000, 0.0005)
    assert int(grown_kib) < 20 << 10
