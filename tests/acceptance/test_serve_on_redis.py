"""``tenantq serve --store`` as processes: one owns the shard, one stands by and takes over."""

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

import pytest

from tests.redis_servers import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "administrator-of-the-tests"  # noqa: S105  # of these tests only
PASSWORD = "s3cret-word"  # noqa: S105  # as above


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a durable server that wants a password."""
    server = RedisServer(tmp_path / "redis", "appendonly yes", "appendfsync always")
    server.client().config_set("requirepass", PASSWORD)
    yield server
    server.kill()


class Process:
    """One ``tenantq serve``."""

    def __init__(self, directory: Path, name: str, redis: RedisServer) -> None:
        self.port = free_port()
        self.log = directory / f"{name}.log"
        environment = {
            **os.environ, "TENANTQ_ADMIN_TOKEN": TOKEN, "TENANTQ_REDIS__LEASE_MS": "1000",
            "TENANTQ_REDIS__PATIENCE_MS": "1000",
            "TENANTQ_STORE": f"redis://:{PASSWORD}@127.0.0.1:{redis.port}",
        }  # fmt: skip
        command = [sys.executable, "-m", "tenantq", "serve", "--rpc", "off", "--http", f"127.0.0.1:{self.port}"]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--data-dir", str(directory / name)], stdout=out, stderr=subprocess.STDOUT, env=environment
            )

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Call it; status 0: it does not answer."""
        request = urllib.request.Request(  # of this machine
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310  # as above
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def until(self, path: str, status: int) -> dict[str, Any]:
        """Wait until it answers so."""
        ends = time.monotonic() + 30
        while True:
            found, told = self.ask(path)
            if found == status:
                return told
            assert time.monotonic() < ends, self.log.read_text()
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


def test_a_server_on_redis_is_followed_by_the_one_that_stands_by(redis: RedisServer, tmp_path: Path) -> None:
    """Alive and not ready while it waits, ready soon after the owner was killed, with everything that was confirmed."""
    first = Process(tmp_path, "one", redis)
    others: list[Process] = []
    try:
        first.until("/readyz", 200)
        second, third = Process(tmp_path, "two", redis), Process(tmp_path, "three", redis)
        others = [second, third]
        assert second.until("/readyz", 503)["status"] == "standby"
        assert second.ask("/healthz") == (200, {"status": "ok"})
        assert second.ask("/v1/tenants")[1]["code"] == "unavailable"
        third.until("/readyz", 503)
        assert third.end() == 0  # asked to stop while it waits
        queue = "/v1/tenants/default/queues/work"
        status, added = first.ask(f"{queue}/messages", {"messages": [{"body": "a"}, {"body": "b"}]})
        assert status == 200, added
        (held,) = first.ask(f"{queue}/poll", {"max": 1, "lease_ms": 60_000})[1]["messages"]
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        second.until("/readyz", 200)
        assert second.ask(f"{queue}/ack", {"receipts": [held["receipt"]]})[1]["results"][0]["ok"]
        assert [one["body"] for one in second.ask(f"{queue}/poll", {"max": 9})[1]["messages"]] == ["b"]
        assert second.end() == 0
    finally:
        for one in (first, *others):
            one.process.kill()
            one.process.wait()
    told = "".join(one.log.read_text() for one in (first, *others))
    assert "standing by: the shard is owned by" in told
    assert "took over from" in told
    assert PASSWORD not in told


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_a_redis_that_goes_away_ends_the_server_in_one_line(
    redis: RedisServer, tmp_path: Path, number: signal.Signals | None
) -> None:
    """With exit code 1 when its patience is over, also where it was asked to stop meanwhile."""
    server = Process(tmp_path, "one", redis)
    try:
        server.until("/readyz", 200)
        redis.kill()
        if number is not None:
            server.process.send_signal(number)
        assert server.process.wait(10) == 1
    finally:
        server.process.kill()
        server.process.wait()
    told = server.log.read_text()
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith("tenantq: the store failed and the server stopped: ")
