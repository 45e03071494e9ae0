"""What a run of ``tenantq bench`` tells: figures by case, where they were taken, and how they stand to earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import Invalid
from tenantq.load.tally import Ended

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.load.tally import Tally

FORMAT: Final = 1
_OVERHEAD_BYTES: Final = 200
"""What a message takes on the disk beside its body, about."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures were taken."""

    url: str
    server_version: str | None  # None: it does not say
    durability: str | None  # what a reply promises: "fsync" or "os"
    client_version: str
    python: str
    cores: int  # of the client's machine
    file_system: str | None = None  # of the data directory, with --local


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How much is asked of the server."""

    in_flight: int = 64
    batch: int = 100
    batches_in_flight: int = 4
    size: int = 100  # bytes of a body
    seconds: float = 5.0
    warm_up_ms: int = 1_000
    bytes_max: int = 2 << 30  # a case that only adds ends when it has added so much
    flood_connections: int = 128
    victim_per_second: int = 50

    @property
    def messages_max(self) -> int:
        """How many messages a case adds at most that takes none away."""
        return max(1, self.bytes_max // (self.size + _OVERHEAD_BYTES))


class CaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One case. Times are of whole calls, in milliseconds; None where nothing was measured."""

    case: str
    seconds: float
    calls: int  # that were done
    messages: int
    messages_per_second: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    errors: dict[str, int]  # calls that failed, by code; these and the following with those of the warming up
    refusals: dict[str, int]  # calls that a limit refused, by code
    calls_total: int  # whatever came of them
    messages_total: int
    ended: Ended
    texts: dict[str, str] = {}  # what the first error or refusal of each code said


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """What a flood cost the victim: its times beside the flood over those alone, on this server."""

    p50_ratio: float | None
    p99_ratio: float | None
    max_ratio: float | None
    flood_per_second: float | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One case beside an earlier report's: now over then. Above 1 more messages, or longer times."""

    case: str
    messages_per_second_then: float | None
    messages_per_second_ratio: float | None
    p50_ratio: float | None
    p99_ratio: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run measured."""

    format: int = FORMAT
    measured_at: int  # wall clock, milliseconds
    environment: Environment
    load: Load
    cases: list[CaseFigures]
    neighbour: Neighbour | None = None
    interrupted: bool = False
    left_behind: list[str] = []
    compared: list[Compared] | None = None
    unlike: list[str] | None = None  # what else differs from the earlier report


def case_figures(case: str, tally: Tally) -> CaseFigures:
    """Return the figures of a measurement."""
    rate = tally.per_second
    times = tally.latencies.percentiles(50, 90, 99, 100)
    p50_ms, p90_ms, p99_ms, max_ms = (None if time is None else round(time * 1_000, 3) for time in times)
    return CaseFigures(
        case=case,
        seconds=round(tally.span.seconds, 3),
        calls=tally.calls,
        messages=tally.messages,
        messages_per_second=None if rate is None else round(rate, 1),
        p50_ms=p50_ms,
        p90_ms=p90_ms,
        p99_ms=p99_ms,
        max_ms=max_ms,
        errors=dict(tally.errors),
        refusals=dict(tally.refusals),
        calls_total=tally.begun,
        messages_total=tally.messages_total,
        ended=tally.ended,
        texts=dict(tally.texts),
    )


def ratio(now: float | None, then: float | None) -> float | None:
    """Return now over then, where there are both."""
    return round(now / then, 3) if now is not None and then else None


def load_report(file: Path) -> Report:
    """Return an earlier report, or raise Invalid naming what is wrong with the file."""
    try:
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not what 'tenantq bench --json' prints: {error}") from error
    if report.format != FORMAT:
        raise Invalid(f"{file} has format {report.format}; this version reads {FORMAT}")
    return report


def compare(now: Report, then: Report) -> Report:
    """Return a report with what each case has become, and what else is not as it was."""
    earlier = {figures.case: figures for figures in then.cases}
    compared = []
    for figures in now.cases:
        old = earlier.get(figures.case)
        if old is not None:
            compared.append(
                Compared(
                    case=figures.case,
                    messages_per_second_then=old.messages_per_second,
                    messages_per_second_ratio=ratio(figures.messages_per_second, old.messages_per_second),
                    p50_ratio=ratio(figures.p50_ms, old.p50_ms),
                    p99_ratio=ratio(figures.p99_ms, old.p99_ms),
                )
            )
    unlike = [
        *_unlike(now.load, then.load, ("in_flight", "batch", "batches_in_flight", "size", "flood_connections", "victim_per_second")),
        *_unlike(now.environment, then.environment, ("url", "server_version", "durability", "client_version", "python", "cores", "file_system")),
    ]  # fmt: skip
    return msgspec.structs.replace(now, compared=compared, unlike=unlike)


def _unlike(now: msgspec.Struct, then: msgspec.Struct, fields: tuple[str, ...]) -> list[str]:
    pairs = ((field, getattr(then, field), getattr(now, field)) for field in fields)
    return [f"{field}: {old} then, {new} now" for field, old, new in pairs if old != new]
