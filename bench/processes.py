"""Servers as processes of their own, as users run them: started on loopback, stopped by their id."""

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "bench-admin-token-0123456789"  # noqa: S105  # of a server that lives for one measurement


@contextlib.contextmanager
def tenantq(directory: Path, **environment: str) -> Iterator[str]:
    """Run ``tenantq serve`` and yield its address."""
    with _serving(directory, environment) as printed:
        yield _found(r"http://[\d.]+:\d+", printed)


@contextlib.contextmanager
def tenantq_with_rpc(directory: Path, **environment: str) -> Iterator[tuple[str, int]]:
    """Run ``tenantq serve`` with Cap'n Proto on; yield its address and the port for that."""
    with _serving(directory, {"TENANTQ_RPC": "127.0.0.1:0", **environment}) as printed:
        yield _found(r"http://[\d.]+:\d+", printed), int(_found(r"(?<=Cap'n Proto on 127.0.0.1:)\d+", printed))


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the server did not start: {text}")
    return found[0]


@contextlib.contextmanager
def _serving(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a server and yield what it printed until it was ready."""
    command = [sys.executable, "-m", "tenantq", "serve", "--data-dir", str(directory), "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        command,
        env={
            **os.environ,
            "TENANTQ_ADMIN_TOKEN": TOKEN,
            "TENANTQ_LOG_LEVEL": "error",
            "TENANTQ_RPC": "off",
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
        yield printed
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
