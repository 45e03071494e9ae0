"""Real Redis servers for tests: on free ports of this machine, in a directory of the test's own, stopped by their process ids."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Literal

from redis import Redis
from redis.exceptions import RedisError

from tenantq.store.redis.address import parse_address
from tenantq.store.redis.opening import open_when_free
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.store import RedisStore

if TYPE_CHECKING:
    from pathlib import Path

_START_S = 20.0


def free_port() -> int:
    """Return a port that nobody listens on. A cluster node takes the one 10,000 above as well, so it is not near the end."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 50_000:
            return port


class RedisServer:
    """One redis-server process."""

    def __init__(self, directory: Path, *options: str, port: int | None = None) -> None:
        """Start a server; ``options`` are lines of its configuration, without quotes."""
        self.directory, self.options = directory, options
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start the process, again if it was ended."""
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            'save ""',
            "daemonize no",
            "logfile redis.log",
            *self.options,
        ]
        (self.directory / "redis.conf").write_text("\n".join(lines) + "\n")
        command = ["redis-server", str(self.directory / "redis.conf")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.client().ping()
            except RedisError:
                assert self.process.poll() is None, (self.directory / "redis.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """Return a client of it, for looking and for setting."""
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=10)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class OnRedis:
    """Opens the store of a shard on a server, under a name that goes with the shard's directory."""

    def __init__(self, server: Any, path: Path, durability: Literal["fsync", "os"] = "os", **settings: object) -> None:
        name = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
        self.path, self.durability = path, durability
        self.address = parse_address(server.url)
        self.settings = RedisSettings(**{"name": name, **settings})  # type: ignore[arg-type]  # each by its name

    async def __call__(self, shard: str) -> RedisStore:
        """Open it, to own it."""
        return await open_when_free(self.path, self.address, self.settings, shard, durability=self.durability)

    def to_read(self, path: Path) -> RedisStore:
        """Open it for the doctor."""
        return RedisStore(path, self.address, self.settings, "0", read_only=True)
