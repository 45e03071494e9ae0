"""``tenantq pipeline explain``: list the journal offsets behind an invoice line."""

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.output import Output, output_command


@output_command()
@click.argument("line", metavar="INVOICE_LINE")
@options.on_lake
@click.option("--rows", "every_row", is_flag=True, help="Print every offset as shard:seq.n, one per line.")
def explain(line: str, lake_path: str, *, every_row: bool, master: str | None) -> Output:
    """List the journal offsets behind an invoice line, such as 2030-01/acme/Operations."""
    with spark_command(master) as work:
        from tenantq.pipeline import explanation  # noqa: PLC0415  # needs Spark

        work.progress.begin("reading the lake")
        lake = options.open_lake(lake_path)
        if every_row:
            rows = explanation.offsets(work.spark, lake, line)
            return Output(rows, *rows)
        found = explanation.explain(work.spark, lake, line)
    charged = found.line
    return Output(
        found,
        f"{line}: {charged['quantity'].normalize():f} {charged['metric']} = {charged['amount']} {charged['currency']}",
        *[
            f"{span['date']} {span['hour']}h {span['queue'] or '-'} {span['shard']}:{span['first_seq']}-{span['last_seq']} "
            f"rows {span['rows']} quantity {span['quantity']}"
            for span in found.spans
        ],
        f"{found.rows} rows, quantity {found.quantity}",
    )
