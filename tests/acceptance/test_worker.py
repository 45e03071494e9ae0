"""A worker from the command line: it imports the module, works, and drains on a signal."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served

MODULE = """
import time
from pathlib import Path
from tenantq import Worker

worker = Worker("http://127.0.0.1:1", concurrency=2)

@worker.task("sums", result=True)
def add_up(numbers: list) -> int:
    return sum(numbers)

@worker.task("slow")
def wait_for(path: str) -> None:
    Path(path + ".begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)

nothing = 1

shown = Worker("https://127.0.0.1:1", token="tq_own", concurrency=2, prefetch=0)
shown.task("sums")(lambda _: None)

def show(*, burst):
    settings = shown.settings
    print(settings.url, settings.timeout_ms, settings.token, settings.tls.ca_file, settings.tls.certificate_file,
          settings.tls.key_file, shown.concurrency, shown.prefetch)
    return True

shown.run = show
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory that contains a module with workers."""
    (tmp_path / "jobs.py").write_text(MODULE)
    return tmp_path


def python_path(directory: Path) -> str:
    """Return a module search path with this directory first."""
    return os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def test_burst_handles_all_messages_and_exits(server: Served, directory: Path) -> None:
    """The server and token of the environment override those of the module."""
    ids = [server.ok("add", "sums", f"[1, {number}]").out.strip() for number in range(5)]
    done = server.run("worker", "jobs:worker", "--burst", "--queue", "sums", PYTHONPATH=python_path(directory))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "working on sums" in done.stderr
    results = [server.ok("message", "result", "sums", id).out for id in ids]
    assert results == ["1\n", "2\n", "3\n", "4\n", "5\n"]


def test_worker_serves_another_tenant(server: Served, directory: Path) -> None:
    """--tenant selects it."""
    server.ok("tenant", "create", "elsewhere")
    id = server.ok("add", "sums", "[20, 22]", "--tenant", "elsewhere").out.strip()
    arguments = ("worker", "jobs:worker", "--burst", "--queue", "sums", "--tenant", "elsewhere", "--log-level", "error")
    done = server.run(*arguments, PYTHONPATH=python_path(directory))
    assert (done.returncode, done.stderr) == (0, "")
    assert server.ok("message", "result", "sums", id, "--tenant", "elsewhere").out == "42\n"


def test_connection_options_override_the_module(server: Served, directory: Path) -> None:
    """Options that are not given keep the module's values."""
    files = ("--ca-file", "ca.pem", "--cert-file", "own.pem", "--key-file", "own.key")

    def shown(*options: str) -> list[str]:
        done = server.run(
            "worker", "jobs:shown", *options, PYTHONPATH=python_path(directory), TENANTQ_URL="", TENANTQ_TOKEN=""
        )
        return done.stdout.split()

    there = server.run("worker", "jobs:shown", "--timeout", "3s", *files, PYTHONPATH=python_path(directory))
    assert there.stdout.split()[1:] == ["3000", ADMIN_TOKEN, "ca.pem", "own.pem", "own.key", "2", "0"], there.stderr
    wanted = ["https://127.0.0.1:1", "3000", "tq_own", "ca.pem", "own.pem", "None", "7", "0"]
    assert shown("--timeout", "3s", *files[:4], "--concurrency", "7") == wanted
    assert shown()[:4] == ["https://127.0.0.1:1", "10000", "tq_own", "None"]
    assert shown("--url", "https://127.0.0.1:1/")[2] == "tq_own"
    assert shown("--url", "https://127.0.0.1:2")[2] == "None"


def test_signal_lets_handlers_finish(server: Served, directory: Path) -> None:
    """Messages in progress are completed and acked, and the exit code is 0."""
    gate = directory / "gate"
    server.ok("add", "slow", str(gate))
    process = subprocess.Popen(
        [COMMAND, "worker", "jobs:worker"], stderr=subprocess.PIPE, text=True, env=server.environment(), cwd=directory
    )
    try:
        while not (directory / "gate.begun").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        for line in process.stderr:
            if "stopping" in line:
                break
        gate.touch()
        process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert server.ok("queue", "show", "slow", "--json").json["acked_total"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("no_such_module:worker",), 3, "no module no_such_module"),
        (("tests.acceptance.command:nobody",), 3, "has no attribute nobody"),
        (("tests.acceptance.command:COMMAND",), 2, "is a str, not a Worker"),
        (("nonsense",), 2, "is not of the form module:name"),
        (("a:b", "--concurrency", "0"), 2, "0 is not in the range"),
    ],
)
def test_missing_worker_is_a_one_line_error(server: Served, arguments: tuple[str, ...], code: int, text: str) -> None:
    """The line says what is missing."""
    done = server.call("worker", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err
    assert text in done.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\nraise ValueError('boom')\n", ("ValueError: boom", "broken.py, line 2")),
        ("import not_there_at_all\n", ("No module named 'not_there_at_all'", "broken.py, line 1")),
        ("x = (\n", ("SyntaxError", "broken.py, line 1")),
    ],
)
def test_broken_module_is_a_one_line_error(server: Served, directory: Path, text: str, told: tuple[str, str]) -> None:
    """The line says what is wrong and where; it does not look like a bug of tenantq."""
    (directory / "broken.py").write_text(text)
    done = server.run("worker", "broken:worker", PYTHONPATH=python_path(directory))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert all(part in done.stderr for part in told), done.stderr
    assert "bug" not in done.stderr


def test_invalid_token_ends_the_worker(server: Served, directory: Path) -> None:
    """It does not retry forever."""
    done = server.run("worker", "jobs:worker", PYTHONPATH=python_path(directory), TENANTQ_TOKEN="nobody-s-token-at-all")  # noqa: S106
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1].startswith("tenantq: ")


@pytest.mark.parametrize("options", [("--burst",), (), ("--burst", "--tenant", "default"), ("--tenant", "default")])
def test_key_without_the_right_to_poll_ends_the_worker(
    server: Served, directory: Path, options: tuple[str, ...]
) -> None:
    """The exit code is that of a denial, and the server's error is the last line."""
    token = server.ok("key", "create", "seller", "--role", "producer", "--quiet").out.strip()
    arguments = ("worker", "jobs:worker", "--queue", "sums", *options)
    done = server.run(*arguments, PYTHONPATH=python_path(directory), TENANTQ_TOKEN=token)
    assert done.returncode == 4
    assert "tenantq: action 'poll' on queue 'sums' is not allowed" in done.stderr.splitlines()[-1]
