"""``tenantq serve --store postgresql://…`` as processes: two servers share the shards, one is killed, and PostgreSQL may go away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import pytest

from tests.acceptance.cluster_process import TOKEN, ClusterProcess, called
from tests.postgres_servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUEUE = "/v1/tenants/default/queues/work"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Run a durable server with the number of connections that PostgreSQL allows by default."""
    server = PostgresServer("max_connections=100")
    yield server
    server.stop()


class Producers:
    """Two threads that add messages while the block runs, and the IDs that were confirmed."""

    def __init__(self, server: ClusterProcess) -> None:
        self._server = server
        self.over, self.confirmed = threading.Event(), list[str]()
        self._threads = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        self._tasks = [self._threads.submit(self._add) for _ in range(2)]
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._threads.shutdown()
        for task in self._tasks:
            task.result()

    def _add(self) -> None:
        while not self.over.is_set():
            status, added = self._server.ask(f"{QUEUE}/messages", {"messages": [{"body": "a"}, {"body": "b"}]})
            if status == 200:
                self.confirmed.extend(one["id"] for one in added["messages"])

    def wait_for(self, count: int) -> None:
        """Wait until this many messages are confirmed."""
        while len(self.confirmed) < count:
            self.over.wait(0.02)


def polled(server: ClusterProcess) -> dict[str, str]:
    """Return the bodies of all messages, by ID."""
    found: dict[str, str] = {}
    while messages := server.until(f"{QUEUE}/poll", 200, {"max": 1_000, "lease_ms": 600_000})["messages"]:
        found |= {one["id"]: one["body"] for one in messages}
    return found


def test_a_server_on_postgres_is_followed_by_another_when_it_is_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """With everything that was confirmed, leases included, on the same receipts. Commands work on the cluster as on any other."""
    servers = [ClusterProcess(tmp_path, name, postgres.url) for name in ("one", "two")]
    first, second = servers
    try:
        for server in servers:
            server.until("/readyz", 200)
        status, added = first.ask(f"{QUEUE}/messages", {"messages": [{"body": "a"}, {"body": "b"}]})
        assert status == 200, added
        (held,) = second.until(f"{QUEUE}/poll", 200, {"max": 1, "lease_ms": 60_000})["messages"]
        environment = {**os.environ, "TENANTQ_URL": f"http://127.0.0.1:{first.port}", "TENANTQ_TOKEN": TOKEN}
        for command in (("cluster", "status"), ("cluster", "shards"), ("topology", "prove", "default")):
            run = [sys.executable, "-m", "tenantq", *command, "--json"]
            done = subprocess.run(run, env=environment, capture_output=True, check=False)
            assert done.returncode == 0, (command, done.stderr)
            assert command[0] != "topology" or b"postgresql://127.0.0.1" in done.stdout
        code, report = called(postgres.url, tmp_path / "one", "doctor")
        assert (code, report["findings"], report["figures"]["messages"]) == (0, [], 2)
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        second.until(QUEUE, 200)
        assert second.ask(f"{QUEUE}/ack", {"receipts": [held["receipt"]]})[1]["results"][0]["ok"]
        assert [one["body"] for one in second.ask(f"{QUEUE}/poll", {"max": 9})[1]["messages"]] == ["b"]
        assert second.end() == 0
        code, report = called(postgres.url, tmp_path / "two", "doctor")
        assert (code, report["clean"], report["figures"]["messages"]) == (0, True, 1)
        code, report = called(postgres.url, tmp_path / "two", "audit", "verify")
        assert (code, report["findings"]) == (0, [])
    finally:
        for one in servers:
            one.process.kill()
            one.process.wait()
    assert "Traceback" not in "".join(one.log.read_text() for one in servers)


def test_nothing_confirmed_is_lost_when_a_standby_replaces_the_primary(tmp_path: Path) -> None:
    """Replies wait for the synchronous standby. The URL names both servers, and the one that accepts writes is used."""
    primary = PostgresServer("max_connections=100")
    standby = PostgresServer("max_connections=100", standby_of=primary)
    both = f"postgresql://test@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    primary.wait_for_standby()
    server = ClusterProcess(tmp_path, "one", both)
    try:
        server.until("/readyz", 200)
        with Producers(server) as producers, ThreadPoolExecutor(1) as thread:
            producers.wait_for(100)
            (receiver,) = standby.until("SELECT pid FROM pg_stat_wal_receiver")
            os.kill(receiver, signal.SIGSTOP)
            last = thread.submit(server.ask, f"{QUEUE}/messages", {"messages": [{"body": "last", "key": "last"}]})
            primary.until("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            producers.over.set()
            assert not last.done()
            primary.crash()
            os.kill(receiver, signal.SIGCONT)
            standby.promote()
            server.until("/readyz", 200)
            again = server.until(f"{QUEUE}/messages", 200, {"messages": [{"body": "last", "key": "last"}]})
            status, first = last.result()
            assert status != 200 or first["messages"][0]["id"] == again["messages"][0]["id"]
        bodies = polled(server)
        assert bodies.keys() >= set(producers.confirmed)
        assert list(bodies.values()).count("last") == 1
        assert server.end() == 0
        assert called(both, tmp_path / "one", "doctor")[1]["findings"] == []
    finally:
        server.process.kill()
        server.process.wait()
        standby.stop()
        primary.stop()
    assert "Traceback" not in server.log.read_text()


def test_nothing_confirmed_is_lost_when_postgres_crashes_under_load(postgres: PostgresServer, tmp_path: Path) -> None:
    """``pg_ctl stop -m immediate`` while servers add and ack."""
    server = ClusterProcess(tmp_path, "one", postgres.url)
    try:
        server.until("/readyz", 200)
        with Producers(server) as producers:
            for count in (50, 100):
                producers.wait_for(count)
                postgres.crash()
                postgres.start()
                server.until("/readyz", 200)
                server.until(f"{QUEUE}/messages", 200, {"messages": [{"body": "between"}]})
        server.until("/readyz", 200)
        assert polled(server).keys() >= set(producers.confirmed)
        assert server.end() == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert called(postgres.url, tmp_path / "one", "doctor")[1]["findings"] == []
    assert "Traceback" not in server.log.read_text()
