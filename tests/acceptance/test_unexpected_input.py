"""Unexpected input to commands: invalid text, closed streams, interrupts, bugs. None of it ends in a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tenantq.cli import command_line
from tests.acceptance.command import COMMAND, SECONDS_MAX, call, environment

if TYPE_CHECKING:
    from tests.acceptance.command import Served


@pytest.mark.parametrize("group", [(), ("queue",), ("key",), ("pipeline",)])
def test_group_without_a_command_shows_its_help(group: tuple[str, ...]) -> None:
    """The help goes to stderr with exit code 2, because nothing was done."""
    done, asked = call(*group), call(*group, "--help")
    assert (done.code, done.out, done.err) == (2, "", asked.out)
    assert done.err.count("\n") > 5


@pytest.mark.parametrize("arguments", [("add", "mail", "\udcff"), ("queue", "list", "--tenant", "\udcff"), ("\udcff",)])
def test_argument_that_is_not_utf_8_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    """Every command reports it in one line."""
    done = call(*arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert r"'\udcff' is not valid UTF-8" in done.err


def test_variable_that_is_not_utf_8_is_named_and_not_shown() -> None:
    """Its value may be a token."""
    done = call("queue", "list", TENANTQ_TOKEN="secret\udcff")  # noqa: S106  # not a real token
    assert (done.code, "TENANTQ_TOKEN is not valid UTF-8" in done.err, "secret" in done.err) == (2, True, False)


def test_unreadable_stdin_is_wrong_usage(server: Served) -> None:
    """Covers receipts that are not UTF-8 and JSON that is nested too deeply."""
    assert server.call("ack", "mail", "-", stdin=b"\xff\n").err == (
        "tenantq: receipts: stdin is not valid UTF-8 [invalid]\n"
    )
    deep = server.call("add", "mail", "--jsonl", stdin=b"[" * 100_000)
    assert (deep.code, deep.err) == (2, "tenantq: line 1: is nested too deeply [invalid]\n")


def test_closed_streams_are_reported(server: Served) -> None:
    """Commands that need a closed stream fail in one line, others work, and nothing else is added."""
    server.ok("queue", "create", "closed")

    def ended(command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", f'"{COMMAND}" {command}'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=server.environment(), timeout=SECONDS_MAX, check=False, text=True,
        )  # fmt: skip
        return done.returncode, done.stderr

    assert ended("add closed <&-") == (1, "tenantq: Bad file descriptor\n")
    assert ended("queue list >&-") == (1, "tenantq: Bad file descriptor\n")
    assert ended("queue list 2>&-") == (0, "")
    assert ended("nonsense 2>&-") == (2, "")
    assert ended("add closed hello >&- 2>&- <&-")[0] == 1
    assert server.ok("poll", "closed", "--max", "9", "--body").out == "hello\n"


def test_interrupt_while_loading_is_silent() -> None:
    """The process ends by the signal, as shells expect."""
    code = (
        "import os, signal, sys\n"
        "from tenantq.cli.main import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tenantq.cli.command_line': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "queue", "list"],
        capture_output=True, env=environment(), timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_interrupted_add_says_what_was_added(server: Served) -> None:
    """It names the last line that is certain, as an error does."""
    process = subprocess.Popen(
        [COMMAND, "add", "stream", "--lines", "--json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=server.environment(), text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n" + "line\n" * 1_000)
    process.stdin.flush()
    for _ in range(1_000):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "tenantq: interrupted; added 1000 so far; lines after 1001 may not have been added"


def test_bug_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1; the traceback is shown on request."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("nobody thought\nof this")

    monkeypatch.setattr(command_line.tenantq, "main", broken)
    done = call("queue", "list")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith("tenantq: internal error, please report it: KeyError: ")
    assert "Traceback" in call("queue", "list", TENANTQ_DEBUG="1").err
