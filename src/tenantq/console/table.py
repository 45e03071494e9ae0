"""The content of a table: cells with a tone, columns with a width, and the choice of columns that fit."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from tenantq.domain.formatting import show_time

Tone = Literal["", "good", "warning", "critical", "dim"]

PADDING = 2
"""Columns of the terminal between two columns of a table."""


class Cell(NamedTuple):
    """A text with a tone. The text alone must say what the tone says."""

    text: str
    tone: Tone = ""


class Column(msgspec.Struct, frozen=True):
    """A column that needs ``width`` and grows to at most ``width_max``."""

    key: str
    heading: str
    width: int
    rank: int  # columns with a high rank are left out first
    cell: Callable[..., Cell]  # of what a row is about
    width_max: int = 0
    right: bool = False
    keeps_end: bool = False  # a text that is too long loses its start: IDs of the same time differ only at the end


class Row(NamedTuple):
    """A row of a table. The key identifies it across refreshes."""

    key: str
    cells: dict[str, Cell]


def row_of(columns: Sequence[Column], key: str, *about: object) -> Row:
    """Return a row with a cell for each column."""
    return Row(key, {column.key: column.cell(*about) for column in columns})


def fitting(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Return the columns that fit into ``width``, in order, each with its width. The most important one always fits."""
    left = width
    chosen: list[Column] = []
    for column in sorted(columns, key=lambda one: one.rank):
        needed = column.width + PADDING
        if chosen and needed > left:
            break
        chosen.append(column)
        left -= needed
    widths: dict[str, int] = {}
    for column in chosen:  # the most important ones grow first
        more = max(0, min(left, column.width_max - column.width))
        left -= more
        widths[column.key] = column.width + more
    return [(column, widths[column.key]) for column in columns if column.key in widths]


def shortened(text: str, column: Column, width: int) -> str:
    """Return a text of at most ``width`` characters, with an ellipsis for what is left out."""
    if len(text) <= width:
        return text
    kept = max(0, width - 1)
    return f"…{text[len(text) - kept :]}" if column.keeps_end else f"{text[:kept]}…"


def show_count(count: int) -> str:
    """Return a count below 10^15 in at most five characters."""
    if count < 10_000:
        return str(count)
    value, units = count / 1_000, "kMGT"
    while value >= 999.5:
        value, units = value / 1_000, units[1:]
    return f"{value:.0f}{units[0]}" if value >= 99.95 else f"{value:.1f}{units[0]}"


def text_cell(text: str | None) -> Cell:
    """Return a cell with a text, or a dim dash if there is none."""
    return Cell(text) if text else Cell("-", "dim")


def minute_of(ms: int) -> str:
    """Return a wall-clock time in UTC without seconds."""
    return second_of(ms)[:16]


def second_of(ms: int) -> str:
    """Return a wall-clock time in UTC without milliseconds."""
    return show_time(ms)[:19].replace("T", " ")


def time_column(field: str, heading: str, rank: int) -> Column:
    """Return a column of a field with a time, without year and seconds."""
    return Column(field, f"{heading} (UTC)", 11, rank, lambda one: Cell(minute_of(getattr(one, field))[5:]))


def count_cell(count: int | None, tone: Tone = "", show: Callable[[int], str] = show_count) -> Cell:
    """Return a cell with a count, or a dash if it is unknown. Zero is dim, because it is rarely of interest."""
    return text_cell(None) if count is None else Cell(show(count), tone if count else "dim")
