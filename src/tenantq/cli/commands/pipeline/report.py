"""``tenantq pipeline report``: write HTML reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.output import Output, output_command

if TYPE_CHECKING:
    from tenantq.pipeline.report.writer import WrittenReports


@output_command()
@options.on_lake
@options.reports_option
@click.option("--tenant", metavar="NAME", help="Write only this tenant's report.")
@options.day("--from", help="First day.  [default: 29 days before the last]")
@options.day("--to", help="Last day.  [default: the newest in the lake]")
def report(
    lake_path: str, *, out: Path, tenant: str | None, from_date: str, to_date: str,
    master: str | None,
) -> Output:  # fmt: skip
    """Write HTML reports for the platform and each tenant: usage, growth, service level, invoice, anomalies, evidence.

    For auditors, soc2.html and gdpr-art30.html are next to each report.

    Each report is a single file without scripts or network access. The same lake always produces the same bytes.
    """
    options.check_out(out)
    with options.extras():
        from tenantq.pipeline.report.writer import write_reports  # noqa: PLC0415  # needs Spark

    with spark_command(master, meaning="; pages already written are complete") as work:
        work.progress.begin("reading the lake")
        written = write_reports(
            work.spark, options.open_lake(lake_path), out, tenant=tenant, from_date=from_date, to_date=to_date,
            progress=work.progress.begin,
        )  # fmt: skip
    return pages_output(written)


def pages_output(written: WrittenReports) -> Output:
    """Return the output of a report."""
    platform = [f"platform: {written.platform}"] if written.platform else []
    span = f" from {written.first_day} to {written.last_day}" if written.first_day else ""
    return Output(written, *platform, f"tenants: {written.tenants} in {written.directory}{span}")
