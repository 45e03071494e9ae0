"""What commands print: JSON for scripts, sentences, facts and tables for people."""

import functools
import io
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

import click
import msgspec
from rich.box import SQUARE
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command, ConnectionOption
from tenantq.cli.options import options
from tenantq.client import StoredMessage
from tenantq.domain.formatting import dotted, printable, show_time
from tenantq.errors import Conflict, NotFound
from tenantq.wire.json_bytes import text_or_base64
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantReply

_GAP: Final = 2
_FOLDED_MIN: Final = 24  # terminal columns that a wrapped last column needs
_PANEL_WIDTH: Final = 1_000
_NOTHING: Final = "-"
_encode = msgspec.json.Encoder().encode
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


Columns = Sequence["str | tuple[str, str | Callable[[Any], object]]"]
"""The headings of a table, each with an attribute or a function of an item. A heading alone is an attribute."""


class Table(NamedTuple):
    """Rows under headings; ``empty`` is printed on a terminal if there are no rows."""

    headings: Sequence[str]
    rows: Iterable[Sequence[object]]
    empty: str


class Output:
    """The result of a command: a JSON document for scripts, parts for people, and an exit code.

    A part is a sentence, with a style on a terminal if it is a Text, a mapping of names to values, or a table. ``notes`` are printed on stderr, also for people.
    """

    def __init__(
        self,
        json: object,
        *parts: str | Text | Mapping[str, Any] | Table,
        notes: Iterable[str] = (),
        code: int = exit_codes.OK,
    ) -> None:
        self.json = json
        self.parts = parts
        self.notes = notes
        self.code = code


def output_command(
    group: click.Group | None = None, *parameters: Callable[[Any], Any], **attributes: Any
) -> Callable[[Callable[..., Output]], click.Command]:
    """Return a decorator that turns a function into a command, in ``group`` if given, with ``parameters`` and ``--json``.

    The command prints the output that the function returns. ``attributes`` are those of click, such as the name.
    """

    def declare(function: Callable[..., Output]) -> click.Command:
        @functools.wraps(function)
        def printing(*args: Any, as_json: bool, **given: Any) -> int:
            return print_output(function(*args, **given), as_json=as_json)

        make = group.command(**attributes) if group is not None else click.command(cls=Command, **attributes)
        command: click.Command = make(options(*parameters)(json_option(printing)))
        command.params.sort(key=lambda one: isinstance(one, ConnectionOption) * 2 + (one.name == "as_json"))
        return command

    return declare


def print_output(output: Output, *, as_json: bool) -> int:
    """Print the output of a command, and return its exit code."""
    if as_json:
        print_json(output.json)
    else:
        for part in output.parts:
            _print_part(part)
        for note in output.notes:
            click.echo(note, err=True)
    return output.code


def _print_part(part: str | Text | Mapping[str, Any] | Table) -> None:
    if isinstance(part, str):
        click.echo(part)
    elif isinstance(part, Text):
        console().print(part, soft_wrap=True)
    elif isinstance(part, Table):
        print_table(part)
    else:
        print_facts(part)


def table(columns: Columns, items: Iterable[Any], empty: str) -> Table:
    """Return a table with one row per item."""
    named = [(one, one.replace(" ", "_")) if isinstance(one, str) else one for one in columns]
    cells = [attrgetter(cell) if isinstance(cell, str) else cell for _, cell in named]
    return Table([heading for heading, _ in named], [[cell(item) for cell in cells] for item in items], empty)


def list_output(name: str, items: Collection[Any], columns: Columns) -> Output:
    """Return the output of a command that lists items: an object with the field ``name``, or a table."""
    return Output({name: items}, table(columns, items, f"no {name}"))


def time_of(attribute: str) -> Callable[[Any], str | None]:
    """Return a column of a table that shows an attribute in milliseconds as a point in time."""
    return lambda item: show_time(getattr(item, attribute))


def settings_facts(item: msgspec.Struct) -> dict[str, Any]:
    """Return the facts about a tenant or queue, then its settings, named as ``--set`` expects them."""
    facts: dict[str, Any] = msgspec.to_builtins(item)
    config: dict[str, Any] = facts.pop("config")
    return facts | config


def create_once(kind: str, name: str, read: Callable[[], object], create: Callable[[], object]) -> Output:
    """Create a tenant or queue. Raises Conflict if it exists."""
    try:
        read()
    except NotFound:
        return Output(create(), f"created {kind} {name}")
    raise Conflict(f"{kind} {name} already exists; change it with 'tenantq {kind} configure'", **{kind: name})


def changes_output(what: str, before: TenantReply | QueueReply, after: TenantReply | QueueReply) -> Output:
    """Return the output of a change of settings: a sentence, then one line for each setting that is different."""
    old, new = dict(dotted(before.config)), dict(dotted(after.config))
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    lines = [f"{name} {_setting(old.get(name))} → {_setting(new.get(name))}" for name in changed]
    return Output(after, f"changed {what}" if changed else f"{what} already has these settings", *lines)


def _setting(value: object) -> str:
    text, kind = _cell(value)
    if kind == "nothing":
        return "none"
    return f"{value:,}" if kind == "number" else text


def rights_of(item: Any) -> str:
    """Return what a key or grant allows: its role, or its single actions."""
    return item.role or ", ".join(item.actions)


def to_json(value: object) -> str:
    """Return one JSON document, indented."""
    return msgspec.json.format(_encode(value)).decode()


def print_json(value: object) -> None:
    """Print one JSON document, indented."""
    click.echo(to_json(value))


def print_json_line(value: object) -> None:
    """Print one JSON document on one line."""
    click.echo(_encode(value))


def console(*, stderr: bool = False) -> Console:
    """Return a rich console on stdout or stderr. It uses colors, width and animation only on a terminal, regardless of the environment."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, soft_wrap=not is_terminal, force_terminal=is_terminal)


def print_table(table: Table) -> None:
    """Print rows under headings, numbers aligned to the right. Without a terminal, print one row per line, separated by tabs.

    A terminal shows every cell on one line, except for texts in the last column. If that is too wide, each row becomes a block
    of names and values, one pair per line.
    """
    headings = table.headings
    cells = [[_cell(value) for value in row] for row in table.rows]
    lines = [[text.replace("\t", " ").replace("\n", " ") for text, _ in row] for row in cells]
    if not sys.stdout.isatty():
        for line in (headings, *lines) if lines else ():
            click.echo("\t".join(line))
        return
    if not lines:
        click.echo(table.empty)
        return
    kinds = [{row[place][1] for row in cells} for place in range(len(headings))]
    is_number = ["number" in kind and "text" not in kind for kind in kinds]
    out = console()
    if _fits(out.width, headings, lines, folds=not is_number[-1]):
        out.print(_rich_table(headings, lines, is_number))
    else:
        _print_blocks(headings, lines)


def _fits(width: int, headings: Sequence[str], lines: list[list[str]], *, folds: bool) -> bool:
    *widths, last = (max(map(cell_len, column)) for column in zip(headings, *lines, strict=True))
    left = width - sum(widths) - len(widths) * _GAP
    return left >= (min(last, _FOLDED_MIN) if folds else last)


def _rich_table(headings: Sequence[str], lines: list[list[str]], is_number: list[bool]) -> RichTable:
    table = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for place, heading in enumerate(headings):
        is_last = place == len(headings) - 1
        table.add_column(heading, justify="right" if is_number[place] else "left", no_wrap=not is_last, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _print_blocks(headings: Sequence[str], lines: list[list[str]]) -> None:
    """Print rows as blocks, without empty cells."""
    width = max(map(len, headings))
    for number, line in enumerate(lines):
        if number:
            click.echo()
        for heading, text in zip(headings, line, strict=True):
            if text != _NOTHING:
                click.echo(f"{heading:{width}}  {text}")


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one pair per line. Names of nested mappings are dotted."""
    flat = dict(dotted(facts))
    width = max(map(len, flat), default=0) if sys.stdout.isatty() else 0
    for name, value in flat.items():
        click.echo(f"{name:{width}}  {_cell(value)[0]}" if width else f"{name}\t{_cell(value)[0]}")


def panel(title: str, text: str) -> str:
    """Return text that must not be overlooked, such as a secret that is shown once, in a box as wide as the text."""
    drawn = io.StringIO()
    Console(file=drawn, width=_PANEL_WIDTH).print(Panel.fit(Text(text), title=title, title_align="left", box=SQUARE))
    return drawn.getvalue().rstrip()


def said(text: str) -> None:
    """Print a remark on stderr if it is a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def body_fields(body: bytes, name: str = "body") -> dict[str, str]:
    """Return a body as JSON fields: text, or base64 under another name."""
    text, encoded = text_or_base64(body)
    return {name: text} if text is not None else {f"{name}_base64": encoded or ""}


def message_fields(message: StoredMessage) -> dict[str, Any]:
    """Return a stored message as JSON fields, named as in the HTTP interface."""
    fields = {
        name: getattr(message, name)
        for name in message.__struct_fields__
        if name not in ("body", "hidden", "history", "dead")
    }
    fields["body_hidden"] = message.hidden
    if not message.hidden and message.body_error is None:
        fields |= body_fields(message.body)
    fields["history"] = [msgspec.structs.asdict(entry) for entry in message.history]
    fields["dead"] = msgspec.structs.asdict(message.dead) if message.dead is not None else None
    return fields


def journal_table(rows: Iterable[dict[str, Any]], *columns: str) -> Table:
    """Return some columns of journal rows as a table. An outcome shows its error code, and how many calls a row merges."""
    return Table(columns, [[_journal_cell(row, column) for column in columns] for row in rows], "no rows")


def _journal_cell(row: dict[str, Any], column: str) -> object:
    value = row.get(column)
    if column == "ts" and isinstance(value, int):
        return show_time(value)
    if column == "outcome":
        code, count = row.get("error_code"), row.get("count") or 1
        return f"{value}{f' ({code})' if code else ''}{f' x{count}' if count > 1 else ''}"
    return value


def _cell(value: object) -> tuple[str, Literal["number", "text", "nothing"]]:
    """Return a value as text, and its kind."""
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
