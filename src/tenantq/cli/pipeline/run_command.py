"""``tenantq pipeline run``: process what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.output import Output, prints_output
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.spark_runtime import spark_command
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.pipeline.run_options import RunOptions, RunReport

MEANING: Final = "; the tables are as before, or the next run finishes what was being put in place"


@click.command()
@prints_output
@options.run_settings
@options.day("--from", help="Only segments from this day on.")
@options.day("--to", help="Only segments up to this day.")
def run(journal: str, lake_path: Path, *, master: str | None, memory: str, **given: Any) -> Output:
    """Take new segments through all layers; late ones re-open only what they touch.

    Killed anywhere and run again, or run twice, it leaves the same rows. Where the price book or the objective is another than
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
    wanted = run_options(**given)  # reports a wrong price book before Spark starts
    from tenantq.journal.export_target import local_path, open_target  # noqa: PLC0415  # --help must not need these
    from tenantq.pipeline.journal_source import FETCH, journal_path  # noqa: PLC0415
    from tenantq.pipeline.lake.lake import Lake  # noqa: PLC0415
    from tenantq.pipeline.run import STAGES  # noqa: PLC0415
    from tenantq.pipeline.run import run as start  # noqa: PLC0415

    remote = local_path(journal) is None
    (open_target if remote else journal_path)(journal)
    lake = Lake(lake_path)
    with lake.locked():
        pass  # reports a lake that cannot be written, or that another run has locked, before Spark starts
    stages = [stage for stage in STAGES if remote or stage != FETCH]
    with spark_command(master, memory, stages=stages, meaning=MEANING) as work:
        report = start(work.spark, journal, lake, wanted, work.progress.begin)
    return report_output(report)


def run_options(
    *, prices: Path | None, public_key: Path | None, slo_target: float, slo_wait_ms: int, from_date: str = "", to_date: str = ""
) -> RunOptions:  # fmt: skip
    """Return what the flags say; raise Invalid for a bad price book or key, Unavailable if PySpark is missing."""
    with options.extras():
        from tenantq.journal.signing import PublicKey  # noqa: PLC0415  # --help must not need Spark
        from tenantq.pipeline.gold.slo_daily import Objective  # noqa: PLC0415
        from tenantq.pipeline.price_book import load_price_book  # noqa: PLC0415
        from tenantq.pipeline.run_options import RunOptions  # noqa: PLC0415

    if from_date and to_date and from_date > to_date:
        raise click.UsageError(f"--from {from_date} is after --to {to_date}.")
    if public_key is not None:
        PublicKey.load(public_key)
    return RunOptions(
        now_ms=SystemClock().wall_ms(),
        from_date=from_date,
        to_date=to_date,
        public_key=public_key.absolute() if public_key is not None else None,
        prices=load_price_book(prices),
        objective=Objective(target=slo_target, wait_ms=slo_wait_ms),
    )


def report_output(report: RunReport) -> Output:
    """Return what to print about a run."""
    lines = [f"segments {report.segments}, accepted {report.accepted}, new rows {report.rows}"]
    if report.watermark:
        lines.append(f"watermark {report.watermark}, late segments {report.late}")
    lines.append(f"partitions changed {len(report.changed)}")
    if report.restored:
        lines.append(f"late rows re-opened {len(report.restored)} archived days: they are back in the lake")
    if report.repriced:
        lines.append(f"the price book changed: computed anew {', '.join(report.repriced)}")
    if report.remeasured:
        lines.append("the objective changed: slo_daily was computed anew")
    lines += [f"  {stage:<21} {seconds:8.2f} s" for stage, seconds in report.stages.items()]
    lines += [f"quarantined {reason} {count}" for reason, count in report.quarantined.items()]
    return Output(report, *lines, code=exit_codes.QUARANTINED if report.quarantined else exit_codes.OK)
