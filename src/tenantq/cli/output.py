"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenantq.domain.formatting import printable
from tenantq.wire.json_bytes import text_or_base64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_GAP: Final = 2
_FOLDED_MIN: Final = 24  # columns that a text at the end of a row needs, to be read over several lines
_NOTHING: Final = "-"
_encode = msgspec.json.Encoder().encode
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def print_json(value: object) -> None:
    """Print one JSON document, indented."""
    click.echo(msgspec.json.format(_encode(value)))


def print_json_line(value: object) -> None:
    """Print one JSON document on a line of its own, at once."""
    click.echo(_encode(value))


def print_done(text: str, facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print what was done: a sentence for people, or facts as one JSON document."""
    if as_json:
        print_json(facts)
    else:
        click.echo(text)


def console(*, stderr: bool = False) -> Console:
    """Return the way to stdout or stderr: colours, width and movement only where that is a terminal, whatever the environment says."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, soft_wrap=not is_terminal, force_terminal=is_terminal)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under headings; numbers to the right. Where stdout is no terminal: cells with tabs between, one row a line.

    On a terminal no cell is broken, but for texts in the last column; where that takes more than there is, each row is a block of
    names and values, one pair a line.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [[text.replace("\t", " ").replace("\n", " ") for text, _ in row] for row in cells]
    if not sys.stdout.isatty():
        for line in (headings, *lines) if lines else ():
            click.echo("\t".join(line))
        return
    if not lines:
        click.echo(empty)
        return
    kinds = [{row[place][1] for row in cells} for place in range(len(headings))]
    is_number = ["number" in kind and "text" not in kind for kind in kinds]
    out = console()
    if _fits(out.width, headings, lines, folds=not is_number[-1]):
        out.print(_table(headings, lines, is_number))
    else:
        _print_blocks(headings, lines)


def _fits(width: int, headings: Sequence[str], lines: list[list[str]], *, folds: bool) -> bool:
    *widths, last = (max(map(cell_len, column)) for column in zip(headings, *lines, strict=True))
    left = width - sum(widths) - len(widths) * _GAP
    return left >= (min(last, _FOLDED_MIN) if folds else last)


def _table(headings: Sequence[str], lines: list[list[str]], is_number: list[bool]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for place, heading in enumerate(headings):
        is_last = place == len(headings) - 1
        table.add_column(heading, justify="right" if is_number[place] else "left", no_wrap=not is_last, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _print_blocks(headings: Sequence[str], lines: list[list[str]]) -> None:
    """Print rows one below the other, without what they do not have."""
    width = max(map(len, headings))
    for number, line in enumerate(lines):
        if number:
            click.echo()
        for heading, text in zip(headings, line, strict=True):
            if text != _NOTHING:
                click.echo(f"{heading:{width}}  {text}")


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one pair a line; inner mappings as dotted names."""
    flat = dict(_flat(facts))
    width = max(map(len, flat), default=0) if sys.stdout.isatty() else 0
    for name, value in flat.items():
        click.echo(f"{name:{width}}  {_cell(value)[0]}" if width else f"{name}\t{_cell(value)[0]}")


def said(text: str) -> None:
    """Print a remark for people on stderr, where that is a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def body_fields(body: bytes, name: str = "body") -> dict[str, str]:
    """Return a body as JSON carries it: text, or base64 under another name."""
    text, encoded = text_or_base64(body)
    return {name: text} if text is not None else {f"{name}_base64": encoded or ""}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(value: object) -> tuple[str, Literal["number", "text", "nothing"]]:
    """Return a value as text, and what it is."""
    if isinstance(value, bool):
        return ("yes" if value else "no"), "text"
    if isinstance(value, int):
        return f"{value:,}" if sys.stdout.isatty() else str(value), "number"
    if isinstance(value, float):
        return f"{value:,.2f}" if sys.stdout.isatty() else f"{value:.2f}", "number"
    if value is None or value in ("", (), [], {}):
        return _NOTHING, "nothing"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value))), "text"
    return printable(str(value)), "text"
