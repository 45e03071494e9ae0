"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenantq.cli.durations import show_duration, show_moment
from tenantq.client.bodies import to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_encode = msgspec.json.Encoder().encode
_UNPRINTABLE: Final = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)
}
"""What could move the cursor or colour a terminal, were it printed as it came."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def print_json(value: object) -> None:
    """Print one JSON document, indented."""
    click.echo(msgspec.json.format(_encode(value)))


def print_json_line(value: object) -> None:
    """Print one JSON document on a line of its own, at once."""
    click.echo(_encode(value))


@functools.cache
def console() -> Console:
    """Return the way to stdout: colours and width only where that is a terminal."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def printable(text: str) -> str:
    """Return text that does nothing to a terminal but appear."""
    return text.translate(_UNPRINTABLE)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under headings; numbers to the right. Where stdout is no terminal: cells with tabs between, one row a line."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        if cells:
            click.echo("\t".join(headings))
        for row in cells:
            click.echo("\t".join(text.replace("\t", " ").replace("\n", " ") for text, _ in row))
        return
    if not cells:
        click.echo(empty)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(headings):
        kinds = {row[place][1] for row in cells}
        table.add_column(
            heading, justify="right" if "number" in kinds and "text" not in kinds else "left", overflow="fold"
        )
    for row in cells:
        table.add_row(*(Text(text) for text, _ in row))
    console().print(table)


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


def age(ms: int) -> str:
    """Return an age in its one or two largest units."""
    if ms < 10_000:
        return show_duration(ms)
    unit = 1_000 if ms < 3_600_000 else 60_000 if ms < 86_400_000 else 3_600_000
    return show_duration(ms - ms % unit)


def body_fields(body: bytes, name: str = "body") -> dict[str, str]:
    """Return a body as JSON carries it: text, or base64 under another name."""
    text, encoded = to_wire(body)
    return {name: text} if text is not None else {f"{name}_base64": encoded or ""}


def preview(body: bytes, chars: int = 60) -> str:
    """Return the beginning of a body for a table."""
    text = " ".join(printable(body[: 4 * chars].decode(errors="replace")).split())
    return text if len(text) <= chars and len(body) <= 4 * chars else f"{text[: chars - 1]}…"


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
        return "-", "nothing"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value))), "text"
    return printable(str(value)), "text"


def moment(ms: int | None) -> str | None:
    """Return a point of time for a table; None: there is none."""
    return None if ms is None else show_moment(ms)
