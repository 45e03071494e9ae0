"""Lineage: which table is computed from which, by which function, with which columns. Read from the table registry."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from markupsafe import Markup

import tenantq
from tenantq.pipeline.page.renderer import render
from tenantq.pipeline.tables import JOURNAL, TABLES

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
    columns: dict[str, list[str]] = {JOURNAL: [JOURNAL]}
    for node in nodes:
        columns.setdefault(node.layer, []).append(node.name)
    width, height = _COLUMN * (len(columns) - 1) + _BOX[0] + _BEND + 20, _heights(max(map(len, columns.values())))
    places = {
        name: (column * _COLUMN, (height - _heights(len(names))) // 2 + _heights(at) + _GAP * bool(at), layer)
        for column, (layer, names) in enumerate(columns.items())
        for at, name in enumerate(names)
    }
    edges = [_edge(places[source][:2], places[node.name][:2]) for node in nodes for source in node.sources]
    drawn = render("lineage.svg", nodes=nodes, width=width, height=height, edges=edges, places=places, box=_BOX)
    return Markup(drawn.decode())  # noqa: S704  # the template escapes every value


def _heights(count: int) -> int:
    """Return the height of some boxes on top of each other."""
    return max(count * (_BOX[1] + _GAP) - _GAP, 0)


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the path of a curve between two boxes; in one layer it bends to the right."""
    x1, y1, x2, y2 = start[0] + _BOX[0], start[1] + _BOX[1] // 2, end[0], end[1] + _BOX[1] // 2
    if start[0] == end[0]:
        bend = x1 + _BEND + abs(y2 - y1) // 8
        return f"M{x1} {y1}C{bend} {y1} {bend} {y2} {x1} {y2}"
    return f"M{x1} {y1}C{x1 + _BEND} {y1} {x2 - _BEND} {y2} {x2} {y2}"


def _described(function: Callable[..., Any]) -> TableFunction:
    root = Path(tenantq.__file__).parent.parent
    file = Path(inspect.getsourcefile(function) or "").resolve().relative_to(root.resolve())
    says = (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "`")
    return TableFunction(function.__name__, f"src/{file.as_posix()}", says)
