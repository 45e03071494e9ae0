"""``tenantq console`` as a process: on a terminal, in a script, and without its extra."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from tenantq.cli.commands.console import _run
from tenantq.cli.connection import ServerConnection
from tenantq.cli.profiles import Profile
from tenantq.errors import Unavailable
from tests.acceptance.command import COMMAND, SECONDS_MAX, call

if TYPE_CHECKING:
    from tests.acceptance.command import Served

ALTERNATE_ON, ALTERNATE_OFF, CURSOR_ON = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def test_script_gets_one_snapshot_as_json_or_table(server: Served) -> None:
    """It has the figures of each tenant, and null where the credential has no access."""
    server.ok("tenant", "create", "acme", "--set", "quotas.backlog=2")
    server.ok("add", "mail", "x", "--tenant", "acme")
    server.ok("add", "mail", "x", "--tenant", "acme")
    look = server.ok("console", "--json").json
    (acme,) = [one for one in look["tenants"] if one["name"] == "acme"]
    assert look["all_tenants"]
    assert (acme["backlog"], acme["quota_state"], acme["dead"], acme["throttled_total"]) == (2, "critical", 0, 0)
    table = server.ok("console", "--once").out.splitlines()
    assert table[0].split("\t")[:2] == ["name", "status"]
    assert any(line.startswith("acme\tactive") for line in table)
    producer = server.ok("key", "create", "p", "--tenant", "acme", "--role", "producer", "--quiet").out.strip()
    own = server.ok("console", "--json", TENANTQ_TOKEN=producer).json
    assert (own["all_tenants"], own["tenants"][0]["backlog"]) == (False, None)


def test_console_errors_are_one_line(server: Served) -> None:
    """Covers a missing terminal, a refresh that is too quick, an invalid token and an unreachable server."""
    for arguments, code, text in (
        ((), 2, "use --json or --once"),
        (("--refresh", "1ms"), 2, "between 500ms and 1h"),
        (("--json", "--token", "tq_of_nobody"), 4, "unauthenticated"),
        (("--json", "--url", "http://127.0.0.1:1"), 6, "http://127.0.0.1:1"),
    ):
        done = server.call("console", *arguments)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
        assert text in done.err


def test_missing_extra_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not need the extra works without it."""
    for name in [name for name in sys.modules if name.startswith("tenantq.console.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    connection = ServerConnection(Profile(url="http://127.0.0.1:1"), 1_000)
    with pytest.raises(Unavailable, match=r"pip install '.\[console\]'"):
        asyncio.run(_run(connection, 1_000))
    assert call("console", "--json", "--url", "http://127.0.0.1:1").code == 6


@pytest.mark.parametrize("how", ["q", "ctrl-c", "SIGTERM"])
def test_terminal_is_restored_however_the_console_ends(server: Served, how: str) -> None:
    """After a key, an interrupt or a signal, the previous screen and the cursor are back."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(child)
    process = subprocess.Popen(
        [COMMAND, "console"],
        stdin=child, stdout=child, stderr=child, start_new_session=True,
        env=server.environment(TERM="xterm-256color", NO_COLOR="1"),
    )  # fmt: skip
    shown = _read_until(parent, b" UTC")
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        os.write(parent, b"q" if how == "q" else b"\x03")
    end = _read_until(parent, ALTERNATE_OFF, CURSOR_ON)
    assert process.wait(timeout=SECONDS_MAX) == (128 + signal.SIGTERM if how == "SIGTERM" else 0)
    assert ALTERNATE_ON in shown
    assert b"Traceback" not in shown + end
    assert termios.tcgetattr(child) == before
    os.close(parent)
    os.close(child)


def _read_until(descriptor: int, *wanted: bytes) -> bytes:
    """Return the output until it contains all of ``wanted``; the test's time limit also limits the wait."""
    shown = b""
    while not all(one in shown for one in wanted):
        shown += os.read(descriptor, 65_536)
    return shown
