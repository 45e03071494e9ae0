"""``tenantq migrate-from queueber --live``: Queueber works until it is stopped; then everything is in tenantq, once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import pytest

from tenantq import Client
from tenantq.sources.queueber import Queueber
from tests.acceptance.command import ADMIN_TOKEN, COMMAND
from tests.docs.prose import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Served


class RunningQueueber:
    """A process that has the store open and writes to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "tests.sources.queueber_store", str(directory)]
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def execute(self, command: str, *numbers: int) -> None:
        """Have it add, lease or remove items."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for number in numbers:
            self._process.stdin.write(f"{command} {number}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n"

    def stop(self) -> None:
        """Stop it as its operator would."""
        self._process.communicate(timeout=30)


@pytest.fixture
def queueber(tmp_path: Path) -> Iterator[RunningQueueber]:
    """Run Queueber with ten items."""
    with RunningQueueber(tmp_path / "old") as running:
        running.execute("add", *range(10))
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """Connect as the administrator."""
    with Client(server.url, ADMIN_TOKEN) as found:
        yield found


def migration(server: Served, queueber: RunningQueueber, tenant: str, *options: str) -> subprocess.Popen[str]:
    """Start the command, and return when it has caught up."""
    command = [COMMAND, "migrate-from", "queueber", str(queueber.directory), "--tenant", tenant, "--live", "--json"]
    process = subprocess.Popen(
        [*command, *options], env=server.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "following Queueber" in process.stderr.readline()
    return process


def report_of(process: subprocess.Popen[str]) -> Any:
    """Return the report of a migration that must succeed."""
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


def bodies(client: Client, tenant: str) -> list[bytes]:
    """Return what is ready."""
    return [message.body for message in client.tenant(tenant).queue("default").poll(max=100)]


def test_queueber_works_until_it_stops_and_nothing_is_delivered_twice(
    server: Served, client: Client, queueber: RunningQueueber
) -> None:
    """Items it finished are not migrated, items its workers held are ready, and the queue delivers only afterwards."""
    client.tenant("live").configure()
    running = migration(server, queueber, "live")
    assert client.tenant("live").queue("default").stats().status == "paused"
    queueber.execute("remove", 0, 1)
    queueber.execute("lease", 2, 3)
    queueber.execute("remove", 3)
    queueber.execute("add", 10)
    assert bodies(client, "live") == []
    queueber.stop()
    report = report_of(running)
    assert (report["read"], report["added"], report["removed"], report["verified"]) == (11, 11, 3, True)
    assert sorted(bodies(client, "live")) == sorted(b"item %d" % number for number in (2, *range(4, 11)))
    again = server.ok("migrate-from", "queueber", queueber.directory, "--tenant", "live", "--json").json
    assert again["added"] == 0


def test_next_migration_removes_items_finished_after_a_kill(
    server: Served, client: Client, queueber: RunningQueueber
) -> None:
    """Items that Queueber finished while no migration ran are removed."""
    client.tenant("live-killed").configure()
    first = migration(server, queueber, "live-killed")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    queueber.execute("remove", 5, 6)
    second = migration(server, queueber, "live-killed", "--in-progress", "keep-lease")
    queueber.execute("lease", 7)
    queueber.stop()
    report = report_of(second)
    assert (report["added"], report["removed"]) == (0, 2)
    assert len(bodies(client, "live-killed")) == 8


def test_unused_store_is_migrated_at_once(server: Served, client: Client, queueber: RunningQueueber) -> None:
    """There are no changes to follow."""
    queueber.stop()
    client.tenant("live-stopped").configure()
    done = server.ok(
        "migrate-from", "queueber", queueber.directory, "--tenant", "live-stopped", "--live", "--json"
    ).json
    assert (done["added"], done["removed"]) == (10, 0)
    assert len(bodies(client, "live-stopped")) == 10


def test_queueber_cannot_start_during_the_last_pass(queueber: RunningQueueber) -> None:
    """The migration locks the store as soon as it is free."""
    store = Queueber(queueber.directory, follow=True)
    assert not store.has_stopped()
    queueber.stop()
    assert store.has_stopped()
    with RunningQueueber(queueber.directory) as another, pytest.raises((AssertionError, BrokenPipeError)):
        another.execute("add", 1)
    store.close()


def test_live_option_is_only_for_queueber(server: Served) -> None:
    """Other sources are drained."""
    done = server.call("migrate-from", "redis", "redis://127.0.0.1:1", "jobs", "--live")
    assert (done.code, "--live: only for queueber" in done.err) == (2, True)
