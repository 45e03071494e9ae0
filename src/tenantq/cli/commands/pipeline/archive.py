"""``tenantq pipeline archive``: move old days to cold storage, or restore them."""

from pathlib import Path

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.options import FILE, duration
from tenantq.cli.output import Output, output_command
from tenantq.runtime.clock import SystemClock

_DAY_MS = 86_400_000


@output_command()
@options.on_lake
@click.option("--to", "where", metavar="URL", help="Cold storage: a directory, or an fsspec URL such as s3://.")
@click.option("--older-than", "older_ms", type=duration, help="Archive days older than this, such as 90d.")
@click.option("--rules", type=FILE, help="TOML file with retention rules per table.")
@click.option("--restore", "back", is_flag=True, help="Restore archived days to the lake instead.")
@options.day("--from", help="With --restore: first day.")
@options.day("--until", help="With --restore: last day.")
def archive(
    lake_path: str, *, where: str | None, older_ms: int | None, rules: Path | None, back: bool,
    from_date: str, until_date: str, master: str | None,
) -> Output:  # fmt: skip
    """Move old days of large tables to cold storage, packed into few verified files.

    Later runs restore an archived day automatically if late rows arrive for it. An interrupted archive continues when run
    again.
    """
    if back and (where or older_ms is not None or rules):
        raise click.UsageError("--restore can be combined only with --from and --until.")
    if not back and (not where or (older_ms is None and rules is None)):
        raise click.UsageError("Give --to with --older-than or --rules, or give --restore.")
    if older_ms is not None and older_ms % _DAY_MS:
        raise click.UsageError("--older-than must be whole days, such as 90d.")
    with options.extras():
        from tenantq.pipeline.lake import archive as archives  # noqa: PLC0415  # needs Spark
        from tenantq.pipeline.lake.retention import load_retention  # noqa: PLC0415

    wanted = load_retention(rules, older_ms // _DAY_MS if older_ms is not None else None)
    with spark_command(master, meaning="; archived days stay archived, run it again to continue") as work:
        lake = options.open_lake(lake_path)
        lake.settle()
        if where is None:
            with lake.locked():
                days = archives.restore(work.spark, lake, lambda day: from_date <= day.date <= (until_date or "9999"))
            return Output({"restored": days}, f"restored {len(days)} days of tables")
        url = where if "://" in where else str(Path(where).absolute())
        report = archives.archive(work.spark, lake, url, wanted, SystemClock().wall_ms(), work.progress.begin)
    return Output(
        report,
        f"archived {len(report.archived)} days of tables, {report.rows} rows: {report.files_before} files became "
        f"{report.files_after}, {report.bytes_after} bytes",
        f"deleted {len(report.deleted)}",
        *[f"kept {one}: it has a tenant under legal hold" for one in report.held],
    )
