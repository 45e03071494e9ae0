"""Duration, CPU seconds and peak memory of a command and its children, sampled while it runs."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVERY_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class SampledRun(msgspec.Struct):
    """The output of a command, and its peaks."""

    output: str
    seconds: float = 0.0  # from its start to its end
    cpu_s: float = 0.0  # of all its processes
    java_mb: float = 0.0
    python_mb: float = 0.0  # of all Python processes together


def run_sampled(command: Sequence[str], environment: dict[str, str]) -> SampledRun:
    """Run a command to its end. Raises CalledProcessError with its output if it fails."""
    started, before = time.perf_counter(), _children_s()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    ran, over = SampledRun(""), threading.Event()

    def sample() -> None:
        while not over.wait(_EVERY_S):
            java, python = _resident(process.pid)
            ran.java_mb, ran.python_mb = max(ran.java_mb, java / 1e6), max(ran.python_mb, python / 1e6)

    watcher = threading.Thread(target=sample)
    watcher.start()
    ran.output, said = process.communicate()
    ran.seconds, ran.cpu_s = time.perf_counter() - started, _children_s() - before
    over.set()
    watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, ran.output, said)
    return ran


def _children_s() -> float:
    """Return the CPU seconds of all ended descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident(root: int) -> tuple[int, int]:
    """Return the resident bytes of the Java and Python processes below a process."""
    parents: dict[int, int] = {}
    held: dict[int, tuple[str, int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text(encoding="utf-8").rpartition(")")
            pages = int((place / "statm").read_text(encoding="ascii").split()[1])
        except OSError:
            continue  # it ended meanwhile
        parents[int(place.name)] = int(rest.split()[1])
        held[int(place.name)] = (name.partition("(")[2], pages * _PAGE)
    java = python = 0
    for process, (name, size) in held.items():
        above: int | None = process
        while above is not None and above != root:
            above = parents.get(above)
        if above == root:
            java, python = (java + size, python) if name == "java" else (java, python + size)
    return java, python
