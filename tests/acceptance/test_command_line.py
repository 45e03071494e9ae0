"""What all commands have in common: help, version, one-line errors, profiles, terminals."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.access import ROLES
from tenantq.sources.open_source import SOURCES
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, call, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ("serve", "add", "poll", "worker", "doctor", "demo", "--version")),
        (("serve",), ("--data-dir", "--http", "--config", "Exit codes:", "TENANTQ_ADMIN_TOKEN", "second signal")),
        (("add",), ("--jsonl", "--url", "TENANTQ_TOKEN", "TENANTQ_PROFILE", "tenantq add mail hello")),
        (("queue",), ("create", "configure", "list", "show", "pause", "resume", "delete", "purge", "peek")),
        (("doctor",), ("--data-dir", "--json", "Exit codes:", "0  consistent", "TENANTQ_DATA_DIR")),
        (("migrate-from",), (*SOURCES, "--parts N ")),
        (("migrate",), ("\nConnection:\n",)),
        (("pipeline", "stream"), ("at least 0]",)),
        (("key", "create"), tuple(f"{role}:" for role in ROLES)),
        (("demo",), ("--data-dir", "--seconds", "Exit codes:", "second signal")),
    ],
)
def test_help_lists_options_exit_codes_and_variables(command: tuple[str, ...], words: tuple[str, ...]) -> None:
    """All three are part of the help text."""
    done = call(*command, "--help")
    assert (done.code, done.err) == (0, "")
    for word in words:
        assert word in done.out


@pytest.mark.parametrize("group", [(), ("queue",), ("backup",)])
def test_help_is_not_cut_on_a_narrow_terminal(group: tuple[str, ...]) -> None:
    """Every command shows its whole sentence, and the commands of the program are grouped under headings."""
    done = call(*group, "--help", COLUMNS="60")
    assert (done.code, "..." in done.out.partition("]...")[2]) == (0, False), done.out
    assert max(map(len, done.out.splitlines())) <= 60
    for heading in ("Messages:", "Tenants and access:", "Server:") if not group else ("Commands:",):
        assert f"\n{heading}\n" in done.out


def test_help_lists_connection_options_last() -> None:
    """The options of the command come first, and ranges are written as words."""
    own, _, connection = call("poll", "--help").out.partition("\nConnection:\n")
    assert "--follow" in own
    assert "[default: 1; 1 to 1000]" in own
    assert "--url" not in own
    assert connection.startswith("  --url URL")


def test_a_mistyped_command_gets_a_suggestion() -> None:
    """This works at every level, although most command modules are not imported yet."""
    assert "Did you mean 'queue'?" in call("quue", "list").err
    assert "Did you mean 'report'?" in call("pipeline", "reprt").err


def test_version() -> None:
    """It prints the installed version and nothing else."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"tenantq {version('tenantq')}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("doctor", "--nonsense"),
        ("demo", "--seconds", "0"),
        ("demo", "--seconds", "x"),
        ("queue", "list", "--timeout", "soon"),
    ],
)
def test_usage_error_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    """It says what is wrong and where to read on."""
    done = call(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("tenantq: ")
    assert re.search(r"[.?] Try 'tenantq[a-z ]* --help'\.$", done.err)


def test_unreachable_server_is_exit_code_6_and_named() -> None:
    """The error is one line without a traceback."""
    done = call("queue", "list", "--url", "http://127.0.0.1:1", "--token", "x")
    assert (done.code, done.out, done.err.count("\n")) == (6, "", 1)
    assert done.err.startswith("tenantq: http://127.0.0.1:1: ")
    assert "Start one with 'tenantq serve', or set --url [unavailable" in done.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--url", "ftp://example.com"), "url: must start with http:// or https://"),
        (("--url", "http://user:secret@127.0.0.1:1"), "url: must not contain a credential"),
        (("--token", "two words"), "token: must be printable ASCII without spaces"),
        (("--url", "https://127.0.0.1:1", "--ca-file", "/nowhere.pem"), "no such file: /nowhere.pem"),
        (("--timeout", "0"), "timeout_ms: out of range (0, allowed: 1 to"),
    ],
)
def test_invalid_url_or_token_is_exit_code_2(options: tuple[str, ...], text: str) -> None:
    """The error does not repeat secrets."""
    done = call("queue", "list", *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert text in done.err
    assert "secret" not in done.err
    assert "two words" not in done.err


def test_missing_token_error_says_how_to_give_one(server: Served) -> None:
    """An invalid token is refused without being repeated."""
    none = server.call("queue", "list", TENANTQ_TOKEN="")
    assert (none.code, none.err.count("\n")) == (4, 1)
    assert "Give a token with --token, TENANTQ_TOKEN or a profile." in none.err
    wrong = server.call("queue", "list", TENANTQ_TOKEN="tq_wrong_token-of-nobody")  # noqa: S106
    assert wrong.code == 4
    assert "token-of-nobody" not in wrong.err


def test_server_errors_show_code_and_request_id(server: Served) -> None:
    """With these, the call can be found in the server's log and journal."""
    done = server.call("queue", "show", "missing")
    assert re.fullmatch(r"tenantq: .* \[not_found; request id: [0-9a-f]+-[0-9a-f]+\]\n", done.err)


def test_commands_wait_for_a_rate_limit(server: Served) -> None:
    """They wait as long as the server asks, and the lines keep their order."""
    server.ok("tenant", "create", "slow", "--set", "limits.write.ops_per_sec=5")
    done = server.ok("add", "mail", "--lines", "--tenant", "slow", "--json", stdin=b"x\n" * 8)
    assert [one["line"] for one in done.json_lines if one["error"] is None] == list(range(1, 9))


def test_long_rate_limit_pause_is_exit_code_5(server: Served) -> None:
    """Nobody waits at a terminal for that long."""
    server.ok("tenant", "create", "narrow", "--set", "limits.read.bytes_per_sec=10")
    server.ok("add", "mail", "x" * 1_000, "--tenant", "narrow")
    server.ok("poll", "mail", "--tenant", "narrow")
    done = server.call("poll", "mail", "--tenant", "narrow")
    assert done.code == 5
    assert "rate_limited" in done.err


# ---- profiles ----


def test_profiles_are_created_used_and_removed(server: Served, tmp_path: Path) -> None:
    """Only the user can read them; they are used by name and never show their token."""
    here: dict[str, Any] = {"XDG_CONFIG_HOME": str(tmp_path), "TENANTQ_URL": "", "TENANTQ_TOKEN": ""}
    file = tmp_path / "tenantq" / "profiles.json"
    made = server.ok("profile", "add", "local", "--url", server.url, "--token", "-", stdin=ADMIN_TOKEN.encode(), **here)
    assert made.out == f"stored profile local in {file}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    server.ok("tenant", "list", **here)  # the first profile becomes the default
    server.ok("profile", "add", "dead", "--url", "http://127.0.0.1:1", stdin=b"other-token\n", **here)
    assert server.call("profile", "add", "dead", "--url", server.url, **here).code == 7
    assert server.call("tenant", "list", "--profile", "dead", **here).code == 6
    server.ok("profile", "use", "dead", **here)
    assert server.call("tenant", "list", **here).code == 6
    server.ok("tenant", "list", **{**here, "TENANTQ_PROFILE": "local"})
    listed = server.ok("profile", "list", **here).out + server.ok("profile", "list", "--json", **here).out
    assert "other-token" not in listed
    assert ADMIN_TOKEN not in listed
    assert server.ok("profile", "list", "--json", **here).json["profiles"][1] == {
        "name": "dead", "url": "http://127.0.0.1:1", "tenant": None, "token": True, "current": True,
    }  # fmt: skip
    assert server.ok("profile", "remove", "dead", "--json", **here).json == {"name": "dead", "removed": True}
    missing = server.call("tenant", "list", "--profile", "dead", **here)
    assert (missing.code, missing.err) == (3, "tenantq: unknown profile 'dead'; known profiles: local [not_found]\n")


def test_damaged_profiles_file_is_reported(tmp_path: Path) -> None:
    """The error does not show its content."""
    (tmp_path / "tenantq").mkdir()
    (tmp_path / "tenantq" / "profiles.json").write_text('{"profiles": {"a": {"url": "x", "token": "secret"')
    done = call("queue", "list", XDG_CONFIG_HOME=str(tmp_path))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is damaged; repair or delete it" in done.err
    assert "secret" not in done.err


def test_damaged_profiles_file_is_ignored_if_not_needed(server: Served, tmp_path: Path) -> None:
    """With URL and token in the environment, no profile is read."""
    (tmp_path / "tenantq").mkdir()
    (tmp_path / "tenantq" / "profiles.json").write_text("{")
    server.ok("queue", "list", XDG_CONFIG_HOME=str(tmp_path))
    assert server.call("queue", "list", "--profile", "local", XDG_CONFIG_HOME=str(tmp_path)).code == 2


# ---- shells and terminals ----


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """The script names the program, and the shell then asks the program itself."""
    done = run("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_TENANTQ_COMPLETE" in done.stdout
    word = "que" if shell == "fish" else "1"  # fish passes the word itself, the others its index
    asked = run(COMP_WORDS="tenantq que", COMP_CWORD=word, _TENANTQ_COMPLETE=f"{shell}_complete")
    assert "queue" in asked.stdout


def test_tables_and_colours_on_a_terminal(server: Served) -> None:
    """Columns are aligned and headings bold unless NO_COLOR is set; a pipe gets tabs and no colour."""
    server.ok("add", "table", "hello")
    code, shown = server.run_on_terminal("queue", "list")
    assert code == 0
    assert "\x1b[1mname" in shown
    assert re.search(r"table +active +1 +0 +0 +0 +5 ", shown)
    assert "\x1b[3" not in server.run_on_terminal("queue", "list", NO_COLOR="1")[1]
    assert "\x1b" not in server.ok("queue", "list").out
    assert "table\tactive\t1\t" in server.ok("queue", "list").out


def test_destructive_commands_ask_for_the_name(server: Served) -> None:
    """A wrong name changes nothing; the right name and a reason confirm."""
    server.ok("add", "doomed", "hello")
    code, shown = server.run_on_terminal("queue", "delete", "doomed", typed=["domed\n"])
    assert code == 1
    assert "This deletes queue doomed with 1 message. This cannot be undone." in shown
    assert "the name does not match; nothing was changed" in shown
    assert server.ok("queue", "show", "doomed", "--json").json["ready"] == 1
    code, shown = server.run_on_terminal("queue", "purge", "doomed", typed=["doomed\n", "no longer needed\n"])
    assert (code, "purged 1 message" in shown) == (0, True)
    code, shown = server.run_on_terminal("queue", "delete", "doomed", typed=["doomed\n", "no longer needed\n"])
    assert (code, "deleting queue doomed" in shown) == (0, True)


def test_typed_token_is_not_echoed(server: Served, tmp_path: Path) -> None:
    """The command asks for a token if none is given."""
    arguments = ("profile", "add", "typed", "--url", server.url)
    code, shown = server.run_on_terminal(*arguments, typed=[f"{ADMIN_TOKEN}\n"], XDG_CONFIG_HOME=str(tmp_path))
    assert code == 0
    assert "Token:" in shown
    assert ADMIN_TOKEN not in shown
    server.ok("tenant", "list", "--profile", "typed", XDG_CONFIG_HOME=str(tmp_path))


def test_message_can_be_typed(server: Served) -> None:
    """The end of the input completes it."""
    code, shown = server.run_on_terminal("add", "typed", typed=["hello\n\x04"])
    assert code == 0
    assert "Type the message, then press Ctrl-D." in shown
    assert server.ok("poll", "typed", "--body").out == "hello\n\n"


def test_long_work_shows_a_progress_bar(server: Served, tmp_path: Path) -> None:
    """It appears only on a terminal, and the result is the same."""
    (tmp_path / "lines").write_text("x\n" * 5_000)
    command = f"{COMMAND} add barred --lines < {tmp_path / 'lines'}"
    parent, child = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, stderr=child, env=server.environment(TERM="xterm-256color")
    )
    os.close(child)
    out, _ = process.communicate(timeout=SECONDS_MAX)
    bar = os.read(parent, 65_536).decode()
    os.close(parent)
    assert out.decode().startswith("added 5000 (0 duplicates, 0 refused)")
    assert "added" in bar
    assert "%" in bar
