"""The text format of Prometheus, written in slices of the event loop's time."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, Literal

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

from tenantq.engine.work_counters import TIME_BOUNDS_MS
from tenantq.runtime.histogram import BOUNDS, Histogram
from tenantq.runtime.loop_slices import joined, next_slice

MetricKind = Literal["counter", "gauge", "histogram"]

_TIME_BOUNDS: Final = (*(str(bound / 1_000) for bound in TIME_BOUNDS_MS), "+Inf")
_COARSE: Final = (*range(0, len(BOUNDS) - 1, 2), len(BOUNDS) - 1)
"""Every second bin of a histogram and the last one: enough for one of many tenants."""
_SLICE_LINES: Final = 2_048


class _OneFamily:
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class MetricsText:
    """A text of metrics. Labels are given as text, without braces; names of tenants and queues need no escapes.

    Samples of several families can be added in turn: each is kept as a line of its family, and nothing else is kept.
    """

    def __init__(self, shard: str | None = None) -> None:
        """Start a text; with ``shard``, each sample gets a label with it."""
        self._label = f'shard="{shard}"' if shard is not None else ""
        self._families: dict[str, list[str]] = {}  # the lines of each

    def labels(self, **labels: str) -> str:
        """Return labels as text."""
        text = ",".join([f'{name}="{value}"' for name, value in labels.items()])
        return f"{self._label},{text}" if self._label and text else self._label or text

    def start(self, name: str, kind: MetricKind, meaning: str) -> None:
        """Start a family."""
        self._families[name] = [f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"]

    def add(self, name: str, labels: str, value: float) -> None:
        """Add a sample to a family that was started."""
        self._families[name].append(f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n")

    def add_durations(self, name: str, labels: str, times: Histogram, *, coarse: bool = False) -> None:
        """Add the samples of a histogram."""
        found = times.cumulative()
        bins = [found[at] for at in _COARSE] if coarse else found
        self._add_bins(name, labels, bins, times.sum_us / 1_000_000)

    def add_times(self, name: str, labels: str, times: Sequence[int]) -> None:
        """Add the samples of message times: the counts of their bins, followed by their sum in milliseconds."""
        bins = zip(_TIME_BOUNDS, accumulate(times[:-1] or [0] * len(_TIME_BOUNDS)), strict=True)
        self._add_bins(name, labels, list(bins), (times[-1] if times else 0) / 1_000)

    def _add_bins(self, name: str, labels: str, bins: Sequence[tuple[str, float]], total_s: float) -> None:
        start = f"{name}_bucket{{{labels}{',' if labels else ''}le="
        lines = [f'{start}"{bound}"}} {count}\n' for bound, count in bins]
        braced = f"{{{labels}}}" if labels else ""
        lines.append(f"{name}_sum{braced} {total_s}\n{name}_count{braced} {bins[-1][1]}\n")
        self._families[name] += lines

    def add_family(self, family: Metric) -> None:
        """Add a whole family."""
        text = generate_latest(_OneFamily(family)).decode()
        if self._label:
            text = "".join([_labelled(line, self._label) for line in text.splitlines(keepends=True)])
        self._families.setdefault(family.name, []).append(text)  # a gauge and a counter may share it

    async def encoded(self) -> bytes:
        """Return the text, after which it is empty. Other work runs between slices."""
        parts: list[bytes] = []
        for name in list(self._families):
            lines = self._families.pop(name)
            while lines:
                parts.append("".join(lines[:_SLICE_LINES]).encode())
                del lines[:_SLICE_LINES]
                await next_slice()
        return await joined(parts)


def _labelled(line: str, label: str) -> str:
    if line.startswith("#"):
        return line
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"


def merge_texts(texts: Iterable[bytes]) -> bytes:
    """Return several texts as one, with each family once. Its samples must have different labels in each text."""
    families: dict[bytes, list[bytes]] = {}
    for text in texts:
        for family in text.split(b"# HELP ")[1:]:
            name = family[: family.index(b" ")]
            if name in families:
                samples = family.index(b"\n", family.index(b"\n# TYPE ") + 1) + 1
                families[name].append(family[samples:])
            else:
                families[name] = [b"# HELP ", family]
    return b"".join([part for parts in families.values() for part in parts])
