"""Lineage: which table is computed from which, by which function, with which columns. Read from the table registry."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from markupsafe import Markup

import tenantq
from tenantq.pipeline.page.rendering import render
from tenantq.pipeline.tables import JOURNAL, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BOX: Final = (170, 30)
_GAP: Final = 14
_COLUMN: Final = 265
_BEND: Final = 46


class TableFunction(msgspec.Struct, frozen=True):
    """The function that computes a table, and its file."""

    function: str
    file: str
    says: str  # the first line of its docstring


class LineageNode(msgspec.Struct, frozen=True):
    """A table in the lineage."""

    name: str
    layer: str
    sources: tuple[str, ...]
    feeds: tuple[str, ...]
    partitions: tuple[str, ...]
    order: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # name, type
    makers: tuple[TableFunction, ...]
    scope: str  # which partitions a run computes again


def lineage() -> list[LineageNode]:
    """Return all tables, sources first."""
    return [
        LineageNode(
            name, table.layer, table.sources,
            tuple(other.name for other in TABLES.values() if name in other.sources),
            table.partitions, table.order,
            tuple((column.name, column.dataType.simpleString()) for column in table.columns),
            (_described(table.function),), table.scope.value,
        )
        for name, table in TABLES.items()
    ]  # fmt: skip


def as_markdown(nodes: list[LineageNode]) -> bytes:
    """Return the page for the documentation."""
    return render("lineage.md", nodes=nodes, journal=JOURNAL)


def as_html(nodes: list[LineageNode]) -> bytes:
    """Return the page as one HTML file with a drawing."""
    return render("lineage.html", nodes=nodes, drawing=drawing(nodes), journal=JOURNAL)


def drawing(nodes: list[LineageNode]) -> Markup:
    """Return the tables as boxes, one column per layer, connected with their sources."""
    layers = {JOURNAL: JOURNAL, **{node.name: node.layer for node in nodes}}
    columns: dict[str, list[str]] = {}
    for name, layer in layers.items():
        columns.setdefault(layer, []).append(name)
    tallest = max(len(names) for names in columns.values())
    width, height = _COLUMN * (len(columns) - 1) + _BOX[0] + _BEND + 20, tallest * (_BOX[1] + _GAP) - _GAP
    places = {
        name: (column * _COLUMN, (height - len(names) * (_BOX[1] + _GAP) + _GAP) // 2 + at * (_BOX[1] + _GAP))
        for column, names in enumerate(columns.values())
        for at, name in enumerate(names)
    }
    lines = [_curve(places[source], places[node.name]) for node in nodes for source in node.sources]
    boxes = [
        Markup(
            '<g><rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="5"/>'
            '<text x="{}" y="{}" text-anchor="middle">{}</text></g>'
        ).format(layers[name], x, y, *_BOX, x + _BOX[0] // 2, y + 20, name)
        for name, (x, y) in places.items()
    ]
    said = ". ".join(f"{node.name} from {', '.join(node.sources)}" for node in nodes)
    head = Markup('<svg class="graph" viewBox="-2 -2 {} {}" role="img" aria-label="{}">').format(
        width + 4, height + 4, f"Lineage: {said}."
    )
    return head + Markup("").join([*lines, *boxes]) + Markup("</svg>")


def _curve(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x1, y1, x2, y2 = start[0] + _BOX[0], start[1] + _BOX[1] // 2, end[0], end[1] + _BOX[1] // 2
    if start[0] == end[0]:  # in the same layer: a bend on the right
        x2, away = x1, _BEND + abs(y2 - y1) // 8
        return _edge(x1, y1, x1 + away, x2 + away, x2, y2)
    return _edge(x1, y1, x1 + _BEND, x2 - _BEND, x2, y2)


def _edge(x1: int, y1: int, bend1: int, bend2: int, x2: int, y2: int) -> Markup:
    return Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}"/>').format(x1, y1, bend1, y1, bend2, y2, x2, y2)


def _described(function: Callable[..., Any]) -> TableFunction:
    root = Path(tenantq.__file__).parent.parent
    file = Path(inspect.getsourcefile(function) or "").resolve().relative_to(root.resolve())
    says = (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "`")
    return TableFunction(function.__name__, f"src/{file.as_posix()}", says)
