"""Rates from successive readings of counters."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from tenantq.console.table import Cell

KEPT: Final = 60
"""Rates to keep: two minutes at the default refresh interval."""

TREND: Final = 8
"""Rates in a cell."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


class RateHistory:
    """The rates of counters between readings."""

    def __init__(self) -> None:
        self._at_ms = 0
        self._totals: dict[str, int] = {}
        self._rates: dict[str, deque[float]] = {}

    def read(self, totals: Mapping[str, int], at_ms: int) -> None:
        """Record totals read at ``at_ms`` of a monotonic clock. A total that decreased was reset and yields no rate."""
        elapsed_s = (at_ms - self._at_ms) / 1_000
        if self._totals and elapsed_s <= 0:
            return
        for name, total in totals.items():
            before = self._totals.get(name)
            if before is not None and total >= before:
                self._rates.setdefault(name, deque(maxlen=KEPT)).append((total - before) / elapsed_s)
        for gone in self._rates.keys() - totals.keys():
            del self._rates[gone]
        self._totals, self._at_ms = dict(totals), at_ms

    def last(self, name: str) -> float | None:
        """Return the latest rate per second, or None before the second reading."""
        rates = self._rates.get(name)
        return rates[-1] if rates else None

    def all(self, name: str) -> Sequence[float]:
        """Return the kept rates, oldest first."""
        return tuple(self._rates.get(name, ()))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values as blocks. The highest value is a full block, zero the lowest."""
    shown = list(values)[-width:]
    top = max(shown, default=0)
    if top <= 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, round(value / top * (len(_BLOCKS) - 1)))] for value in shown)


def show_rate(rate: float | None) -> str:
    """Return a rate in at most six characters, or a dash for None."""
    if rate is None:
        return "-"
    if rate < 9.95:
        return f"{rate:.1f}".removesuffix(".0")
    return f"{rate:.0f}" if rate < 99_999.5 else f"{rate / 1_000:.0f}k"


def trend_cell(rates: Sequence[float]) -> Cell:
    """Return a cell with the latest rates as blocks. It is dim if all of them are zero."""
    return Cell(sparkline(rates, TREND), "good" if any(rates[-TREND:]) else "dim")


def rate_cell(rate: float | None) -> Cell:
    """Return a cell with a rate. Zero is dim, because it is rarely of interest."""
    return Cell(show_rate(rate), "" if rate else "dim")
