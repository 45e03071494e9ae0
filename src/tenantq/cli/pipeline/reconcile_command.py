"""``tenantq pipeline reconcile``: the lake against the queues' own counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tenantq.cli.options import DIRECTORY
from tenantq.cli.output import Output, prints_output
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.spark_runtime import spark_command

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@prints_output
@click.option(
    "--data-dir", "data_dirs", multiple=True, required=True, type=DIRECTORY, metavar="DIR",
    help="A data directory, which no server has open; all its shards are counted. Once per server.",
)  # fmt: skip
@options.on_lake
def reconcile(data_dirs: tuple[Path, ...], lake_path: Path, *, master: str | None) -> Output:
    """Compare totals per tenant and queue, to the last message and byte.

    \b
    Exit codes:
      0  zero drift
      1  the rows that are printed differ
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    with spark_command(master) as work:
        from tenantq.pipeline.lake.lake import Lake  # noqa: PLC0415  # needs Spark
        from tenantq.pipeline.reconciliation import reconcile as compare  # noqa: PLC0415

        work.progress.begin("counting")
        found = compare(work.spark, Lake(lake_path), data_dirs)
    behind = f"the lake ends at record {found.lake_seq}, the store at {found.store_seq}: export and run first"
    return Output(
        found,
        *[
            f"{one.tenant}/{one.queue} {one.figure}: store {one.store}, lake {one.lake}, drift {one.lake - one.store}"
            for one in found.drifts
        ],
        f"{found.queues} queues, {found.figures} figures, drift {len(found.drifts) or 'zero'}",
        notes=[behind] if found.lake_seq < found.store_seq else [],
        code=1 if found.drifts else 0,
    )
