"""A real server of several shards, and helpers for its tests."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tenantq.cli.commands.serve import SHARD_COMMAND
from tenantq.cluster.supervision.supervisor import Supervisor
from tenantq.settings import OFF, ServerSettings
from tests.acceptance.command import ADMIN_TOKEN, Served, serving
from tests.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = count(1)


class Sharded:
    """A server process with its shards. ``urls`` has the common address, then that of each shard."""

    def __init__(self, served: Served, data_dir: Path) -> None:
        self.served = served
        self.data_dir = data_dir
        self.url = served.url
        host = served.url.rpartition(":")[0]
        addresses = [one["address"] for one in self.get("/v1/topology")["shards"]]
        self.shards = [address if address.startswith("http") else f"{host}{address}" for address in addresses]
        self.urls = [self.url, *self.shards]
        self.has_backups = True  # tenantq itself backs up its store

    def client(self, at: int = 0, token: str = ADMIN_TOKEN) -> httpx.Client:
        """Return a client of one of ``urls``."""
        return httpx.Client(base_url=self.urls[at], headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def get(self, path: str, **options: Any) -> Any:
        """Return the administrator's reply at a path."""
        return self.ask("GET", path, **options).json()

    def ask(
        self, method: str, path: str, *, url: str | None = None, token: str = ADMIN_TOKEN, **options: Any
    ) -> httpx.Response:
        """Send a request on its own connection."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.request(method, (url or self.url) + path, headers=headers, timeout=30, **options)

    def tenant_on(self, shard: int, **config: Any) -> str:
        """Create tenants until one of them is on ``shard``; return it."""
        while True:
            name = f"tenant-{next(_numbers)}"
            made = self.ask("PUT", f"/v1/tenants/{name}", json=config)
            assert made.status_code == 201, made.text
            if made.json()["id"] >> 26 == shard:
                return name

    def key_of(self, tenant: str, role: str = "tenant-admin") -> str:
        """Create a key of a tenant."""
        made = self.ask("POST", f"/v1/tenants/{tenant}/keys", json={"name": "test", "role": role})
        token: str = made.json()["token"]
        return token

    def pid_of(self, shard: int) -> int:
        """Return the process of a shard: the one that has its store open."""
        wanted = self.data_dir if shard == 0 else self.data_dir / "shards" / str(shard)
        for pid in descendants(self.served.process.pid):
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if link.readlink() == (wanted / "lock").resolve():
                            return pid
        raise AssertionError(f"no process has shard {shard}")

    def kill(self, shard: int) -> int:
        """Kill a shard like a crash; return the killed process."""
        pid = self.pid_of(shard)
        os.kill(pid, signal.SIGKILL)
        return pid


def supervised(data_dir: Path) -> Supervisor:
    """Return a supervisor of two shards in this process, not started yet."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", rpc=OFF, grace_ms=0)
    return Supervisor(settings, 2, ADMIN_TOKEN, SHARD_COMMAND)


def until(true: Any, seconds: float = 30) -> Any:
    """Wait until ``true`` returns something, and return it."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)
    return found


@contextmanager
def sharded(data_dir: Path, *options: object, **variables: str) -> Iterator[Sharded]:
    """Serve with several shards for the length of a block."""
    with serving(data_dir, *options, **variables) as served:
        yield Sharded(served, data_dir)
