"""Reports, and their comparison with earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Invalid
from tenantq.load.report import BenchEnvironment, BenchReport, CaseFigures, LoadSettings, compare, load_report

if TYPE_CHECKING:
    from pathlib import Path


def _figures(case: str, rate: float | None, p99_ms: float | None) -> CaseFigures:
    return CaseFigures(
        case=case, seconds=1, calls=1, messages=1, messages_per_second=rate, p50_ms=1.0, p90_ms=1.0, p99_ms=p99_ms,
        max_ms=2.0, errors={}, refusals={}, calls_total=1, messages_total=1, ended="time",
    )  # fmt: skip


def _report(*cases: CaseFigures, size: int = 100, durability: str = "fsync") -> BenchReport:
    environment = BenchEnvironment(
        url="http://127.0.0.1:1", server_version="1", durability=durability, client_version="1", python="3", cores=2
    )
    return BenchReport(measured_at=0, environment=environment, load=LoadSettings(size=size), cases=list(cases))


def test_cases_are_compared_by_name() -> None:
    """New over old. Cases missing in one report are left out, and unmeasured values have no ratio."""
    then = _report(_figures("add", 1_000, 4.0), _figures("cycle", None, None), _figures("old", 1, 1))
    now = _report(_figures("new", 1, 1), _figures("add", 1_500, 3.0), _figures("cycle", 500, 3.0))
    compared = compare(now, then).compared
    assert compared is not None
    assert [(one.case, one.messages_per_second_ratio, one.p50_ratio, one.p99_ratio) for one in compared] == [
        ("add", 1.5, 1.0, 0.75),
        ("cycle", None, 1.0, None),
    ]


def test_other_differences_are_named() -> None:
    """A ratio between different setups says little."""
    report = compare(_report(size=10, durability="os"), _report())
    assert report.unlike == ["size: 100 then, 10 now", "durability: fsync then, os now"]
    assert compare(_report(), _report()).unlike == []


def test_a_report_round_trips(tmp_path: Path) -> None:
    """Also one with fields of a later version."""
    report = _report(_figures("add", 1.5, 2.5))
    file = tmp_path / "then.json"
    file.write_bytes(msgspec.json.encode({**msgspec.to_builtins(report), "more": 1}))
    assert load_report(file) == report


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file"),
        (b"\xff", "is not what 'tenantq bench --json' prints"),
        (b"{}", "is not what 'tenantq bench --json' prints"),
        (msgspec.json.encode({**msgspec.to_builtins(_report()), "format": 2}), "has format 2"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused(tmp_path: Path, content: bytes | None, text: str) -> None:
    """The error names the file and the problem."""
    file = tmp_path / "then.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Invalid, match=text) as caught:
        load_report(file)
    assert str(file) in caught.value.message
