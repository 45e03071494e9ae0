"""``tenantq pipeline stream``: the same tables, by micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tenantq.cli import exit_codes
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.run_command import print_report, run_options

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.pipeline.run import RunReport


@click.command()
@options.journal
@options.lake
@options.prices
@options.public_key
@options.target
@options.wait
@options.master
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Go on, looking so often. Default: end when nothing is new.",
)
@options.as_json
@click.pass_context
def stream(
    context: click.Context, /, journal: str, lake_path: Path, *, master: str | None, every_s: float | None, as_json: bool, **given: Any
) -> None:  # fmt: skip
    """Process segments as they come, with Structured Streaming; the tables are those of ``run``."""
    wanted = run_options(from_date=None, to_date=None, **given)
    spark = options.session(master)
    from tenantq.pipeline.lake import Lake  # noqa: PLC0415  # needs Spark
    from tenantq.pipeline.stream import stream as start  # noqa: PLC0415

    reports: list[RunReport] = []

    def told(report: RunReport) -> None:
        reports[:] = [report]
        print_report(report, as_json=as_json)

    start(spark, journal, Lake(lake_path), wanted, every_s=every_s, told=told).awaitTermination()
    context.exit(exit_codes.QUARANTINED if reports and reports[-1].quarantined else 0)
