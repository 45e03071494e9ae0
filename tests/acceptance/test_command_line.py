"""What every command has in common: help, version, one line for a mistake."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests.acceptance.command import run


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ("doctor", "demo", "--version")),
        (("doctor",), ("--data-dir", "--json", "Exit codes:", "0  everything adds up", "TENANTQ_DATA_DIR")),
        (("demo",), ("--data-dir", "--seconds", "Exit codes:", "second signal")),
    ],
)
def test_help_says_what_there_is(command: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Options, exit codes and environment variables stand in the help text."""
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in words:
        assert word in done.stdout


def test_version() -> None:
    """The installed version, nothing else."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"tenantq {version('tenantq')}\n")


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("doctor", "--nonsense"), ("demo", "--seconds", "0"), ("demo", "--seconds", "x")]
)
def test_a_mistake_is_one_line_and_2(arguments: tuple[str, ...]) -> None:
    """It says what is wrong and where to read on."""
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("tenantq: ")
    assert "--help'" in done.stderr
