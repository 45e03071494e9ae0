"""``tenantq pipeline``: from the journal to usage, invoices, service levels and evidence."""

from __future__ import annotations

import pkgutil
from typing import Final

import click

from tenantq.cli import pipeline as commands
from tenantq.cli.command_group import CommandGroup

_ORDER: Final = ("run", "stream", "reconcile", "explain", "report", "archive", "erase", "simulate", "lineage")
_SUFFIX: Final = "_command"


def _modules() -> dict[str, str]:
    """Return the module of each command: the package's files are the list."""
    names = [
        one.name.removesuffix(_SUFFIX) for one in pkgutil.iter_modules(commands.__path__) if one.name.endswith(_SUFFIX)
    ]
    ordered = sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    return {name.replace("_", "-"): f"{commands.__name__}.{name}{_SUFFIX}" for name in ordered}


@click.group(cls=CommandGroup, modules=_modules())
def pipeline() -> None:
    """Turn the journal's segments into tables, on Spark.

    \b
    Exit codes beside the usual ones:
      1  reconcile: figures differ
      8  run, stream: all good data was processed, and something is in quarantine
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
