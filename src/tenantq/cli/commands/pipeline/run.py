"""``tenantq pipeline run``: process new segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.output import Output, output_command
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.pipeline.run_options import RunOptions, RunReport

MEANING: Final = "; the tables are unchanged, or completely changed"


@output_command()
@options.run_settings
@options.day("--from", help="First day of segments to process.")
@options.day("--to", help="Last day of segments to process.")
def run(journal: str, lake_path: str, *, master: str | None, memory: str, **given: Any) -> Output:
    """Process new segments through all layers. Late segments change only the partitions they affect.

    Runs are idempotent, even if killed and run again. If the price book or objective changed, the affected lines and days
    are recomputed.

    \b
    Exit codes:
      0    done
      2    unknown journal or lake, or an invalid price book or key
      6    Java or PySpark is missing, or Spark failed; the tables are unchanged
      7    another run is changing the lake
      8    some data was quarantined; all valid data was processed
      130  stopped by Ctrl-C, 143 by SIGTERM; the tables are unchanged, or completely changed
    """
    wanted = run_options(**given)  # reports a wrong price book before Spark starts
    from tenantq.pipeline.run import run as start  # noqa: PLC0415  # --help must not need it

    stages = stages_of(journal)
    with spark_command(master, memory, stages=stages, meaning=MEANING) as work:
        return report_output(start(work.open, journal, options.open_lake(lake_path), wanted, work.progress.begin))


def stages_of(journal: str) -> list[str]:
    """Return the stages of a run over a journal. Raises Invalid for one that does not exist, before Spark starts."""
    from tenantq.journal.target_url import local_path  # noqa: PLC0415  # as above
    from tenantq.pipeline.journal_source import FETCH, open_journal  # noqa: PLC0415
    from tenantq.pipeline.run import STAGES  # noqa: PLC0415

    open_journal(journal)
    return [stage for stage in STAGES if stage != FETCH or local_path(journal) is None]


def run_options(
    *, prices: Path | None, public_key: Path | None, slo_target: float, slo_wait_ms: int, keep_versions: int, from_date: str = "", to_date: str = ""
) -> RunOptions:  # fmt: skip
    """Return the options of a run. Raises Invalid for a bad price book or key, Unavailable if PySpark is missing."""
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
        keep_versions=keep_versions,
    )


def report_output(report: RunReport) -> Output:
    """Return the output of a run."""
    lines = [f"segments {report.segments}, accepted {report.accepted}, new rows {report.rows}"]
    if report.watermark:
        lines.append(f"watermark {report.watermark}, late segments {report.late}")
    lines.append(f"partitions changed {len(report.changed)}")
    if report.restored:
        lines.append(f"late rows arrived for {len(report.restored)} archived days, which were restored to the lake")
    if report.repriced:
        lines.append(f"the price book changed: recomputed {', '.join(report.repriced)}")
    if report.remeasured:
        lines.append("the objective changed: recomputed slo_daily")
    lines += [f"  {stage:<21} {seconds:8.2f} s" for stage, seconds in report.stages.items()]
    lines += [f"quarantined {reason} {count}" for reason, count in report.quarantined.items()]
    return Output(report, *lines, code=exit_codes.QUARANTINED if report.quarantined else exit_codes.OK)
