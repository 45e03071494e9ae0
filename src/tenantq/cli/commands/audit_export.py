"""``tenantq audit export``: the audit trail as a file for other tools."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tenantq.cli.commands.audit_options import conditions, pages
from tenantq.cli.connection import Connection, connected
from tenantq.cli.output import console, json_option, print_json
from tenantq.domain.formatting import plural, show_time
from tenantq.errors import Invalid
from tenantq.journal.audit_formats import FORMATS, audit_format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


@click.command()
@conditions
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "--out", required=True, metavar="FILE", help="Where to; - is stdout. A file is there wholly or not at all."
)
@json_option
@connected
def export(connection: Connection, *, kind: str, out: str, as_json: bool, **chosen: Any) -> None:
    """Write the audit trail to a file: JSON lines, CSV that is safe in spreadsheets, or Parquet.

    \b
    tenantq audit export --tenant acme --start 30d --format csv --out audit.csv
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    writer, rows, incomplete = audit_format(kind), 0, False
    with _opened(out) as stream, _Bar() as bar:
        stream.write(writer.start())
        for page in pages(connection, chosen, None, None):
            stream.write(writer.add(page.rows))
            rows, incomplete = rows + len(page.rows), incomplete or page.incomplete
            bar.show(rows, page.rows[-1]["ts"] if page.rows else None)
        stream.write(writer.end())
    if incomplete:
        click.echo("older rows are in segments that the server cannot reach: they are not in the file", err=True)
    if out != "-":
        if as_json:
            print_json({"file": out, "rows": rows, "format": kind, "incomplete": incomplete})
        else:
            click.echo(f"{plural(rows, 'row')} in {out}")


@contextlib.contextmanager
def _opened(out: str) -> Iterator[BinaryIO]:
    """Open a file beside, and give it its name when everything is in it."""
    if out == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    file = Path(out)
    fresh = file.with_name(f".{file.name}.new")
    try:
        stream = fresh.open("wb")
    except OSError as error:
        raise Invalid(f"{out}: {error.strerror}") from error
    try:
        with stream:
            yield stream
        fresh.rename(file)
    except OSError as error:
        raise Invalid(f"{out}: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)


class _Bar:
    """How far an export is, on stderr, where that is a terminal: how many rows, and up to which time."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.completed:>12,.0f} rows"),
            BarColumn(),
            TextColumn("{task.fields[at]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty())
        self._task = self._progress.add_task("", total=None, at="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, rows: int, ts: int | None) -> None:
        """Tell how many rows there are so far, and of when the last one is."""
        self._progress.update(self._task, completed=rows, at=show_time(ts) or "")
