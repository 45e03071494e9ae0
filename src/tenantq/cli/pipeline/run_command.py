"""``tenantq pipeline run``: process what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.at_work import spark_at_work
from tenantq.errors import Unavailable
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tenantq.pipeline.run import Options, RunReport

MEANING: Final = "; the tables are as before, or the next run finishes what was being put in place"


@click.command()
@options.journal
@options.lake
@options.first_day
@options.last_day
@options.prices
@options.public_key
@options.target
@options.wait
@options.master
@options.memory
@options.as_json
@click.pass_context
def run(
    context: click.Context,
    /,
    journal: str,
    lake_path: Path,
    *,
    master: str | None,
    memory: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Take new segments through all layers; late ones re-open only what they touch.

    Killed anywhere and run again, or run twice, it leaves the same bytes. Where the price book or the objective is another than
    before, the lines and days it touches are computed anew.

    \b
    Exit codes:
      0    done
      2    no such journal or lake, a bad price book or key
      6    Java or PySpark is missing, or Spark failed; the tables are as before
      7    another run is changing the lake
      8    all good data was processed, and something is in quarantine
      130  stopped by Ctrl-C, 143 by SIGTERM; the tables are as before, or the next run finishes them
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    wanted = run_options(**given)  # a wrong price book is told before Spark starts
    from tenantq.journal.export_target import open_target  # noqa: PLC0415
    from tenantq.pipeline.fetched_journal import FETCH, run_from  # noqa: PLC0415  # needs Spark
    from tenantq.pipeline.lake import Lake  # noqa: PLC0415
    from tenantq.pipeline.new_segments import is_remote, journal_path  # noqa: PLC0415
    from tenantq.pipeline.run import STAGES  # noqa: PLC0415

    remote = is_remote(journal)
    (open_target if remote else journal_path)(journal)
    lake = Lake(lake_path)
    with lake.locked():
        pass  # a lake that cannot be written, or that another run has, is told before Spark starts
    stages = (FETCH, *STAGES) if remote else STAGES
    with spark_at_work(master, memory, stages=stages, meaning=MEANING) as work:
        report = run_from(work.spark, journal, lake, wanted, work.progress.begin)
    print_report(report, as_json=as_json)
    context.exit(exit_codes.QUARANTINED if report.quarantined else 0)


def run_options(
    *,
    from_date: datetime | None,
    to_date: datetime | None,
    prices: Path | None,
    public_key: Path | None,
    slo_target: float,
    slo_wait_ms: int,
) -> Options:
    """Return what the flags say; Invalid for a bad price book or key. Unavailable where pyspark is missing."""
    try:
        from tenantq.pipeline.gold.slo_daily import Objective  # noqa: PLC0415  # --help must not need Spark
        from tenantq.pipeline.price_book import load_price_book  # noqa: PLC0415
        from tenantq.pipeline.run import Options  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable("the pipeline needs PySpark: install tenantq[spark]") from error
    from tenantq.journal.signing import PublicKey  # noqa: PLC0415

    if from_date and to_date and from_date > to_date:
        raise click.UsageError(f"--from {from_date:%Y-%m-%d} is after --to {to_date:%Y-%m-%d}.")
    if public_key is not None:
        PublicKey.load(public_key)
    return Options(
        now_ms=SystemClock().wall_ms(),
        from_date=f"{from_date:%Y-%m-%d}" if from_date else "",
        to_date=f"{to_date:%Y-%m-%d}" if to_date else "",
        public_key=public_key.absolute() if public_key is not None else None,
        prices=load_price_book(prices),
        objective=Objective(target=slo_target, wait_ms=slo_wait_ms),
    )


def print_report(report: RunReport, *, as_json: bool) -> None:
    """Print what a run did."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    click.echo(f"segments {report.segments}, accepted {report.accepted}, new rows {report.rows}")
    if report.watermark:
        click.echo(f"watermark {report.watermark}, late segments {report.late}")
    click.echo(f"partitions changed {len(report.changed)}")
    if report.restored:
        click.echo(f"late rows re-opened {len(report.restored)} archived days: they are back in the lake")
    if report.repriced:
        click.echo(f"the price book changed: computed anew {', '.join(report.repriced)}")
    if report.remeasured:
        click.echo("the objective changed: slo_daily was computed anew")
    for stage, seconds in report.stages.items():
        click.echo(f"  {stage:<16} {seconds:8.2f} s")
    for reason, count in report.quarantined.items():
        click.echo(f"quarantined {reason} {count}")
