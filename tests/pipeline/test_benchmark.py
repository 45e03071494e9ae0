"""The benchmark of the pipeline shows its targets next to the figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

import bench.pipeline
from bench.pipeline import compare, comparison_table, run
from bench.process_memory import SampledRun
from bench.synthetic_journal import Plan, WrittenJournal
from bench.two_tables import START

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


async def test_a_second_run_with_nothing_new_is_measured_against_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So are runs over the sizes that have one. A tenant with most of the rows has none."""
    written: dict[Path, int] = {}  # rows that a run has not processed, by journal

    def make(directory: Path, plan: Plan) -> WrittenJournal:
        directory.mkdir(parents=True)
        written[directory] = plan.rows
        return WrittenJournal(plan.rows, plan.rows, 1, 5_000_000)

    def process(command: Sequence[str], _: dict[str, str]) -> SampledRun:
        journal = next(one for one in written if str(one) in command)
        rows, written[journal] = written[journal], 0
        report = {"rows": rows, "accepted": int(bool(rows)), "stages": {"bronze": 1.0}, "quarantined": {}}
        return SampledRun(msgspec.json.encode(report).decode(), seconds=12.3 if rows else 4.5, cpu_s=20.0)

    monkeypatch.setattr(bench.pipeline, "make_journal", make)
    monkeypatch.setattr(bench.pipeline, "run_sampled", process)
    monkeypatch.setattr(bench.pipeline, "compare", lambda *_: None)
    await run(tmp_path, quick=True)
    shown = capsys.readouterr().out
    assert re.findall(r" 12\.3 +(\S+) +4\.5 ", shown) == ["20", "40", "-"]
    assert "a run with nothing new: 4.5 s (at most 10, whatever the number of rows)" in shown


def test_the_comparison_with_duckdb_includes_the_start_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target is next to the ratio that includes it. The ratio of the computation alone is shown, too."""
    stages = msgspec.json.encode({START: 3.0, "queue_hours": 20.0, "slo_daily": 6.0}).decode()
    monkeypatch.setattr(bench.pipeline, "run_sampled", lambda *_: SampledRun(stages, seconds=31.0, cpu_s=50.0))
    monkeypatch.setattr(bench.pipeline, "by_duckdb", lambda *_: (10.0, 7, 0))
    table = comparison_table()
    compare(table, tmp_path / "10000000")
    table.show()
    assert re.search(r" 26\.0 +29\.0 +10\.0 +2\.60 +2\.90 +3\.0 +7 +0 ", capsys.readouterr().out)
