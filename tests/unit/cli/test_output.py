"""What commands print, and how they end."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click
import pytest

from tenantq import errors
from tenantq.cli import exit_codes
from tenantq.cli.box import boxed
from tenantq.cli.command_line import error_line
from tenantq.cli.command_line import tenantq as command_line
from tenantq.cli.logs import set_up_logs
from tenantq.cli.output import print_facts, print_table
from tenantq.readable import age, preview, printable

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_an_errors_line_has_its_code_and_notes() -> None:
    """In brackets, after the text."""
    error = errors.NotFound("no such thing")
    error.add_note("request id: 7")
    assert error_line(error) == "no such thing [not_found; request id: 7]"


def test_every_command_can_be_loaded_and_says_what_it_does() -> None:
    """Also those that are loaded only when they are used."""
    context = click.Context(command_line)
    for name in command_line.list_commands(context):
        command = command_line.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str()
    assert command_line.get_command(context, "nonsense") is None


def test_a_box_is_as_wide_as_its_widest_line() -> None:
    """All its lines have one length."""
    lines = boxed("a title", ["x", "a longer line of text", ""]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(boxed("a title that is longer than all lines", ["x"]).splitlines()[0]) > 38


def test_a_table_for_a_pipe_is_tabs_and_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is in the cells; nothing at all where there are no rows."""
    print_table(
        ("a", "b", "c"), [("x\ty\nz", 12_345, None), (True, ["p", "q"], "\x1b[1m"), (0.0, 1_234.5, "")], empty="none"
    )
    rows = "x y z\t12345\t-\nyes\tp, q\t\N{REPLACEMENT CHARACTER}[1m\n0.00\t1234.50\t-\n"
    assert capsys.readouterr().out == f"a\tb\tc\n{rows}"
    print_table(("a",), [], empty="none")
    print_facts({"a": {"b": {"c": 1}}, "d": {}})
    assert capsys.readouterr().out == "a.b.c\t1\nd\t-\n"


def test_previews_and_ages_are_short() -> None:
    """However long what they are of."""
    assert preview(b"short") == "short"
    assert preview(b"a\n  b\x00") == "a b\N{REPLACEMENT CHARACTER}"
    assert len(preview(b"x" * 1_000)) == 60
    assert preview(b"\xff\xfe") == "\N{REPLACEMENT CHARACTER}" * 2
    assert [age(ms) for ms in (999, 1_500, 61_999, 3_723_000, 90_000_000)] == [
        "999ms",
        "1s500ms",
        "1m1s",
        "1h2m",
        "1d1h",
    ]
    assert printable("tab\tline\n") == "tab\tline\n"


@pytest.fixture
def _own_logs() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.usefixtures("_own_logs")
def test_a_log_line_has_what_was_given_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    """As text or as JSON, with the trace where there is one."""
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
