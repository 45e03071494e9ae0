"""``tenantq pipeline reconcile``: the lake against the queues' own counters."""

from __future__ import annotations

from pathlib import Path

import click

from tenantq.cli.output import print_json
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.spark_command import spark_command


@click.command()
@click.option(
    "--data-dir", "data_dirs", multiple=True, required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="A data directory, which no server has open; all its shards are counted. Once per server.",
)  # fmt: skip
@options.on_lake
@click.pass_context
def reconcile(
    context: click.Context, data_dirs: tuple[Path, ...], lake_path: Path, *, master: str | None, as_json: bool
) -> None:
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
    if as_json:
        print_json(found)
    else:
        for one in found.drifts:
            click.echo(
                f"{one.tenant}/{one.queue} {one.figure}: store {one.store}, lake {one.lake}, drift {one.lake - one.store}"
            )
        if found.lake_seq < found.store_seq:
            click.echo(
                f"the lake ends at record {found.lake_seq}, the store at {found.store_seq}: export and run first",
                err=True,
            )
        click.echo(
            f"{found.queues} queues, {found.figures} figures, drift {'zero' if not found.drifts else len(found.drifts)}"
        )
    context.exit(1 if found.drifts else 0)
