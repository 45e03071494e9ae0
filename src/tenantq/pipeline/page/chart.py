"""Charts as inline SVG: days along the bottom, bars and lines above.

Colours come from the page's style sheet, so a chart follows light, dark and print. Its label says in words what it shows, and
every bar and point has its value as a tooltip. The markup is in ``templates/chart.svg``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from markupsafe import Markup

from tenantq.pipeline.page import number_format
from tenantq.pipeline.page.renderer import render

Unit = Callable[[float], str]

_WIDTH: Final = 420
_HEIGHT: Final = 190
_LEFT: Final = 50
_RIGHT: Final = 10
_TOP: Final = 10
_BOTTOM: Final = 22
_TICKS: Final = 4
_LABELS_MAX: Final = 5
_POINTS_MARKED_MAX: Final = 40


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values, one for each place along the bottom; None if there is none."""

    name: str
    values: Sequence[float | None]
    kind: Literal["bar", "line", "area"] = "line"
    colour: int = 1  # one of the six in the style sheet
    dashed: bool = False


class ReferenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A constant value such as a target, a quota or a capacity."""

    name: str
    value: float


def draw_chart(
    title: str,
    places: Sequence[str],
    series: Sequence[Series],
    *,
    unit: Unit = number_format.short,
    levels: Sequence[ReferenceLine] = (),
    lowest: float = 0.0,
    highest: float | None = None,
    step: Callable[[float], float] = number_format.round_step,
    label: Callable[[str], str] = lambda place: place[5:],
    what: str = "days",
) -> Markup:
    """Return a chart. Bars are stacked; lines have a gap where a value is missing.

    ``places`` are the names along the bottom, ``label`` shortens a name for the axis, ``what`` says what they are. The axis
    of values goes from ``lowest`` to ``highest``, or to the largest value, in round steps.
    """
    bars = [one for one in series if one.kind == "bar"]
    axis = _Axes(len(places), lowest, _top(series, levels, lowest, step) if highest is None else highest)
    ticks = [axis.lowest + (axis.highest - axis.lowest) * tick / _TICKS for tick in range(_TICKS + 1)]
    legend = [(_shape(one), one.name) for one in series] + [("level", one.name) for one in levels]
    drawn = render(
        "chart.svg", width=_WIDTH, height=_HEIGHT, left=_LEFT, right=_WIDTH - _RIGHT, legend=legend,
        words=_words(title, places, series, levels, unit, what),
        grid=[(_number(axis.y(value)), unit(value)) for value in ticks],
        labels=_labels(axis, places, label),
        bars=_bars(axis, places, bars, unit),
        lines=[line for one in series if one.kind != "bar" for line in _lines(axis, places, one, unit)],
        levels=[(_number(axis.y(one.value)), f"{one.name}: {unit(one.value)}") for one in levels],
    )  # fmt: skip
    return Markup(drawn.decode())  # noqa: S704  # the template escapes every value


class _Axes:
    """Maps values to coordinates."""

    def __init__(self, count: int, lowest: float, highest: float) -> None:
        self.lowest, self.highest = lowest, highest
        self.step = (_WIDTH - _LEFT - _RIGHT) / max(count, 1)

    def x(self, place: float) -> float:
        return _LEFT + self.step * (place + 0.5)

    def y(self, value: float) -> float:
        share = (value - self.lowest) / (self.highest - self.lowest)
        return _HEIGHT - _BOTTOM - min(max(share, 0.0), 1.0) * (_HEIGHT - _BOTTOM - _TOP)


def _top(
    series: Sequence[Series], levels: Sequence[ReferenceLine], lowest: float, step: Callable[[float], float]
) -> float:
    """Return a round end of the axis that is above everything."""
    bars = [[value or 0.0 for value in one.values] for one in series if one.kind == "bar"]
    stacked = [sum(column) for column in zip(*bars, strict=True)]
    lines = [value for one in series if one.kind != "bar" for value in one.values if value is not None]
    most = max([*stacked, *lines, *[one.value for one in levels]], default=0.0)
    return lowest + step((most - lowest) / _TICKS) * _TICKS if most > lowest else lowest + _TICKS


def _labels(axis: _Axes, places: Sequence[str], label: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """Return some places along the bottom; the first and the last of many are aligned with the edges."""
    last = len(places) - 1
    wanted = min(_LABELS_MAX, len(places))
    found = []
    for at in sorted({round(at * last / max(wanted - 1, 1)) for at in range(wanted)}):
        x, anchor = _number(axis.x(at)), "middle"
        if len(places) >= 4 and at in {0, last}:
            x, anchor = (str(_LEFT), "start") if at == 0 else (str(_WIDTH - _RIGHT), "end")
        found.append((x, anchor, label(places[at])))
    return found


def _bars(axis: _Axes, places: Sequence[str], series: Sequence[Series], unit: Unit) -> list[tuple[Any, ...]]:
    found = []
    width = max(axis.step * 0.76, 0.6)
    for at, place in enumerate(places):
        below = axis.lowest
        for one in series:
            value = one.values[at]
            if value:
                top, bottom = axis.y(below + value), axis.y(below)
                box = (axis.x(at) - width / 2, top, width, max(bottom - top, 0.5))
                found.append((one.colour, *map(_number, box), f"{place} {one.name}: {unit(value)}"))
                below += value
    return found


def _lines(axis: _Axes, places: Sequence[str], one: Series, unit: Unit) -> list[dict[str, Any]]:
    """Return the stretches of a line or area between missing values."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(one.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    found = []
    for run in filter(None, runs):
        points = [(_number(axis.x(at)), _number(axis.y(value))) for at, value in run]
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        ground = _number(axis.y(axis.lowest))
        area = f"{path}L{points[-1][0]} {ground}L{points[0][0]} {ground}Z" if one.kind == "area" else ""
        marked = not one.dashed and len(places) <= _POINTS_MARKED_MAX
        texts = [f"{places[at]} {one.name}: {unit(value)}" for at, value in run]
        marks = [(*point, text) for point, text in zip(points, texts, strict=True)] if marked else []
        found.append({"path": path, "area": area, "points": marks, "colour": one.colour, "dashed": _dashed(one)})
    return found


def _shape(one: Series) -> str:
    return f"c{one.colour}" if one.kind == "bar" else f"line s{one.colour}{_dashed(one)}"


def _dashed(one: Series) -> str:
    return " dashed" if one.dashed else ""


def _words(
    title: str, places: Sequence[str], series: Sequence[Series], levels: Sequence[ReferenceLine], unit: Unit, what: str
) -> str:
    """Return what the chart shows, in words."""
    if not places:
        return f"{title}: no data"
    said = [f"{title}, {len(places)} {what} from {places[0]} to {places[-1]}"]
    for one in series:
        known = [(value, place) for value, place in zip(one.values, places, strict=True) if value is not None]
        if known:
            low, high = min(known), max(known, key=lambda pair: pair[0])
            said.append(
                f"{one.name}: lowest {unit(low[0])}, highest {unit(high[0])} at {high[1]}, last {unit(known[-1][0])}"
            )
    said += [f"{one.name}: {unit(one.value)}" for one in levels]
    return ". ".join(said) + "."


def _number(value: float) -> str:
    """Return a coordinate, rounded to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
