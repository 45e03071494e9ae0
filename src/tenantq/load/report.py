"""The report of ``tenantq bench``: figures per case, the environment, and a comparison with an earlier report."""

from pathlib import Path
from typing import Final

import msgspec

from tenantq.errors import Invalid
from tenantq.load.measurement import EndReason, Measurement

FORMAT: Final = 1
_OVERHEAD_BYTES: Final = 200
"""Approximate disk space of a message without its body."""


class BenchEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The client and server of the measurement."""

    url: str
    server_version: str | None  # None: it does not say
    durability: str | None  # what a reply promises: "fsync" or "os"
    client_version: str
    python: str
    cores: int  # of the client's machine
    file_system: str | None = None  # of the data directory, with --local


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The load on the server."""

    in_flight: int = 64
    batch: int = 100
    batches_in_flight: int = 4
    size: int = 100  # bytes of a body
    seconds: float = 5.0
    warm_up_ms: int = 1_000
    bytes_max: int = 2 << 30  # limit of a case that only adds
    flood_connections: int = 128
    victim_per_second: int = 50

    @property
    def messages_max(self) -> int:
        """The limit of messages of a case that only adds."""
        return max(1, self.bytes_max // (self.size + _OVERHEAD_BYTES))


class CaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One case. Times are of whole calls, in milliseconds. None means that nothing was measured."""

    case: str
    seconds: float
    calls: int  # that were done
    messages: int
    messages_per_second: float | None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    errors: dict[str, int]  # failed calls by code; this and the following include the warm-up
    refusals: dict[str, int]  # calls that a limit refused, by code
    calls_total: int  # with any outcome
    messages_total: int
    ended: EndReason
    texts: dict[str, str] = {}  # the first message of each code


class NeighbourRatios(msgspec.Struct, frozen=True, kw_only=True):
    """The victim's times during the flood, divided by its times alone."""

    p50_ratio: float | None
    p99_ratio: float | None
    max_ratio: float | None
    flood_per_second: float | None


class CaseComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One case divided by the same case of an earlier report. Above 1 means more messages, or longer times."""

    case: str
    messages_per_second_then: float | None
    messages_per_second_ratio: float | None
    p50_ratio: float | None
    p99_ratio: float | None


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    format: int = FORMAT
    measured_at: int  # wall clock, milliseconds
    environment: BenchEnvironment
    load: LoadSettings
    cases: list[CaseFigures]
    neighbour: NeighbourRatios | None = None
    interrupted: bool = False
    left_behind: list[str] = []
    compared: list[CaseComparison] | None = None
    unlike: list[str] | None = None  # what else differs from the earlier report


def case_figures(case: str, measurement: Measurement) -> CaseFigures:
    """Return the figures of a measurement."""
    rate = measurement.per_second
    times = measurement.latencies.percentiles(50, 90, 99, 100)
    p50_ms, p90_ms, p99_ms, max_ms = (None if time is None else round(time * 1_000, 3) for time in times)
    return CaseFigures(
        case=case,
        seconds=round(measurement.interval.seconds, 3),
        calls=measurement.calls,
        messages=measurement.messages,
        messages_per_second=None if rate is None else round(rate, 1),
        p50_ms=p50_ms,
        p90_ms=p90_ms,
        p99_ms=p99_ms,
        max_ms=max_ms,
        calls_total=measurement.begun,
        messages_total=measurement.messages_total,
        ended=measurement.ended,
        **measurement.failures(),
    )


def ratio(now: float | None, then: float | None) -> float | None:
    """Return now divided by then, or None if one is missing."""
    return round(now / then, 3) if now is not None and then else None


def load_report(file: Path) -> BenchReport:
    """Return an earlier report. Raises Invalid if the file is not one."""
    try:
        report = msgspec.json.decode(file.read_bytes(), type=BenchReport)
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not what 'tenantq bench --json' prints: {error}") from error
    if report.format != FORMAT:
        raise Invalid(f"{file} has format {report.format}; this version reads {FORMAT}")
    return report


def compare(now: BenchReport, then: BenchReport) -> BenchReport:
    """Return a report with a comparison of each case, and the other differences."""
    earlier = {figures.case: figures for figures in then.cases}
    compared = [
        CaseComparison(
            case=figures.case,
            messages_per_second_then=old.messages_per_second,
            messages_per_second_ratio=ratio(figures.messages_per_second, old.messages_per_second),
            p50_ratio=ratio(figures.p50_ms, old.p50_ms),
            p99_ratio=ratio(figures.p99_ms, old.p99_ms),
        )
        for figures in now.cases
        if (old := earlier.get(figures.case)) is not None
    ]
    unlike = [
        *_unlike(now.load, then.load, ("in_flight", "batch", "batches_in_flight", "size", "flood_connections", "victim_per_second")),
        *_unlike(now.environment, then.environment, BenchEnvironment.__struct_fields__),
    ]  # fmt: skip
    return msgspec.structs.replace(now, compared=compared, unlike=unlike)


def _unlike(now: msgspec.Struct, then: msgspec.Struct, fields: tuple[str, ...]) -> list[str]:
    pairs = ((field, getattr(then, field), getattr(now, field)) for field in fields)
    return [f"{field}: {old} then, {new} now" for field, old, new in pairs if old != new]
