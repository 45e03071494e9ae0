"""The demo as a user runs it: it starts, shows figures, and stops in good order."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import COMMAND, SECONDS_MAX, run, running_demo

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0, one last line, no lease left behind, and a store that is clean."""
    with running_demo(tmp_path) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, err) == (0, "")
    assert re.search(r"^stopped: \d+ messages wait, 0 leases are kept", out, re.MULTILINE)
    assert run("doctor", "--data-dir", tmp_path).returncode == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The exit code is 128 plus the signal's number, and the store survives it."""
    with running_demo(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)  # both signals are there when it goes on
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=SECONDS_MAX)
    assert process.returncode in {128 + signal.SIGINT, 128 + signal.SIGTERM}
    assert run("doctor", "--data-dir", tmp_path).returncode == 0


def test_killed_while_working_it_leaves_a_clean_store(tmp_path: Path) -> None:
    """Kill -9 loses nothing that was counted, and a new demo goes on from there."""
    with running_demo(tmp_path) as process:
        process.kill()
        process.communicate(timeout=SECONDS_MAX)
    examined = run("doctor", "--data-dir", tmp_path)
    assert (examined.returncode, examined.stderr) == (0, ""), examined.stdout
    again = run("demo", "--data-dir", tmp_path, "--seconds", 1)
    assert (again.returncode, again.stderr) == (0, "")


def test_it_stops_by_itself_after_the_given_seconds(tmp_path: Path) -> None:
    """Every tenant has a line of figures for every second."""
    done = run("demo", "--data-dir", tmp_path, "--seconds", 2)
    assert (done.returncode, done.stderr) == (0, "")
    for tenant in ("acme", "globex", "loud-corp"):
        assert (
            len(re.findall(rf"^\ds {tenant} added/s=\d+ done/s=\d+ .*wait_p99_ms=\d+$", done.stdout, re.MULTILINE)) == 2
        )
    assert "\x1b" not in done.stdout


def test_what_its_cheat_sheet_says_is_true(tmp_path: Path) -> None:
    """The session it prints can be typed."""
    done = run("demo", "--data-dir", tmp_path, "--seconds", 2)
    lines = re.findall(r"^  >>> (.*)$", done.stdout, re.MULTILINE)
    assert len(lines) == 6
    source = "async def session():\n" + "\n".join(f"    {line}" for line in lines)
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102  # the session under test
    asyncio.run(names["session"]())  # type: ignore[operator]


def test_a_second_demo_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """One line on stderr names the process that has the directory."""
    with running_demo(tmp_path) as process:
        second = run("demo", "--data-dir", tmp_path, "--seconds", 1)
        assert second.returncode == 2
        assert second.stderr.startswith("tenantq: ")
        assert f"in use by process {process.pid}" in second.stderr
        assert second.stderr.count("\n") == 1


def test_a_full_disk_ends_it_in_one_line(tmp_path: Path) -> None:
    """The shard refuses, the demo says why and exits with 1, and the store stays clean."""
    program = (
        "import sys; from tenantq.cli.main import main; from tenantq.store.rocks import Store;"
        f"Store.free_bytes = lambda store: 0; sys.argv = ['tenantq', 'demo', '--data-dir', {str(tmp_path)!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("tenantq: Free disk space is below the reserve")
    assert run("doctor", "--data-dir", tmp_path).returncode == 0


def test_a_closed_pipe_does_not_end_in_a_traceback(tmp_path: Path) -> None:
    """A reader that goes away ends the demo without noise."""
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} demo --data-dir {tmp_path} --seconds 3 | head -1"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert "Traceback" not in done.stderr
