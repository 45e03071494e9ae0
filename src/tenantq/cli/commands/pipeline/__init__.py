"""``tenantq pipeline``: from the journal to usage, invoices, service levels and evidence."""

from typing import Final

import click

from tenantq.cli.command_group import CommandGroup

_COMMANDS: Final = (
    "run", "stream", "all", "reconcile", "explain", "report", "invoices", "versions", "archive", "erase", "simulate",
    "lineage", "schedule",
)  # fmt: skip


@click.group(cls=CommandGroup, modules={name: f"tenantq.cli.commands.pipeline.{name}" for name in _COMMANDS})
def pipeline() -> None:
    """Build tables from journal segments with Spark.

    \b
    Additional exit codes:
      1  reconcile: totals differ
      8  run, stream: some data was quarantined; all valid data was processed
    """
