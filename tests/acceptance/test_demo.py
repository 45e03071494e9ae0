"""The demo as a user runs it: it starts, shows figures, and stops cleanly."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest import mock

from tenantq.cli.commands.demo import _cheat_sheet
from tenantq.cli.commands.demo_traffic import DemoTokens
from tests.acceptance.command import COMMAND, SECONDS_MAX, call, environment, read_until, run, running_demo

if TYPE_CHECKING:
    from pathlib import Path


def test_signal_stops_the_demo_cleanly(tmp_path: Path) -> None:
    """It exits with 0 and one last line, holds no leases, and leaves a clean store."""
    with running_demo(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, err) == (0, "")
    assert re.search(r"^stopped: \d+ ready messages and 0 leases remain", out, re.MULTILINE)
    assert call("doctor", "--data-dir", tmp_path).code == 0


def test_second_signal_stops_the_demo_immediately(tmp_path: Path) -> None:
    """The exit code is 128 plus the signal number, and the store survives."""
    with running_demo(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)  # both signals are pending when it continues
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=SECONDS_MAX)
    assert process.returncode in {128 + signal.SIGINT, 128 + signal.SIGTERM}
    assert call("doctor", "--data-dir", tmp_path).code == 0


def _demo(data_dir: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    return run("demo", "--data-dir", data_dir, "--http", "127.0.0.1:0", "--seconds", seconds)


def test_demo_stops_after_the_given_seconds(tmp_path: Path) -> None:
    """Every tenant has a line of figures for every second, and the work is done over HTTP."""
    done = _demo(tmp_path, 2)
    assert (done.returncode, done.stderr) == (0, "")
    for tenant in ("acme", "globex", "loud-corp"):
        lines = re.findall(rf"^\ds {tenant} added/s=\d+ done/s=(\d+) .*wait_p99_ms=\d+$", done.stdout, re.MULTILINE)
        assert len(lines) == 2
        assert int(lines[-1]) > 0
    assert "\x1b" not in done.stdout


def test_commands_of_the_cheat_sheet_work(tmp_path: Path) -> None:
    """Every command runs in another shell, in any directory, and does what it says."""
    process = subprocess.Popen(
        [COMMAND, "demo", "--data-dir", str(tmp_path), "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        sheet = read_until(process, "1s ")
        lines = [line.strip() for line in sheet.splitlines() if line.startswith("  ")]
        assert lines.pop(2).endswith("tenantq console")  # needs a terminal
        assert len(lines) == 8
        script = "\n".join(["set -e", *(f"{line}; echo" for line in lines)])
        pasted = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
            env=environment(XDG_CONFIG_HOME=str(tmp_path)), cwd="/",
        )  # fmt: skip
    finally:
        process.kill()
        process.communicate()
    assert pasted.returncode == 0, pasted.stderr
    assert "mail\tactive\t" in pasted.stdout
    assert '{"hello": "world"}' in pasted.stdout
    assert "would move" in pasted.stdout
    assert '"name":"mail"' in pasted.stdout


def test_killed_demo_leaves_a_clean_store(tmp_path: Path) -> None:
    """SIGKILL loses nothing that was counted; a new demo reuses the tokens, which only their owner can read."""
    with running_demo(tmp_path) as process:
        process.kill()
        process.communicate(timeout=SECONDS_MAX)
    tokens = json.loads((tmp_path / "demo-tokens.json").read_text())
    assert (tmp_path / "demo-tokens.json").stat().st_mode & 0o777 == 0o600
    examined = call("doctor", "--data-dir", tmp_path)
    assert (examined.code, examined.err) == (0, ""), examined.out
    again = _demo(tmp_path, 1)
    assert (again.returncode, again.stderr) == (0, "")
    shown = re.findall(r"TENANTQ_TOKEN=(\w{20,})$", again.stdout, re.MULTILINE)
    assert shown == [tokens["admin"], tokens["tenants"]["acme"]]


def test_the_cheat_sheet_fits_a_small_terminal() -> None:
    """With the table of figures below, it fits 24 lines of 80 columns."""
    tokens = DemoTokens(admin="demo_" + 48 * "a", tenants={"acme": f"tq_{16 * 'a'}_{52 * 'a'}"})
    with mock.patch("tenantq.cli.commands.demo._this_command", return_value="tenantq"):
        sheet = _cheat_sheet("http://127.0.0.1:7070", "./tenantq-data", tokens)
    rows = sum(max(1, -(-len(line) // 80)) for line in sheet.split("\n"))
    table_rows = 2 + 3  # title, headings, tenants
    assert rows + table_rows <= 23, sheet


def test_a_second_demo_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """One line on stderr names the process that has the directory."""
    with running_demo(tmp_path) as process:
        second = _demo(tmp_path, 1)
        assert second.returncode == 6
        assert second.stderr.startswith("tenantq: ")
        assert f"in use by process {process.pid}" in second.stderr
        assert second.stderr.count("\n") == 1


def test_store_failure_ends_the_demo_with_one_line(tmp_path: Path) -> None:
    """It says why, exits with 1, and leaves a clean store."""
    program = (
        "import sys; from tenantq.cli.main import main; from tenantq.store.rocks import RocksStore\n"
        "from tenantq.errors import StoreFailed\n"
        "good, count = RocksStore.sync, 0\n"
        "def sync(store):\n"
        "    global count\n"
        "    count += 1\n"
        "    if count > 50: raise StoreFailed('sync: the disk is gone')\n"
        "    return good(store)\n"
        "RocksStore.sync = sync\n"
        f"sys.argv = ['tenantq', 'demo', '--data-dir', {str(tmp_path)!r}, '--http', '127.0.0.1:0']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "tenantq: the store failed and the server stopped: sync: the disk is gone"
    )
    assert "Traceback" not in done.stderr
    assert call("doctor", "--data-dir", tmp_path).code == 0


def test_closed_pipe_ends_the_demo_quietly(tmp_path: Path) -> None:
    """A reader that goes away causes no traceback."""
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} demo --data-dir {tmp_path} --http 127.0.0.1:0 --seconds 1 | head -1"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env=environment(),
    )
    assert "Traceback" not in done.stderr


def test_a_port_in_use_leaves_no_directory_behind(tmp_path: Path) -> None:
    """The address is checked before anything is created."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        for command in ("demo", "serve"):
            done = call(command, "--data-dir", tmp_path / "new", "--http", address)
            assert (done.code, "another process listens there" in done.err) == (6, True), done
    assert list(tmp_path.iterdir()) == []
