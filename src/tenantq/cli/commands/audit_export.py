"""``tenantq audit export``: the audit trail as a file for other tools."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.progress import BarColumn, TimeElapsedColumn

from tenantq.cli.command_group import Command
from tenantq.cli.commands.audit import conditions, pages
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.output import json_option, print_json
from tenantq.cli.progress import progress_bar
from tenantq.domain.formatting import plural, show_time
from tenantq.errors import Invalid
from tenantq.journal.audit_formats import FORMATS, audit_format


@click.command(cls=Command)
@conditions
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="Output format.")
@click.option("--out", required=True, metavar="FILE", help="Output file, written atomically; - is stdout.")
@json_option
@connected
def export(connection: ServerConnection, *, kind: str, out: str, as_json: bool, **chosen: Any) -> None:
    """Export the audit trail as JSON lines, spreadsheet-safe CSV or Parquet.

    \b
    tenantq audit export --tenant acme --start 30d --format csv --out audit.csv
    """
    writer, rows, incomplete = audit_format(kind), 0, False
    columns = ("{task.completed:>12,.0f} rows", BarColumn(), "{task.fields[at]}", TimeElapsedColumn())
    with _opened(out) as stream, progress_bar(*columns, total=None, at="") as update:
        stream.write(writer.start())
        for page in pages(connection, chosen, None, None):
            stream.write(writer.add(page.rows))
            rows, incomplete = rows + len(page.rows), incomplete or page.incomplete
            update(completed=rows, at=show_time(page.rows[-1]["ts"]) if page.rows else "")
        stream.write(writer.end())
    if incomplete:
        click.echo("older rows are in segments that the server cannot read; they are not in the file", err=True)
    if out != "-":
        if as_json:
            print_json({"file": out, "rows": rows, "format": kind, "incomplete": incomplete})
        else:
            click.echo(f"{plural(rows, 'row')} in {out}")


@contextlib.contextmanager
def _opened(out: str) -> Iterator[BinaryIO]:
    """Open a temporary file, and rename it when it is complete."""
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
