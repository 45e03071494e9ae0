"""Archive: old days move from the lake to cold storage, and come back when late rows belong to them.

Each day of a table is one step: it is copied, read back and compared, then removed from the lake in the same commit that
records where it is. An archive run that is killed continues there when it is repeated.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.errors import NotFound
from tenantq.journal.export_target import open_target
from tenantq.pipeline.lake.archive_storage import day_place, fetch, partition_rows, store, sweep, tenants_in
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.retention import Retention
from tenantq.pipeline.lake.state import ArchivedDay, LakeState
from tenantq.pipeline.silver.message_lives import OPEN, life_date, life_events
from tenantq.pipeline.tables import TABLES, day_of

_LIVES: Final = "message_lives"


class ArchiveReport(msgspec.Struct):
    """The days that an archive run moved and deleted."""

    archived: list[str] = []  # table/date
    files_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    rows: int = 0
    deleted: list[str] = []
    held: list[str] = []  # days kept beyond their retention because they have rows of a tenant under a legal hold


def archive(
    spark: SparkSession, lake: Lake, url: str, rules: Retention, now_ms: int, progress: Callable[[str], None] = lambda _: None
) -> ArchiveReport:  # fmt: skip
    """Move days that ``rules`` call old to ``url``, and delete archived days after their retention."""
    report = ArchiveReport(archived=[], deleted=[], held=[])
    target = open_target(url)
    today = datetime.fromtimestamp(now_ms / 1_000, UTC).date()
    with lake.locked():
        newest = max((day_of(one) for one in lake.partitions("bronze")), default="")
        if not newest:
            raise NotFound(f"lake {lake.name}: has no rows yet; run tenantq pipeline run first")
        for table in (one.name for one in TABLES.values() if one.archivable):
            days = rules.of(table).archive_after_days
            if days is None:
                continue
            # The newest day stays, because the next run begins there.
            before = min(newest, f"{today - timedelta(days=days)}")
            for date, names in _days(spark, lake, table, before).items():
                progress(f"{table} {date}")
                there = lake.files(table, names.__contains__)
                files = store(target, day_place(table, date), partition_rows(there))
                day = ArchivedDay(table, date, url, files, len(names))
                report.files_before += sum(map(len, there.values()))
                lake.stage_state(lake.state().with_archived(day))
                lake.stage_removal(table, names)
                lake.commit()
                sweep(target, day)
                report.archived.append(f"{table}/{date}")
                report.files_after += len(files)
                report.bytes_after += sum(file.size for file in files)
                report.rows += sum(file.rows for file in files)
        _delete_old(lake, rules, f"{today}", report)
    return report


def restore(spark: SparkSession, lake: Lake, wanted: Callable[[ArchivedDay], bool]) -> list[str]:
    """Bring verified archived days back and return them. The lake must be locked, and nothing staged."""
    days = [day for day in lake.state().archived if day.is_cold and wanted(day)]
    if not days:
        return []
    for table in sorted({day.table for day in days}):
        mine = [day for day in days if day.table == table]
        copies = lake.scratch(f"restore_{table}")
        for day in mine:
            target = open_target(day.url)
            for number, file in enumerate(day.files):
                (copies / f"{day.date}_{number:05d}.parquet").write_bytes(fetch(target, file))
        rows = spark.read.schema(TABLES[table].columns).parquet(str(copies))
        dates = {day.date for day in mine}
        lake.stage(rows, table, lambda one, dates=dates: day_of(one) in dates)  # type: ignore[misc]  # bound now
    restored = [msgspec.structs.replace(day, restored=True) for day in days]
    lake.stage_state(lake.state().with_archived(*restored))
    lake.commit()
    return [f"{day.table}/{day.date}" for day in days]


def bring_back(spark: SparkSession, lake: Lake, rows: DataFrame) -> list[str]:
    """Restore the days that new rows (bronze) belong to, all later days, and the lives that these rows continue."""
    cold = [day for day in lake.state().archived if day.is_cold]
    first = rows.agg(f.min("date")).collect()[0][0] if cold else None
    if first is None:
        return []
    lives = {row[0] for row in life_events(rows).select(life_date()).distinct().collect()}
    touched = {
        (day.table, day.date) for day in cold if day.date >= first or (day.table == _LIVES and day.date in lives)
    }
    if not touched:
        return []
    return restore(spark, lake, lambda day: day.table == _LIVES or (day.table, day.date) in touched)


def need_warm(lake: Lake, table: str, covers: Callable[[str], bool] = lambda _: True) -> None:
    """Raise NotFound, with the command to run, if days of a table that ``covers`` accepts are only in the archive."""
    days = sorted(day.date for day in lake.state().archived if day.table == table and day.is_cold and covers(day.date))
    if days:
        raise NotFound(
            f"lake {lake.name}: {table} of {days[0]} to {days[-1]} is archived. Restore it with "
            f"tenantq pipeline archive --restore --from {days[0]} --until {days[-1]}"
        )


def deleted_dates(state: LakeState) -> list[str]:
    """Return the days whose journal rows retention has deleted. Late rows of these days are quarantined."""
    return sorted(day.date for day in state.archived if day.table == "bronze" and day.deleted)


def _days(spark: SparkSession, lake: Lake, table: str, before: str) -> dict[str, set[str]]:
    """Return the days of a table that may be archived, with their partitions."""
    found: dict[str, set[str]] = {}
    for name in sorted(lake.partitions(table)):
        date = day_of(name)
        if date < before:
            found.setdefault(date, set()).add(name)
    if table == _LIVES and found:  # only days whose messages all ended long enough ago
        lives = lake.read(spark, _LIVES).where(f.col("date") < before)
        lasting = lives.where(f.col("outcome").isin(*OPEN) | (f.date_format("ended_at", "yyyy-MM-dd") >= before))
        for row in lasting.select("date").distinct().collect():
            found.pop(row[0], None)
    return found


def _delete_old(lake: Lake, rules: Retention, today: str, report: ArchiveReport) -> None:
    """Delete archived days after their retention, unless they have rows of a tenant under a legal hold."""
    held: set[str] | None = None
    for day in lake.state().archived:
        days = rules.of(day.table).delete_after_days
        if (
            days is None
            or not day.is_cold
            or day.date >= f"{datetime.fromisoformat(today).date() - timedelta(days=days)}"
        ):
            continue
        if held is None:
            held = lake.tables.held_tenants()
        target = open_target(day.url)
        if held and held & tenants_in(target, day):
            report.held.append(f"{day.table}/{day.date}")
            continue
        for file in day.files:
            target.delete(file.name)
        lake.stage_state(lake.state().with_archived(msgspec.structs.replace(day, files=[], deleted=True)))
        lake.commit()
        report.deleted.append(f"{day.table}/{day.date}")
