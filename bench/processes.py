"""Servers as separate processes, as users run them: started on loopback, stopped by process ID."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "bench-admin-token-0123456789"  # noqa: S105  # of a server that lives for one measurement


class RunningServer(NamedTuple):
    """A server that is ready."""

    url: str
    rpc_port: int | None  # for Cap'n Proto, where it listens for that
    pid: int
    turns: Path  # where a server under bench.loop_monitor writes its longest turn

    def reset_monitor(self) -> None:
        """Forget the longest turn so far."""
        os.kill(self.pid, signal.SIGUSR1)

    def longest_turn_ms(self) -> float:
        """Return the longest turn of the event loop since the last reset."""
        os.kill(self.pid, signal.SIGUSR2)
        for _ in range(1_000):
            if self.turns.exists() and (text := self.turns.read_text()).endswith("\n"):
                return float(text)
            time.sleep(0.01)
        raise RuntimeError("the server did not write its longest turn")

    def peak_mb(self) -> float:
        """Return the peak memory of the process so far."""
        return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) * 1_024 / 1e6

    def cpu_s(self) -> float:
        """Return the CPU time of the process so far."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def tenantq(directory: Path, **environment: str) -> Iterator[str]:
    """Run ``tenantq serve`` and yield its address."""
    with serving(directory, **environment) as server:
        yield server.url


@contextlib.contextmanager
def serving(directory: Path, *, module: str = "tenantq", **environment: str) -> Iterator[RunningServer]:
    """Run ``tenantq serve`` and yield it. Cap'n Proto is off unless the environment says otherwise."""
    command = [sys.executable, "-m", module, "serve", "--data-dir", str(directory), "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        command,
        env={
            **os.environ,
            "TENANTQ_ADMIN_TOKEN": TOKEN,
            "TENANTQ_LOG_LEVEL": "error",
            "TENANTQ_RPC": "off",
            "BENCH_TURNS": str(directory.with_suffix(".turns")),
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("ready on "):
                break
        url, rpc = re.search(r"http://[\d.]+:\d+", printed), re.search(r"Cap'n Proto on [\d.]+:(\d+)", printed)
        if url is None:
            raise RuntimeError(f"the server did not start: {printed}")
        yield RunningServer(
            url[0], int(rpc[1]) if rpc is not None else None, process.pid, directory.with_suffix(".turns")
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextlib.contextmanager
def redis(directory: Path) -> Iterator[int]:
    """Run a Redis that syncs its log before every reply, and yield its port."""
    server = shutil.which("redis-server")
    if server is None:
        raise RuntimeError("redis-server is not installed: the comparison with Redis Streams needs it")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    directory.mkdir(parents=True)
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", "--appendonly", "yes",
         "--appendfsync", "always", "--loglevel", "warning"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)
