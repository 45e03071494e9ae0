"""``tenantq pipeline explain``: from an invoice line back to the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.at_work import spark_at_work

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("line", metavar="INVOICE_LINE")
@options.lake
@click.option("--rows", "every_row", is_flag=True, help="Print every single offset, shard:seq.n, one a line.")
@options.master
@options.as_json
def explain(line: str, lake_path: Path, *, every_row: bool, master: str | None, as_json: bool) -> None:
    """List the journal offsets behind a line, such as 2030-01/acme/Operations."""
    with spark_at_work(master) as work:
        from tenantq.pipeline import explain as explanation  # noqa: PLC0415  # needs Spark
        from tenantq.pipeline.lake import Lake  # noqa: PLC0415

        lake = Lake(lake_path)
        work.progress.begin("reading the lake")
        rows = explanation.offsets(work.spark, lake, line) if every_row else []
        found = explanation.explain(work.spark, lake, line) if not every_row else None
    if found is None:
        for one in rows:
            click.echo(one)
        return
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
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
