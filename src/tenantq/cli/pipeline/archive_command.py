"""``tenantq pipeline archive``: old days to cold storage, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tenantq.cli.options import duration
from tenantq.cli.pipeline import options
from tenantq.cli.pipeline.at_work import spark_at_work
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_DAY_MS = 86_400_000


@click.command()
@options.lake
@click.option(
    "--to", "where", metavar="URL", help="Cold storage: a directory, or a URL that fsspec reaches, such as s3://."
)
@click.option(
    "--older-than", "older_ms", type=duration, metavar="DURATION", help="Days older than this leave, such as 90d."
)
@click.option("--rules", type=options.directory, metavar="FILE", help="Retention rules by table, TOML.")
@click.option("--restore", "back", is_flag=True, help="Bring archived days back into the lake instead.")
@click.option("--from", "from_date", type=click.DateTime(["%Y-%m-%d"]), help="With --restore: from this day on.")
@click.option("--until", "until_date", type=click.DateTime(["%Y-%m-%d"]), help="With --restore: up to this day.")
@options.master
@options.as_json
def archive(
    lake_path: Path, *, where: str | None, older_ms: int | None, rules: Path | None, back: bool,
    from_date: datetime | None, until_date: datetime | None, master: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Move old days of the large tables to cold storage, packed into few files, each verified before it leaves the lake.

    A run that meets late rows of an archived day brings it back by itself. Killed anywhere and run again, it goes on.
    """
    if back and (where or older_ms is not None or rules):
        raise click.UsageError("--restore goes with --from and --until only.")
    if not back and (not where or (older_ms is None and rules is None)):
        raise click.UsageError("give --to, and --older-than or --rules; or --restore.")
    if older_ms is not None and older_ms % _DAY_MS:
        raise click.UsageError("--older-than is in whole days, such as 90d.")
    from tenantq.pipeline.retention import load_retention  # noqa: PLC0415  # needs Spark's schemas

    wanted = load_retention(rules, older_ms // _DAY_MS if older_ms is not None else None)
    with spark_at_work(master, meaning="; days that were moved are moved, run it again to go on") as work:
        from tenantq.pipeline import archive as cold  # noqa: PLC0415  # needs Spark
        from tenantq.pipeline.lake import Lake  # noqa: PLC0415

        lake = Lake(lake_path)
        lake.settle()
        if back:
            first = f"{from_date:%Y-%m-%d}" if from_date else ""
            last = f"{until_date:%Y-%m-%d}" if until_date else "9999"
            with lake.locked():
                days = cold.restore(work.spark, lake, lambda day: first <= day.date <= last)
            report = None
        else:
            assert where is not None
            now_ms = SystemClock().wall_ms()
            report = cold.archive(work.spark, lake, options.storage(where), wanted, now_ms, work.progress.begin)
    if report is None:
        click.echo(
            msgspec.json.encode({"restored": days}).decode() if as_json else f"restored {len(days)} days of tables"
        )
        return
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    click.echo(
        f"archived {len(report.archived)} days of tables, {report.rows} rows: {report.files_before} files became "
        f"{report.files_after}, {report.bytes_after} bytes"
    )
    click.echo(f"deleted {len(report.deleted)}")
    for one in report.held:
        click.echo(f"kept {one}: a tenant in it is under a legal hold")
