"""A worker from the command line: it finds the module, works, drains on a signal."""

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
def place(tmp_path: Path) -> Path:
    """Return a directory with a module of workers in it."""
    (tmp_path / "jobs.py").write_text(MODULE)
    return tmp_path


def beside(place: Path) -> str:
    """Return where a process looks for modules: there, and where this one does."""
    return os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def test_a_burst_does_what_there_is_and_ends(server: Served, place: Path) -> None:
    """The server and token of the environment go before those of the module."""
    ids = [server.ok("add", "sums", f"[1, {number}]").out.strip() for number in range(5)]
    done = server.run("worker", "jobs:worker", "--burst", "--queue", "sums", PYTHONPATH=beside(place))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "working on sums" in done.stderr
    results = [server.ok("message", "result", "sums", id).out for id in ids]
    assert results == ["1\n", "2\n", "3\n", "4\n", "5\n"]


def test_another_tenants_work(server: Served, place: Path) -> None:
    """With --tenant it serves that tenant."""
    server.ok("tenant", "create", "elsewhere")
    id = server.ok("add", "sums", "[20, 22]", "--tenant", "elsewhere").out.strip()
    arguments = ("worker", "jobs:worker", "--burst", "--queue", "sums", "--tenant", "elsewhere", "--log-level", "error")
    done = server.run(*arguments, PYTHONPATH=beside(place))
    assert (done.returncode, done.stderr) == (0, "")
    assert server.ok("message", "result", "sums", id, "--tenant", "elsewhere").out == "42\n"


def test_what_the_command_says_of_the_connection_goes_before_the_module(server: Served, place: Path) -> None:
    """With another server or with the module's own; what it does not say stays as the module has it."""
    files = ("--ca-file", "ca.pem", "--cert-file", "own.pem", "--key-file", "own.key")

    def shown(*options: str) -> list[str]:
        done = server.run("worker", "jobs:shown", *options, PYTHONPATH=beside(place), TENANTQ_URL="", TENANTQ_TOKEN="")
        return done.stdout.split()

    there = server.run("worker", "jobs:shown", "--timeout", "3s", *files, PYTHONPATH=beside(place))
    assert there.stdout.split()[1:] == ["3000", ADMIN_TOKEN, "ca.pem", "own.pem", "own.key", "2", "0"], there.stderr
    wanted = ["https://127.0.0.1:1", "3000", "tq_own", "ca.pem", "own.pem", "None", "7", "0"]
    assert shown("--timeout", "3s", *files[:4], "--concurrency", "7") == wanted
    assert shown()[:4] == ["https://127.0.0.1:1", "10000", "tq_own", "None"]
    assert shown("--url", "https://127.0.0.1:1/")[2] == "tq_own"
    assert shown("--url", "https://127.0.0.1:2")[2] == "None"


def test_a_signal_lets_handlers_finish(server: Served, place: Path) -> None:
    """What was begun is done and acked, and the exit code is 0."""
    gate = place / "gate"
    server.ok("add", "slow", str(gate))
    process = subprocess.Popen(
        [COMMAND, "worker", "jobs:worker"], stderr=subprocess.PIPE, text=True, env=server.environment(), cwd=place
    )
    try:
        while not (place / "gate.begun").exists():
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
def test_a_worker_that_is_not_there(server: Served, arguments: tuple[str, ...], code: int, text: str) -> None:
    """One line says what is missing."""
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
def test_a_module_that_cannot_be_loaded(server: Served, place: Path, text: str, told: tuple[str, str]) -> None:
    """One line that says what is wrong in it, and where; it is no bug of ours."""
    (place / "broken.py").write_text(text)
    done = server.run("worker", "broken:worker", PYTHONPATH=beside(place))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert all(part in done.stderr for part in told), done.stderr
    assert "bug" not in done.stderr


def test_a_token_that_is_not_valid_ends_it(server: Served, place: Path) -> None:
    """It does not go on asking for ever."""
    done = server.run("worker", "jobs:worker", PYTHONPATH=beside(place), TENANTQ_TOKEN="nobody-s-token-at-all")  # noqa: S106
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1].startswith("tenantq: ")


@pytest.mark.parametrize("options", [("--burst",), (), ("--burst", "--tenant", "default"), ("--tenant", "default")])
def test_a_key_that_may_not_poll_ends_the_worker(server: Served, place: Path, options: tuple[str, ...]) -> None:
    """The exit code is that of a denial, and the server's text is the last line."""
    token = server.ok("key", "create", "seller", "--role", "producer", "--quiet").out.strip()
    arguments = ("worker", "jobs:worker", "--queue", "sums", *options)
    done = server.run(*arguments, PYTHONPATH=beside(place), TENANTQ_TOKEN=token)
    assert done.returncode == 4
    assert "tenantq: action 'poll' on queue 'sums' is not allowed" in done.stderr.splitlines()[-1]
