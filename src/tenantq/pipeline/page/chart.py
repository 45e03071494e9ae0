"""Plots as SVG inside a page: days along the bottom, bars and lines above, sharp at any size.

Colours come from the page's style, so that a plot follows light, dark and paper. A plot says in words what it shows,
for those who cannot see it; every bar and point tells its value when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from markupsafe import Markup

from tenantq.pipeline.page import number_format

if TYPE_CHECKING:
    from collections.abc import Callable

_WIDTH: Final = 420
_HEIGHT: Final = 190
_LEFT: Final = 50
_RIGHT: Final = 10
_TOP: Final = 10
_BOTTOM: Final = 22
_TICKS: Final = 4
_LABELS_MAX: Final = 5
_POINTS_MARKED_MAX: Final = 40

Kind = Literal["bar", "line", "area"]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values, one for each place along the bottom; None where there is none."""

    name: str
    values: Sequence[float | None]
    kind: Kind = "line"
    colour: int = 1  # one of the style's six
    dashed: bool = False


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A value that holds all along: a target, a quota, a capacity."""

    name: str
    value: float


def plot(
    title: str,
    places: Sequence[str],
    series: Sequence[Series],
    *,
    unit: Callable[[float], str] = number_format.short,
    levels: Sequence[Level] = (),
    lowest: float = 0.0,
    highest: float | None = None,
    step: Callable[[float], float] = number_format.round_step,
    label: Callable[[str], str] = lambda place: place[5:],
    what: str = "days",
) -> Markup:
    """Return one plot. Bars stand on each other; lines leave a gap where a value is missing.

    ``places`` name what lies along the bottom, ``label`` shortens a name for the axis; ``what`` says what they are.
    The values' axis goes from ``lowest`` to ``highest``, or to the largest value there is, by a round ``step``.
    """
    frame = _Frame(len(places), lowest, _top(series, levels, lowest, highest, step))
    parts = [*_grid(frame, unit), *_bottom(frame, places, label)]
    bars = [one for one in series if one.kind == "bar"]
    parts += _bars(frame, places, bars, unit)
    for one in series:
        if one.kind != "bar":
            parts += _line(frame, places, one, unit)
    parts += [_level(frame, one, unit) for one in levels]
    words = _words(title, places, series, levels, unit, what)
    head = Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(_WIDTH, _HEIGHT, words)
    return head + Markup("").join(parts) + Markup("</svg>") + _legend(series, levels)


class _Frame:
    """From values to places on the plot."""

    def __init__(self, count: int, lowest: float, highest: float) -> None:
        self.count, self.lowest, self.highest = max(count, 1), lowest, highest
        self.step = (_WIDTH - _LEFT - _RIGHT) / self.count

    def x(self, place: float) -> str:
        return _number(_LEFT + self.step * (place + 0.5))

    def y(self, value: float) -> float:
        share = (value - self.lowest) / (self.highest - self.lowest)
        return _HEIGHT - _BOTTOM - min(max(share, 0.0), 1.0) * (_HEIGHT - _BOTTOM - _TOP)


def _top(
    series: Sequence[Series],
    levels: Sequence[Level],
    lowest: float,
    highest: float | None,
    step: Callable[[float], float],
) -> float:
    """Return the end of the axis: round, above everything."""
    if highest is not None:
        return highest
    stacked = [sum(column) for column in zip(*[[v or 0.0 for v in one.values] for one in series if one.kind == "bar"], strict=True)]  # fmt: skip
    lines = [value for one in series if one.kind != "bar" for value in one.values if value is not None]
    most = max([*stacked, *lines, *[one.value for one in levels]], default=0.0)
    return lowest + step((most - lowest) / _TICKS) * _TICKS if most > lowest else lowest + _TICKS


def _grid(frame: _Frame, unit: Callable[[float], str]) -> list[Markup]:
    parts = []
    for tick in range(_TICKS + 1):
        value = frame.lowest + (frame.highest - frame.lowest) * tick / _TICKS
        y = _number(frame.y(value))
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, _WIDTH - _RIGHT, y, y)
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="end" dy="3.5">{}</text>').format(
                _LEFT - 6, y, unit(value)
            )
        )
    return parts


def _bottom(frame: _Frame, places: Sequence[str], label: Callable[[str], str]) -> list[Markup]:
    if not places:
        return []
    wanted = min(_LABELS_MAX, len(places))
    shown = sorted({round(at * (len(places) - 1) / max(wanted - 1, 1)) for at in range(wanted)})
    return [
        Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(
            frame.x(at) if 0 < at < len(places) - 1 or len(places) < 4 else _edge(at),
            _HEIGHT - 6,
            "middle" if 0 < at < len(places) - 1 or len(places) < 4 else "start" if at == 0 else "end",
            label(places[at]),
        )
        for at in shown
    ]


def _edge(at: int) -> int:
    return _LEFT if at == 0 else _WIDTH - _RIGHT


def _bars(frame: _Frame, places: Sequence[str], series: Sequence[Series], unit: Callable[[float], str]) -> list[Markup]:
    parts = []
    width = max(frame.step * 0.76, 0.6)
    for at, place in enumerate(places):
        below = frame.lowest
        for one in series:
            value = one.values[at]
            if not value:
                continue
            top, bottom = frame.y(below + value), frame.y(below)
            parts.append(
                Markup('<rect class="c{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
                    one.colour, _number(_LEFT + frame.step * (at + 0.5) - width / 2), _number(top), _number(width),
                    _number(max(bottom - top, 0.5)), f"{place} {one.name}: {unit(value)}",
                )
            )  # fmt: skip
            below += value
    return parts


def _line(frame: _Frame, places: Sequence[str], one: Series, unit: Callable[[float], str]) -> list[Markup]:
    parts = []
    for run in _runs(one.values):
        points = [(frame.x(at), _number(frame.y(value))) for at, value in run]
        path = f"M{points[0][0]} {points[0][1]}" + "".join(f"L{x} {y}" for x, y in points[1:])
        if one.kind == "area":
            ground = _number(frame.y(frame.lowest))
            closed = f"{path}L{points[-1][0]} {ground}L{points[0][0]} {ground}Z"
            parts.append(Markup('<path class="area c{}" d="{}"/>').format(one.colour, closed))
        dashed = " dashed" if one.dashed else ""
        parts.append(Markup('<path class="line s{}{}" d="{}"/>').format(one.colour, dashed, path))
        if not one.dashed and len(places) <= _POINTS_MARKED_MAX:
            parts += [
                Markup('<circle class="c{}" cx="{}" cy="{}" r="2.2"><title>{}</title></circle>').format(
                    one.colour, x, y, f"{places[at]} {one.name}: {unit(value)}"
                )
                for (at, value), (x, y) in zip(run, points, strict=True)
            ]
    return parts


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the stretches without a gap."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def _level(frame: _Frame, one: Level, unit: Callable[[float], str]) -> Markup:
    y = _number(frame.y(one.value))
    return Markup('<line class="level" x1="{}" x2="{}" y1="{}" y2="{}"><title>{}</title></line>').format(
        _LEFT, _WIDTH - _RIGHT, y, y, f"{one.name}: {unit(one.value)}"
    )


def _legend(series: Sequence[Series], levels: Sequence[Level]) -> Markup:
    """Return what each colour means; one series alone is told by the title."""
    if len(series) + len(levels) < 2:
        return Markup("")
    items = [
        Markup('<li><svg class="key" viewBox="0 0 16 10" aria-hidden="true">{}</svg>{}</li>').format(
            Markup('<rect class="c{}" width="16" height="10" rx="2"/>').format(one.colour)
            if one.kind == "bar"
            else Markup('<path class="line s{}{}" d="M0 5H16"/>').format(one.colour, " dashed" if one.dashed else ""),
            one.name,
        )
        for one in series
    ]
    items += [
        Markup(
            '<li><svg class="key" viewBox="0 0 16 10" aria-hidden="true"><path class="level" d="M0 5H16"/></svg>{}</li>'
        ).format(one.name)
        for one in levels
    ]
    return Markup('<ul class="legend">') + Markup("").join(items) + Markup("</ul>")


def _words(
    title: str, places: Sequence[str], series: Sequence[Series], levels: Sequence[Level],
    unit: Callable[[float], str], what: str,
) -> str:  # fmt: skip
    """Say what the plot shows."""
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
    """Return a coordinate; a hundredth of a unit is finer than any eye."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
