"""What commands print, and their exit codes."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import TYPE_CHECKING

import click
import pytest

from tenantq import errors
from tenantq.cli import exit_codes
from tenantq.cli.command_line import error_line
from tenantq.cli.command_line import tenantq as command_line
from tenantq.cli.logs import set_up_logs
from tenantq.cli.output import Table, console, journal_table, panel, print_facts, print_table
from tenantq.cli.progress import byte_bar, seconds_bar
from tenantq.domain.formatting import plural, preview, printable, show_age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.TenantqError, 1), (errors.Invalid, 2), (errors.TooLarge, 2), (errors.NotFound, 3),
        (errors.Unauthenticated, 4), (errors.Forbidden, 4), (errors.Suspended, 4), (errors.RateLimited, 5),
        (errors.QuotaExceeded, 5), (errors.Unavailable, 6), (errors.ConnectionFailed, 6), (errors.TimedOut, 6),
        (errors.StoreLocked, 6), (errors.Conflict, 7), (errors.Draining, 7), (errors.LeaseLost, 7),
    ],
)  # fmt: skip
def test_every_error_has_an_exit_code(kind: type[errors.TenantqError], code: int) -> None:
    """Scripts rely on them."""
    assert exit_codes.exit_code(kind()) == code


def test_an_error_line_has_its_code_and_notes() -> None:
    """In brackets, after the text."""
    error = errors.NotFound("no such thing")
    error.add_note("request id: 7")
    assert error_line(error) == "no such thing [not_found; request id: 7]"


def test_every_command_loads_and_has_help() -> None:
    """Including commands that are loaded on first use."""
    context = click.Context(command_line)
    for name in command_line.list_commands(context):
        command = command_line.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str()
    assert command_line.get_command(context, "nonsense") is None


def test_a_box_is_as_wide_as_its_widest_line() -> None:
    """All lines have the same length."""
    lines = panel("a title", "x\na longer line of text\n").splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(panel("a title that is longer than all lines", "x").splitlines()[0]) > 38


def test_a_piped_table_is_tab_separated_with_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    """For any cell content. Without rows nothing is printed."""
    print_table(
        Table(("a", "b", "c"), [("x\ty\nz", 12_345, None), (True, ["p", "q"], "\x1b[1m"), (0.0, 1_234.5, "")], "none")
    )
    rows = "x y z\t12345\t-\nyes\tp, q\t\N{REPLACEMENT CHARACTER}[1m\n0.00\t1234.50\t-\n"
    assert capsys.readouterr().out == f"a\tb\tc\n{rows}"
    print_table(Table(("a",), [], "none"))
    print_facts({"a": {"b": {"c": 1}}, "d": {}})
    assert capsys.readouterr().out == "a.b.c\t1\nd\t-\n"


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[int], None]:
    """Make stdout a terminal with a given width."""
    capsys.readouterr()

    def set_width(width: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(width))

    return set_width


ID = "01a1e761-5fee-7471-8337-74e13eecd7f9"


def test_a_table_that_fits_is_aligned_under_its_headings(
    columns: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers are right-aligned, and only a text in the last column is wrapped."""
    columns(70)
    print_table(Table(("id", "bytes", "body"), [(ID, 1_234, "a text that is a little longer than its place")], "none"))
    lines = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"{'id':36}  bytes  body"
    assert lines[1].startswith(f"{ID}  1,234  a text that is a little")
    assert [line[:45].strip() for line in lines[2:]] == [""] * len(lines[2:])
    assert len(lines) == 3


def test_a_table_that_does_not_fit_becomes_one_block_per_row(
    columns: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """IDs are never wrapped, so they can be copied. Empty cells are left out."""
    columns(60)
    print_table(Table(("id", "bytes", "body"), [(ID, 1_234, "some text that is long"), (ID, 5, None)], "none"))
    assert capsys.readouterr().out == (
        f"id     {ID}\nbytes  1,234\nbody   some text that is long\n\nid     {ID}\nbytes  5\n"
    )


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_is_never_treated_as_a_terminal(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No environment variable puts progress bars or escape codes into a file."""
    monkeypatch.setenv(variable, "1")
    with byte_bar() as show, seconds_bar() as tell:
        show("copying", 1, 2)
        tell("working", 1, 2, 3)
    console().print("[bold]plain[/bold]")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("plain\n", "")


def test_the_outcome_of_a_journal_row_has_its_error_code_and_count(capsys: pytest.CaptureFixture[str]) -> None:
    """A row that merges many calls is not mistaken for one call."""
    rows = [
        {"op": "add", "outcome": "ok", "error_code": "", "count": 1},
        {"op": "get_queue", "outcome": "ok", "error_code": "", "count": 12},
        {"op": "add", "outcome": "denied", "error_code": "forbidden", "count": 3},
    ]
    print_table(journal_table(rows, "op", "outcome"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["add\tok", "get_queue\tok x12", "add\tdenied (forbidden) x3"]


def test_previews_and_ages_are_short() -> None:
    """For input of any length."""
    assert preview(b"short") == "short"
    assert preview(b"a\n  b\x00") == "a b\N{REPLACEMENT CHARACTER}"
    assert len(preview(b"x" * 1_000)) == 60
    assert preview(b"\xff\xfe") == "\N{REPLACEMENT CHARACTER}" * 2
    assert [show_age(ms) for ms in (999, 1_500, 61_999, 3_723_000, 90_000_000)] == [
        "999ms",
        "1s500ms",
        "1m1s",
        "1h2m",
        "1d1h",
    ]
    assert printable("tab\tline\n") == "tab\tline\n"
    assert printable("a\x1b\u202eb\u2066\ufeff\ud800") == "a\ufffd\ufffdb\ufffd\ufffd\ufffd"
    assert printable("\u0646\u200c\U0001f468\u200d\U0001f469") == "\u0646\u200c\U0001f468\u200d\U0001f469"
    assert [plural(number, "row") for number in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]


@pytest.fixture
def _own_logs() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("_own_logs")
def test_a_log_line_has_its_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """As text or JSON, with the trace if there is one."""
    log = logging.getLogger("tenantq.test")
    for kind in ("text", "json"):
        set_up_logs("info", kind)
        log.debug("never")
        try:
            int("broken")
        except ValueError:
            log.exception("it %s", "failed", extra={"queue": "mail", "odd": {1}})
    text, _, rest = capsys.readouterr().err.partition('{"at"')
    assert "ERROR   tenantq.test: it failed queue=mail odd={1}\nTraceback" in text
    record = json.loads('{"at"' + rest)
    assert (record["level"], record["logger"], record["message"], record["queue"]) == (
        "error", "tenantq.test", "it failed", "mail",
    )  # fmt: skip
    assert "ValueError: invalid literal" in record["trace"]
