"""``tenantq pipeline``: from the journal to usage, invoices, service levels and evidence."""

from __future__ import annotations

from typing import Final

import click

from tenantq.cli.command_group import CommandGroup

_COMMANDS: Final = ("run", "stream", "reconcile", "explain", "report", "archive", "erase", "simulate", "lineage")


@click.group(cls=CommandGroup, modules={name: f"tenantq.cli.pipeline.{name}_command" for name in _COMMANDS})
def pipeline() -> None:
    """Turn the journal's segments into tables, on Spark.

    \b
    Exit codes beside the usual ones:
      1  reconcile: figures differ
      8  run, stream: all good data was processed, and something is in quarantine
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
