"""Servers of one cluster as processes, for chaos runs and benchmarks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.crash.skewed_server import set_offset
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.crash.hosts_network import Host

TOKEN = "administrator-of-a-chaos-run"  # noqa: S105  # valid for this test only
NAME = "chaos"


class Server:
    """One ``tenantq serve`` process. With a host, it runs on the network and clocks of that host."""

    def __init__(
        self,
        number: int,
        scratch: Path,
        store: str,
        shards: int,
        host: Host | None = None,
        module: Sequence[str] = ("tenantq",),
        **environment: str,
    ) -> None:
        """Prepare the process. ``module`` with its arguments runs the program; ``environment`` has further settings."""
        self.number, self.host, self._module = number, host, module
        self.address = host.address if host is not None else "127.0.0.1"
        self.port, self.rpc_port = free_port(), free_port()
        self.url = f"http://{self.address}:{self.port}"
        self.log = scratch / f"server-{number}.log"
        self.clock_file = scratch / f"clock-{number}"
        set_offset(self.clock_file, (number - 1) * 2_000)
        self._data_dir = scratch / f"data-{number}"
        self._environment = {
            **os.environ,
            "TENANTQ_ADMIN_TOKEN": TOKEN,
            "TENANTQ_STORE": store,
            "TENANTQ_REDIS__NAME": NAME,
            "TENANTQ_REDIS__REPLICAS": "1",
            "TENANTQ_CLUSTER__SHARDS": str(shards),
            "TENANTQ_CLUSTER__SECRET": "known-to-all-servers-of-the-run",
            "TENANTQ_CLUSTER__PEER": f"{self.address}:0",
            "TENANTQ_EXPORT__TARGET": str(scratch / "journal"),
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The settings, for commands that read the store."""
        return self._environment

    @property
    def data_dir(self) -> Path:
        """The local data directory."""
        return self._data_dir

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended, or was never started."""
        return self.process is None or self.process.poll() is not None

    def start(self) -> None:
        """Start the process."""
        skew = ["tests.crash.skewed_server", str(self.clock_file), str(1_000_000 * (self.number + 1))]
        serve = ["serve", "--http", f"{self.address}:{self.port}", "--rpc", f"{self.address}:{self.rpc_port}"]
        serve += ["--data-dir", str(self._data_dir)]
        command = [sys.executable, "-m", *(skew if self.host is not None else self._module), *serve]
        prefix = self.host.prefix if self.host is not None else ()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*prefix, *command], stdout=out, stderr=subprocess.STDOUT, env=self._environment
            )

    def send(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int:
        """Stop the process and return its exit code."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code when the process has ended."""
        assert self.process is not None
        return self.process.wait(60)
