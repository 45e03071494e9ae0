"""The page of a simulation: how full shards would be, and what would move."""

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from tenantq.pipeline.page import number_format
from tenantq.pipeline.page.chart import ReferenceLine, Series, draw_chart
from tenantq.pipeline.page.renderer import render
from tenantq.pipeline.simulation.load_forecast import LoadForecast, ShardForecast

_POINTS: Final = 101
_LISTED: Final = 20


def simulation_page(found: LoadForecast) -> bytes:
    """Return the page."""
    plots = [
        _curve("Busiest hour of a shard, operations", found, lambda load: load.busiest_hour),
        _curve("Most stored on a shard", found, lambda load: load.bytes, number_format.size),
        _curve("Tenants on a shard", found, lambda load: load.tenants),
    ]
    if any(load.fullness is not None for load in found.after):
        full = ReferenceLine(name="full", value=1.0)
        plots.insert(
            0, _curve("Fullness of a shard", found, lambda load: load.fullness or 0.0, number_format.percent, [full])
        )
    else:
        plots.append(_curve("Operations of a shard in the period", found, lambda load: load.operations))
    earlier = {load.name: load for load in found.before}
    fullest = sorted(found.after, key=lambda load: (-(load.fullness or 0.0), -load.busiest_hour, load.name))
    return render(
        "simulation.html", found=found, plots=plots, fullest=[(load, earlier.get(load.name)) for load in fullest[:_LISTED]],
        over=sum((load.fullness or 0.0) > 1 for load in found.after),
        worst=_fullest(found.after), worst_before=_fullest(found.before),
        uneven=uneven(found.after), uneven_before=uneven(found.before), listed=_LISTED,
    )  # fmt: skip


def _fullest(loads: Sequence[ShardForecast]) -> float | None:
    return max((load.fullness for load in loads if load.fullness is not None), default=None)


def uneven(loads: Sequence[ShardForecast]) -> float:
    """Return the load of the busiest shard relative to the mean: 1 is even, 2 is twice the mean."""
    total = sum(load.busiest_hour for load in loads)
    return max(load.busiest_hour for load in loads) * len(loads) / total if total else 1.0


def _curve(
    title: str, found: LoadForecast, value: Callable[[ShardForecast], float], unit: Callable[[float], str] = number_format.short,
    levels: Sequence[ReferenceLine] = (),
) -> tuple[str, Markup]:  # fmt: skip
    """Draw any number of shards from the fullest to the emptiest, before and after."""
    shares = [f"{at} %" for at in range(_POINTS)]
    after, before = (_sampled([value(load) for load in loads]) for loads in (found.after, found.before))
    series = [
        Series(name="after", values=after, kind="area", colour=1),
        Series(name="before", values=before, colour=2, dashed=True),
    ]
    return title, draw_chart(
        f"{title}, fullest first", shares, series, unit=unit, levels=levels, label=str, what="points along the shards"
    )


def _sampled(values: Sequence[float]) -> list[float | None]:
    ordered = sorted(values, reverse=True)
    return [float(ordered[round(at * (len(ordered) - 1) / (_POINTS - 1))]) for at in range(_POINTS)]
