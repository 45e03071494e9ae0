"""``tenantq pipeline stream``: process segments in micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.run import MEANING, report_output, run_options, stages_of
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.options import Count, duration
from tenantq.cli.output import json_option, print_output
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from tenantq.pipeline.run_options import RunReport


@click.command(cls=Command)
@json_option
@options.run_settings
@click.option("--every", "every_ms", type=duration, help="Keep running, and check for segments at this interval, such as 10s.  [default: stop when done]")  # fmt: skip
@click.option("--lateness", "lateness_ms", type=duration, default="1h", help="Delay of the watermark behind the newest segment. Later segments are processed and counted as late.")  # fmt: skip
@click.option("--files-per-batch", type=Count(1), default=1_000, help="Maximum segments per micro-batch.")
def stream(
    journal: str, lake_path: str, *, master: str | None, memory: str, every_ms: int | None, lateness_ms: int,
    files_per_batch: int, as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Process segments continuously with Structured Streaming, into the same tables as `run`.

    SIGTERM or Ctrl-C stops cleanly after the current micro-batch. A second signal exits immediately, which is also safe.

    \b
    Exit codes:
      0    done, or stopped cleanly
      2    unknown journal or lake, or an invalid price book or key
      6    Java or PySpark is missing, or Spark failed; the tables are unchanged
      7    another run is changing the lake
      8    some data was quarantined; all valid data was processed
    """
    if every_ms is not None and every_ms < 1_000:
        raise click.UsageError("--every must be at least 1s.")
    wanted = run_options(**given)
    from tenantq.pipeline.stream import stream as start  # noqa: PLC0415  # --help must not need it

    stages = stages_of(journal)
    lake = options.open_lake(lake_path)
    with lake.locked():
        pass  # reports what is wrong with the lake before Spark starts
    code = exit_codes.OK
    with spark_command(master, memory, stages=stages, meaning=MEANING) as work:

        def print_batch(report: RunReport) -> None:
            nonlocal code
            with work.progress.aside():
                code = print_output(report_output(report), as_json=as_json)

        running = start(
            work.spark, journal, lake, wanted, every_s=every_ms / 1_000 if every_ms is not None else None,
            files_per_batch=files_per_batch, lateness_s=lateness_ms // 1_000, now=SystemClock().wall_ms,
            on_batch=print_batch, progress=work.progress.begin,
        )  # fmt: skip
        work.stop = running.stop
        running.wait()
    if running.stopping.is_set():
        click.echo("stopped; the next stream or run continues from here", err=True)
    return code
