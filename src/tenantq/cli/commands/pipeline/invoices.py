"""``tenantq pipeline invoices``: close months, approve corrections, export lines and usage events."""

from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.commands.pipeline import options
from tenantq.cli.options import FILE
from tenantq.cli.output import Output, Table, output_command
from tenantq.runtime.clock import SystemClock

_HEADINGS: Final = ("line", "quantity", "amount", "currency", "status", "approved_by")
_by = click.option("--by", required=True, metavar="NAME", help="Name of the responsible person, recorded in the lake.")
_period = click.option("--period", required=True, metavar="YYYY-MM", help="Month.")


def _billing() -> ModuleType:
    with options.extras():
        from tenantq.pipeline import billing  # noqa: PLC0415  # --help must not need the libraries
    return billing


@click.group(cls=CommandGroup)
def invoices() -> None:
    """Close months, approve corrections and export invoices. Requires neither Spark nor Java."""


@output_command(invoices)
@options.lake_option
@_period
@click.option("--format", "kind", type=click.Choice(["csv", "openmeter", "lago"]), default="csv", help="CSV of invoice lines, or hourly usage events as JSON lines.")  # fmt: skip
@click.option("--set", "number", type=int, metavar="SET", help="Version set to read.  [default: the newest]")
@click.option("--out", type=FILE, help="Output file.  [default: stdout]")
def export(lake_path: str, period: str, *, kind: Any, number: int | None, out: Path | None) -> Output:
    """Export the invoice lines of a month with approved corrections, or its usage as events for OpenMeter or Lago.

    The same version set always gives the same bytes. Event IDs do not change, so sending an event twice counts once. The
    events of a closed month stay as billed. Each approved correction is a separate event with the time of its approval.
    """
    lines = list(_billing().export(options.open_lake(lake_path), period, kind, number))
    if out is not None:
        out.write_text("".join(lines))
        return Output({"file": str(out), "lines": len(lines)}, f"wrote {len(lines)} lines to {out}")
    return Output({"lines": lines}, *[line.rstrip("\n") for line in lines])


@output_command(invoices)
@options.lake_option
@_period
@click.option("--prices", type=FILE, help="Price book that the lines were computed with.")
@_by
def close(lake_path: str, period: str, *, prices: Path | None, by: str) -> Output:
    """Close a month. Its lines stay as they are, and later data becomes corrections. Pins the version set."""
    with options.extras():
        from tenantq.pipeline.price_book import load_price_book  # noqa: PLC0415  # as above
    lake = options.open_lake(lake_path)
    kept = _billing().close_month(lake, period, load_price_book(prices), by, SystemClock().wall_ms())
    return Output({"period": period, "set": kept.number}, f"closed {period}, kept in version set {kept.number}")


@output_command(invoices)
@options.lake_option
@click.option("--period", default="", metavar="YYYY-MM", help="Month.  [default: all closed months]")  # fmt: skip
def corrections(lake_path: str, period: str) -> Output:
    """List the corrections that late data caused in closed months."""
    found = _billing().corrections(options.open_lake(lake_path), period)
    rows = [{name: str(value) for name, value in row.items()} for row in found]
    return Output(rows, Table(_HEADINGS, [[row[name] for name in _HEADINGS] for row in rows], "no corrections"))


@output_command(invoices)
@click.argument("line", metavar="CORRECTION")
@options.lake_option
@_by
def approve(line: str, lake_path: str, *, by: str) -> Output:
    """Approve a pending correction, such as 2030-01/acme/Operations/1. Exports contain it from now on."""
    found = _billing().approve(options.open_lake(lake_path), line, by, SystemClock().wall_ms())
    return Output(
        {name: str(value) for name, value in found.items()}, f"approved {line}: {found['amount']} {found['currency']}"
    )
