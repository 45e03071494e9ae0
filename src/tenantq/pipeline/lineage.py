"""Lineage: which table comes from which, by which function, with which columns. Read off the code that makes the tables."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from markupsafe import Markup

import tenantq
from tenantq.pipeline.bronze import bronze, chained, rejected, verified
from tenantq.pipeline.gold.anomalies import anomalies
from tenantq.pipeline.gold.compliance_gdpr_art30 import compliance_gdpr_art30
from tenantq.pipeline.gold.compliance_soc2 import compliance_soc2
from tenantq.pipeline.gold.invoice_lines import invoice_lines
from tenantq.pipeline.gold.slo_daily import slo_daily
from tenantq.pipeline.gold.tenant_growth import tenant_growth
from tenantq.pipeline.gold.usage_hourly import usage_hourly
from tenantq.pipeline.page.template import render
from tenantq.pipeline.silver_daily import ops_daily, places_daily, tenant_changes
from tenantq.pipeline.silver_message_lives import message_lives
from tenantq.pipeline.silver_queue_hours import queue_hours
from tenantq.pipeline.silver_queue_resets import queue_resets
from tenantq.pipeline.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

JOURNAL: Final = "journal"
MAKERS: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    "segments": (verified,), "quarantine": (verified, chained, rejected), "bronze": (bronze,),
    "queue_resets": (queue_resets,), "message_lives": (message_lives,), "queue_hours": (queue_hours,),
    "ops_daily": (ops_daily,), "places_daily": (places_daily,), "tenant_changes": (tenant_changes,),
    "usage_hourly": (usage_hourly,), "slo_daily": (slo_daily,), "invoice_lines": (invoice_lines,),
    "anomalies": (anomalies,), "tenant_growth": (tenant_growth,), "compliance_soc2": (compliance_soc2,),
    "compliance_gdpr_art30": (compliance_gdpr_art30,),
}  # fmt: skip
"""The functions whose rows each table has."""

_BOX: Final = (170, 30)
_GAP: Final = 14
_COLUMN: Final = 265
_BEND: Final = 46


class Maker(msgspec.Struct, frozen=True):
    """A function, and the file it stands in."""

    function: str
    file: str
    says: str  # the first line of its docstring


class Node(msgspec.Struct, frozen=True):
    """A table in the lineage."""

    name: str
    layer: str
    sources: tuple[str, ...]
    feeds: tuple[str, ...]
    partitions: tuple[str, ...]
    order: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # name, type
    makers: tuple[Maker, ...]


def lineage() -> list[Node]:
    """Return all tables, sources before what comes from them."""
    return [
        Node(
            name, table.layer, table.sources,
            tuple(other.name for other in TABLES.values() if name in other.sources),
            table.partitions, table.order,
            tuple((column.name, column.dataType.simpleString()) for column in table.columns),
            tuple(_maker(function) for function in MAKERS[name]),
        )
        for name, table in TABLES.items()
    ]  # fmt: skip


def as_markdown(nodes: list[Node]) -> bytes:
    """Return the page for the documentation."""
    return render("lineage.md", nodes=nodes, journal=JOURNAL)


def as_html(nodes: list[Node]) -> bytes:
    """Return the page as one file, with a drawing."""
    return render("lineage.html", nodes=nodes, drawing=drawing(nodes), journal=JOURNAL)


def drawing(nodes: list[Node]) -> Markup:
    """Return the tables as boxes, a column for each layer, with lines from what they come from."""
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
    if start[0] == end[0]:  # in the same layer: around on the right
        x2, away = x1, _BEND + abs(y2 - y1) // 8
        return _edge(x1, y1, x1 + away, x2 + away, x2, y2)
    return _edge(x1, y1, x1 + _BEND, x2 - _BEND, x2, y2)


def _edge(x1: int, y1: int, bend1: int, bend2: int, x2: int, y2: int) -> Markup:
    return Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}"/>').format(x1, y1, bend1, y1, bend2, y2, x2, y2)


def _maker(function: Callable[..., Any]) -> Maker:
    root = Path(tenantq.__file__).parent.parent
    file = Path(inspect.getsourcefile(function) or "").resolve().relative_to(root.resolve())
    says = (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "`")
    return Maker(function.__name__, f"src/{file.as_posix()}", says)
