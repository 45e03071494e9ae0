"""Rows of the journal as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.cli.output import print_table
from tenantq.domain.formatting import show_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def print_rows(rows: Iterable[dict[str, Any]], *, columns: Sequence[str]) -> None:
    """Print some columns of rows, oldest first; an outcome that is an error shows its code."""
    print_table(columns, [[_cell(row, column) for column in columns] for row in rows], empty="no rows")


def _cell(row: dict[str, Any], column: str) -> object:
    value = row.get(column)
    if column == "ts" and isinstance(value, int):
        return show_time(value)
    if column == "outcome" and row.get("error_code"):
        return f"{value} ({row['error_code']})"
    return value
