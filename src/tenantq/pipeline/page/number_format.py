"""Numbers as people read them. Invoices stay exact; everything else is rounded."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final

_NONE: Final = "–"  # noqa: RUF001  # an en dash
_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNTS: Final = ("", "k", "M", "G", "T", "P", "E")
_METRICS: Final = {
    "gb_hours": "GB-hours", "gb_in": "GB in", "gb_out": "GB out", "messages_in": "messages added",
    "messages_out": "messages delivered",
}  # fmt: skip
_ONE: Final = {
    "GB-hours": "GB-hour", "messages added": "message added", "messages delivered": "message delivered",
    "operations": "operation",
}  # fmt: skip
_LENGTHS: Final = ((86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"), (1_000.0, "s"))
_STEPS: Final = (
    (1.0, (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500)),
    (1_000.0, (1, 2, 5, 10, 15, 20, 30)),
    (60_000.0, (1, 2, 5, 10, 15, 20, 30)),
    (3_600_000.0, (1, 2, 3, 6, 12)),
    (86_400_000.0, (1, 2, 5)),
)
"""Steps for an axis of durations, by unit."""


def count(value: float) -> str:
    """Return an integer with separators: 1,234,567."""
    return f"{value:,.0f}"


def brief(value: float) -> str:
    """Return an integer, shortened from a million on."""
    return count(value) if abs(value) < 1_000_000 else short(value)


def short(value: float) -> str:
    """Return a number for an axis: 1.2k, 30M."""
    return _scaled(value, _COUNTS, "")


def size(value: float) -> str:
    """Return bytes in powers of 1,000, as invoices count them: 1.2 GB."""
    return _scaled(value, _SIZES, " ")


def duration(ms: float | None) -> str:
    """Return a duration: 850 ms, 1.5 s, 3 min; a dash for None."""
    if ms is None:
        return _NONE
    for unit_ms, unit in _LENGTHS:
        if ms >= unit_ms:
            return f"{_plain(ms / unit_ms)} {unit}"
    return f"{_plain(ms)} ms"


def duration_step(step: float) -> float:
    """Return the next larger step for an axis of durations, in a usual unit."""
    for unit_ms, rounds in _STEPS:
        for factor in rounds:
            if step <= factor * unit_ms:
                return factor * unit_ms
    return round_step(step / 86_400_000.0) * 86_400_000.0


def round_step(step: float) -> float:
    """Return the next larger round step for an axis."""
    step = max(step, 1e-9)  # smaller than any value
    power = 10.0 ** math.floor(math.log10(step))
    for factor in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0):
        if step <= factor * power * (1 + 1e-9):
            return factor * power
    return 10.0 * power


def percent(share: float | None) -> str:
    """Return a share in percent, never rounded up to 100 or down to 0: 99.95 %, 83.8 %."""
    if share is None:
        return _NONE
    if 0.01 <= share <= 0.99:
        return f"{_plain(share * 100)} %"
    text = f"{share * 100:.3f}"
    if share < 1 and text == "100.000":
        return "> 99.999 %"
    if share > 0 and text == "0.000":
        return "< 0.001 %"
    return f"{text.rstrip('0').rstrip('.')} %"


def exact(text: str) -> str:
    """Return a decimal with separators, without trailing zeros; two decimal places stay."""
    number = Decimal(text)
    kept = 2 if number.as_tuple().exponent == -2 else 0
    whole, _, places = f"{number:,f}".partition(".")
    places = places.rstrip("0").ljust(kept, "0")
    return f"{whole}.{places}" if places else whole


def quantity(text: str, metric: str) -> str:
    """Return the quantity of an invoice line in a unit that people read: 1.2 GB-hours, 12,345."""
    if metric == "gb_hours":
        return byte_hours(Decimal(text) * 10**9)
    return size(float(text) * 1e9) if metric in {"gb_in", "gb_out"} else exact(text)


def byte_hours(value: Decimal | str) -> str:
    """Return byte-hours: 1.2 GB-hours."""
    return f"{size(float(value))}-hours"


def per(unit: str, metric: str) -> str:
    """Return the unit of a price: 1 GB-hour, 1,000 messages added."""
    name = _METRICS.get(metric, metric)
    return f"1 {_ONE.get(name, name)}" if Decimal(unit) == 1 else f"{exact(unit)} {name}"


def trend(value: float, unit: Callable[[float], str]) -> str:
    """Return a change per day with its sign: +1.2 MB."""
    return f"+{unit(value)}" if value >= 0 else f"−{unit(-value)}"  # noqa: RUF001  # a minus sign


def change(before: float, after: float) -> str:
    """Return how a value changed: +20 %, unchanged, new."""
    if before == after:
        return "unchanged"
    return f"{(after - before) / before * 100:+,.0f} %".replace("-", "−") if before else "new"  # noqa: RUF001  # a minus sign


def _scaled(value: float, units: tuple[str, ...], gap: str) -> str:
    place = 0
    while abs(value) >= 999.5 and place < len(units) - 1:
        value /= 1_000
        place += 1
    return f"{_plain(value)}{gap}{units[place]}"


def _plain(value: float) -> str:
    """Return three significant digits without trailing zeros."""
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
