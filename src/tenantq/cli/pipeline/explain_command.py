"""``tenantq pipeline explain``: from an invoice line back to the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tenantq.cli.output import print_json
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.spark_command import spark_command

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("line", metavar="INVOICE_LINE")
@click.option("--rows", "every_row", is_flag=True, help="Print every single offset, shard:seq.n, one a line.")
@options.on_lake
def explain(line: str, lake_path: Path, *, every_row: bool, master: str | None, as_json: bool) -> None:
    """List the journal offsets behind a line, such as 2030-01/acme/Operations."""
    with spark_command(master) as work:
        from tenantq.pipeline import explanation  # noqa: PLC0415  # needs Spark
        from tenantq.pipeline.lake.lake import Lake  # noqa: PLC0415

        lake = Lake(lake_path)
        work.progress.begin("reading the lake")
        if every_row:
            for one in explanation.offsets(work.spark, lake, line):
                click.echo(one)
            return
        found = explanation.explain(work.spark, lake, line)
    if as_json:
        print_json(found)
        return
    click.echo(
        f"{line}: {found.line['quantity'].normalize():f} {found.line['metric']} = {found.line['amount']} {found.line['currency']}"
    )
    for span in found.spans:
        click.echo(
            f"{span['date']} {span['hour']}h {span['queue'] or '-'} {span['shard']}:{span['first_seq']}-{span['last_seq']} "
            f"rows {span['rows']} quantity {span['quantity']}"
        )
    click.echo(f"{found.rows} rows, quantity {found.quantity}")
