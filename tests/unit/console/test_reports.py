"""What reports count, and that callers cannot inject content into them."""

from __future__ import annotations

from typing import Any

from tenantq.console.reports import HOUR_MS, HOURS, denied_rows, escaped, markdown_table, usage_hours
from tenantq.console.table import Cell, Column, Row

NOW = 1_700_000_000_000


def _row(op: str, hours_ago: int, **facts: Any) -> dict[str, Any]:
    return {"op": op, "ts": NOW - hours_ago * HOUR_MS, "result": "SUCCESS", "outcome": "ok", **facts}


def test_usage_is_counted_by_hour() -> None:
    """Adds with their bytes, acks, and refused calls by their count. Older and failed calls are not counted."""
    rows = [
        _row("add", 0, bytes=10),
        _row("add", 0, bytes=5),
        _row("ack", 1),
        _row("add", 2, outcome="throttled", result="DENIED", count=7),
        _row("add", 2, outcome="failed", result="ERROR"),
        _row("add", HOURS + 1, bytes=99),
    ]
    hours = usage_hours(rows, NOW)
    assert len(hours) == HOURS
    assert [(one.added, one.bytes, one.acked, one.refused) for one in hours[-3:]] == [
        (0, 0, 0, 7),
        (0, 0, 1, 0),
        (2, 15, 0, 0),
    ]
    assert sum(one.added for one in hours) == 2


def test_denied_calls_are_summed_and_sorted() -> None:
    """By principal, tenant and action; a coalesced row counts for all of its calls."""
    rows: list[dict[str, Any]] = [
        {"principal": "key:a", "tenant": "acme", "op": "add"},
        {"principal": "key:b", "op": "poll", "count": 9},
    ]
    shown = [[cell.text for cell in row.cells.values()] for row in denied_rows([*rows, rows[0]])]
    assert shown == [["key:b", "(platform)", "poll", "9"], ["key:a", "acme", "add", "2"]]


def test_names_chosen_by_callers_are_escaped() -> None:
    """They cannot become Markdown, HTML or another row of the table."""
    text = "a | [b](http://evil.example) <img> `c`\n| d"
    assert escaped(text).replace("\\", "").count("|") == 2
    table = markdown_table("T", [Column("x", "x", 1, 0, Cell)], [Row("", {"x": Cell(text)})])
    assert len(table.splitlines()) == 5
    assert "\\[b\\]" in table
    assert "\\<img\\>" in table
