"""What stands in a table: cells with a tone, columns with a width, and which columns fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Tone = Literal["", "good", "warning", "critical", "dim"]

PADDING = 2
"""Columns of the terminal between two columns of a table."""


class Cell(NamedTuple):
    """A text and how it is meant; whatever a tone says, the text says it too."""

    text: str
    tone: Tone = ""


class Column(msgspec.Struct, frozen=True):
    """A column: ``width`` is what it needs, ``width_max`` what it may grow to."""

    key: str
    heading: str
    width: int
    rank: int  # the lower, the later it is left out
    width_max: int = 0
    right: bool = False


class Row(NamedTuple):
    """A row of a table; the key is its identity over refreshes."""

    key: str
    cells: dict[str, Cell]


def fitting(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Return the columns that fit into ``width``, in their order, each with its width. The most important one always does."""
    left = width
    chosen: list[Column] = []
    for column in sorted(columns, key=lambda one: one.rank):
        needed = column.width + PADDING
        if chosen and needed > left:
            break
        chosen.append(column)
        left -= needed
    widths: dict[str, int] = {}
    for column in chosen:  # what is left over goes to the most important ones first
        more = max(0, min(left, column.width_max - column.width))
        left -= more
        widths[column.key] = column.width + more
    return [(column, widths[column.key]) for column in columns if column.key in widths]


def short(count: int) -> str:
    """Return a count, of which there are less than a thousand million million, in at most five characters."""
    if count < 10_000:
        return str(count)
    value, units = count / 1_000, "kMGT"
    while value >= 999.5:
        value, units = value / 1_000, units[1:]
    return f"{value:.0f}{units[0]}" if value >= 99.95 else f"{value:.1f}{units[0]}"


def size(count: int) -> str:
    """Return a number of bytes as people read it."""
    if count < 1_024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1_024
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{value / 1_024:.1f} TiB"


def count_cell(count: int, tone: Tone = "") -> Cell:
    """Return a count; none of something is faint, for it is seldom what one looks for."""
    return Cell(short(count), tone if count else "dim")
