"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenantq.json_bytes import text_or_base64
from tenantq.readable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_encode = msgspec.json.Encoder().encode
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
        return "-", "nothing"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value))), "text"
    return printable(str(value)), "text"
