"""``tenantq doctor``: examine a store while no server runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import SpinnerColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.offline_store import files_to_examine, redis_shards, store_options
from tenantq.cli.options import data_dir as data_dir_option
from tenantq.cli.output import Table, console, json_option, print_json, print_table
from tenantq.cli.progress import BAR, DESCRIPTION, progress_bar
from tenantq.cluster.layout import numbered_dirs
from tenantq.doctor import DoctorReport, Finding, examine, examine_shards, open_embedded
from tenantq.domain.formatting import plural
from tenantq.store.redis.address import parse_address


@click.command(cls=Command)
@data_dir_option
@store_options
@json_option
def doctor(data_dir: Path, *, store: str | None, store_name: str, shard: int | None, as_json: bool) -> int:
    """Check the consistency of a store while no server runs.

    Changes nothing. Checks that each message is in exactly one state, each index row belongs to a message, each counter
    equals a recount, and the journal's hash chain is intact.

    \b
    Exit codes:
      0  consistent
      1  problems found
      2  wrong usage
      6  the store cannot be examined: in use, missing or unreadable
    """
    with files_to_examine():
        if store is not None:
            shards = redis_shards(store, store_name, shard, data_dir)
        else:
            shards = [(str(number), path, open_embedded) for number, path in numbered_dirs(data_dir)]
        if len(shards) > 1:
            report = _examine(lambda progress: examine_shards(shards, progress), quietly=as_json)
        else:
            _, path, open_store = shards[0]
            report = _examine(lambda progress: examine(path, progress, open_store), quietly=as_json)
    where = str(parse_address(store)) if store is not None else str(data_dir)
    if as_json:
        names = ("clean", "findings_total", "findings", "figures")
        print_json({"data_dir": where, **{name: getattr(report, name) for name in names}})
    else:
        _print(report, where)
    return exit_codes.OK if report.clean else exit_codes.ERROR


def _examine(exam: Callable[[Callable[[str, int], None] | None], DoctorReport], *, quietly: bool) -> DoctorReport:
    """Examine with a progress bar, unless ``quietly``."""
    if quietly:
        return exam(None)
    columns = (SpinnerColumn(), BAR, "{task.fields[rows]:,} rows", TimeElapsedColumn(), DESCRIPTION)
    with progress_bar(*columns, total=None, rows=0) as update:
        return exam(lambda where, rows: update(description=where, rows=rows))


def _print(report: DoctorReport, where: str) -> None:
    stdout = console()
    figures = msgspec.structs.asdict(report.figures)
    if stdout.is_terminal:
        _print_tables(stdout, report, figures)
    else:
        for name, figure in figures.items():
            click.echo(f"{name} {figure}")
        for finding in report.findings:
            click.echo(f"finding {finding.kind} {_place(finding)}: {finding.text}")
    hidden = report.findings_total - len(report.findings)
    if hidden:
        click.echo(f"{hidden} more findings not listed")
    verdict = "clean" if report.clean else plural(report.findings_total, "finding")
    stdout.print(
        Text(f"{where}: {verdict}", style="bold green" if report.clean else "bold red"),
        soft_wrap=True,
        highlight=False,
    )


def _print_tables(stdout: Console, report: DoctorReport, figures: dict[str, int]) -> None:
    table = RichTable(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, figure in figures.items():
        table.add_row(name.replace("_", " "), f"{figure:,}")
    stdout.print(table)
    if report.findings:
        rows = [(finding.kind, _place(finding), finding.text) for finding in report.findings]
        print_table(Table(("kind", "where", "finding"), rows, ""))


def _place(finding: Finding) -> str:
    queue = f"{finding.tenant}/{finding.queue}" if finding.queue else finding.tenant
    shard = f"shard {finding.shard}" if finding.shard else ""
    return " ".join(part for part in (shard, queue, finding.id) if part) or "store"
