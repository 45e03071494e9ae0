"""Servers of a cluster as processes, and commands on their store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.acceptance.command import call
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "administrator-of-the-tests"  # noqa: S105  # of these tests only


class ClusterProcess:
    """One ``tenantq serve``."""

    def __init__(self, directory: Path, name: str, store: str, *options: str) -> None:
        self.port = free_port()
        self.log = directory / f"{name}.log"
        environment = {
            **os.environ, "TENANTQ_ADMIN_TOKEN": TOKEN, "TENANTQ_REDIS__LEASE_MS": "1000",
            "TENANTQ_REDIS__PATIENCE_MS": "1000",
            "TENANTQ_POSTGRES__LEASE_MS": "1000",
            "TENANTQ_POSTGRES__PATIENCE_MS": "1000",
            "TENANTQ_CLUSTER__SHARDS": "8",
            "TENANTQ_STORE": store,
        }  # fmt: skip
        command = [sys.executable, "-m", "tenantq", "serve", "--rpc", "off", "--http", f"127.0.0.1:{self.port}"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--data-dir", str(directory / name), *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def ask(
        self, path: str, body: dict[str, Any] | None = None, method: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Call it; status 0: it does not answer."""
        request = urllib.request.Request(  # of this machine
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310  # as above
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def until(self, path: str, status: int, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Wait until it answers so. A shard without an owner makes it answer 503, which asks for another attempt."""
        ends = time.monotonic() + 30
        while True:
            found, told = self.ask(path, body)
            if found == status:
                return told
            assert time.monotonic() < ends, self.log.read_text()
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


def called(store: str, data_dir: Path, *command: str) -> tuple[int, dict[str, Any]]:
    """Call a command on all shards of the store. Return its exit code and its report."""
    done = call(*command, "--json", "--data-dir", data_dir, TENANTQ_STORE=store)
    assert done.out, done.err
    return done.code, done.json
