"""The pipeline: synthetic journals of growing size through all layers, one of them with a giant tenant, compared with DuckDB."""

from __future__ import annotations

import os
import shutil
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from bench.process_memory import SampledRun, run_sampled
from bench.synthetic_journal import Plan, WrittenJournal, make_journal
from bench.table import Table
from bench.two_tables import START, by_duckdb

if TYPE_CHECKING:
    from pathlib import Path

MEMORY: Final = "2g"  # Java's, the default of the command
_SMALL: Final = 10_000
_SIZES: Final = (1_000_000, 10_000_000, 50_000_000)
_SECONDS: Final = {10_000: 20, 1_000_000: 40, 50_000_000: 466}  # at most, through all layers, by rows
_UNCHANGED_S: Final = 10  # at most, with nothing new
_GROWTH: Final = 1.1
_RATIOS: Final = {10_000_000: 3.0, 50_000_000: 2.5}  # maximum of Spark's time, with its start, divided by DuckDB's
_PYTHON_MB: Final = 500 + 1_500 * (os.cpu_count() or 1)  # a driver, and a task per core with the largest parts


class _Report(msgspec.Struct):
    """What the command prints as JSON."""

    rows: int
    accepted: int
    stages: dict[str, float]
    quarantined: dict[str, int]


class _LayersRun(msgspec.Struct):
    """One run through all layers, and another one with nothing new."""

    plan: Plan
    made: WrittenJournal
    made_s: float
    report: _Report
    ran: SampledRun
    again: SampledRun
    written: int
    files: int

    @property
    def us_per_row(self) -> float:
        return self.ran.seconds / self.report.rows * 1e6


async def run(directory: Path, *, quick: bool) -> None:
    """Run all sizes. This needs 15 GB of disk."""
    table = Table(
        "rows", "made in s", "journal MB", "run s", "at most", "nothing new s", "CPU s", "rows/s", "us/row", "Java MB",
        "Python MB", "lake MB", "files",
    )  # fmt: skip
    comparison = comparison_table()
    runs: list[_LayersRun] = []
    small = _through_all_layers(directory / "small", Plan(rows=_SMALL))
    _add(table, f"{small.report.rows:,}", small)
    for size in _SIZES[: 1 if quick else None]:
        place = directory / str(size)
        runs.append(_through_all_layers(place, Plan(rows=size)))
        _add(table, f"{runs[-1].report.rows:,}", runs[-1])
        compare(comparison, place)
        shutil.rmtree(place)
    giant = _through_all_layers(directory / "giant", Plan(rows=_SIZES[0], giant=True))
    _add(table, f"{giant.report.rows:,} (giant)", giant)
    table.show()
    for name, seconds in runs[-1].report.stages.items():
        print(f"  {name:<16} {seconds:8.2f} s")
    unchanged = max(one.again.seconds for one in (small, giant, *runs))
    print(f"a run with nothing new: {unchanged:.1f} s (at most {_UNCHANGED_S}, whatever the number of rows)")
    for less, more in pairwise(runs):
        growth = more.us_per_row / less.us_per_row
        print(
            f"time per row at {more.made.rows:,} compared with {less.made.rows:,} rows: {growth:.2f} (at most {_GROWTH})"
        )
    print(
        f"one tenant with nine of ten rows: {giant.us_per_row / runs[0].us_per_row:.2f} of the time with many tenants"
    )
    most = max(one.ran.python_mb for one in (small, giant, *runs))
    print(f"memory of Python: {most:,.0f} MB (at most {_PYTHON_MB:,}, whatever the number of rows)")
    print("usage_hourly and slo_daily from the same files:")
    comparison.show()


def _through_all_layers(place: Path, plan: Plan) -> _LayersRun:
    started = time.perf_counter()
    made = make_journal(place / "journal", plan)
    spent = time.perf_counter() - started
    command = [
        sys.executable, "-m", "tenantq", "pipeline", "run", "--journal", str(place / "journal"), "--lake", str(place / "lake"),
        "--public-key", str(place / "audit_key.pub"), "--driver-memory", MEMORY, "--json",
    ]  # fmt: skip
    ran = run_sampled(command, {"SPARK_LOCAL_DIRS": str(place / "spark")})
    report = msgspec.json.decode(ran.output, type=_Report)
    if report.quarantined or report.rows != made.rows or report.accepted != made.segments:
        raise SystemExit(f"{made.rows} rows were written, but the run reports {report}")
    again = run_sampled(command, {"SPARK_LOCAL_DIRS": str(place / "spark")})
    unchanged = msgspec.json.decode(again.output, type=_Report)
    if unchanged.rows or unchanged.accepted:
        raise SystemExit(f"nothing is new, but the second run reports {unchanged}")
    sizes = [file.stat().st_size for file in (place / "lake").rglob("*.parquet")]
    layers = _LayersRun(plan, made, spent, report, ran, again, sum(sizes), len(sizes))
    print(
        f"{made.rows:,} rows written in {spent:.0f} s, processed through all layers in {ran.seconds:.1f} s, "
        f"again with nothing new in {again.seconds:.1f} s",
        flush=True,
    )
    return layers


def _add(table: Table, name: str, layers: _LayersRun) -> None:
    most = "-" if layers.plan.giant else _SECONDS.get(layers.plan.rows, "-")
    table.row(
        name, f"{layers.made_s:.0f}", f"{layers.made.bytes / 1e6:,.0f}", f"{layers.ran.seconds:.1f}", most,
        f"{layers.again.seconds:.1f}", f"{layers.ran.cpu_s:.1f}", f"{layers.report.rows / layers.ran.seconds:,.0f}", f"{layers.us_per_row:.1f}", f"{layers.ran.java_mb:,.0f}",
        f"{layers.ran.python_mb:,.0f}", f"{layers.written / 1e6:,.0f}", layers.files,
    )  # fmt: skip


def comparison_table() -> Table:
    """Return an empty table for the comparison with DuckDB."""
    return Table(
        "rows", "Spark s", "with start s", "DuckDB s", "ratio", "with start", "at most", "rows compared", "rows that differ",
        "stages",
    )  # fmt: skip


def compare(comparison: Table, place: Path) -> None:
    """Compute two tables with Spark and with DuckDB, and add a row. ``place`` has the journal, and its name is the number of rows."""
    journal, tables = place / "journal", place / "tables"
    ran = run_sampled([sys.executable, "-m", "bench.two_tables", str(journal), str(tables), MEMORY], {})
    stages = msgspec.json.decode(ran.output.splitlines()[-1], type=dict[str, float])
    total_s = sum(stages.values())
    spark = total_s - stages[START]
    duck, rows, differing = by_duckdb(journal, tables)
    comparison.row(
        place.name, f"{spark:.1f}", f"{total_s:.1f}", f"{duck:.1f}", f"{spark / duck:.2f}", f"{total_s / duck:.2f}",
        _RATIOS.get(int(place.name), "-"), f"{rows:,}", differing,
        ", ".join(f"{name} {seconds}" for name, seconds in stages.items()),
    )  # fmt: skip
