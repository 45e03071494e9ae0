"""``tenantq pipeline all``: run, reconcile and report in one Spark session."""

from pathlib import Path
from typing import Any

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.reconcile import data_dir_option, reconciliation_output, remote_shards
from tenantq.cli.commands.pipeline.report import pages_output
from tenantq.cli.commands.pipeline.run import MEANING, report_output, run_options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.offline_store import whole_store_options
from tenantq.cli.output import Output, output_command


@output_command(name="all")
@data_dir_option
@whole_store_options
@options.run_settings
@options.reports_option
def all_(
    data_dirs: tuple[Path, ...], store: str | None, store_name: str, journal: str, lake_path: str,
    *, out: Path, master: str | None, memory: str, **given: Any,
) -> Output:  # fmt: skip
    """Run the pipeline, reconcile it with a stopped server, and write the reports. Spark starts once.

    \b
    Exit codes:
      0  done
      1  the printed totals differ
      8  some data was quarantined; all valid data was processed
    """
    options.check_out(out)
    wanted = run_options(**given)
    from tenantq.pipeline.reconciliation import reconcile  # noqa: PLC0415  # --help must not need Spark
    from tenantq.pipeline.report.writer import write_reports  # noqa: PLC0415
    from tenantq.pipeline.run import run  # noqa: PLC0415

    with spark_command(master, memory, meaning=MEANING) as work:
        lake = options.open_lake(lake_path)
        done = report_output(run(work.open, journal, lake, wanted, work.progress.begin))
        work.progress.begin("reconcile")
        remote = remote_shards(store, store_name, data_dirs)
        compared = reconciliation_output(reconcile(work.spark, lake, data_dirs, remote))
        pages = pages_output(write_reports(work.spark, lake, out, progress=work.progress.begin))
    steps = (done, compared, pages)
    return Output(
        {name: step.json for name, step in zip(("run", "reconcile", "report"), steps, strict=True)},
        *[part for step in steps for part in step.parts],
        notes=[note for step in steps for note in step.notes],
        code=compared.code or done.code,
    )
