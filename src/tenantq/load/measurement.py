"""The outcome of the calls of one measurement: counts, latencies, refusals and errors."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from tenantq.errors import Limited, TenantqError
from tenantq.load.latencies import Latencies

EndReason = Literal["time", "bytes", "interrupted", "failed"]


@dataclass(slots=True)
class MeasuredInterval:
    """The interval in which calls count. It can be cut short."""

    start: float = -math.inf
    end: float = math.inf

    def holds(self, time: float) -> bool:
        """Return whether a time is inside the interval."""
        return self.start <= time < self.end

    def cut(self, now: float) -> None:
        """End the interval now."""
        self.end = min(self.end, now)

    @property
    def seconds(self) -> float:
        """The length; 0 if it was cut before its start."""
        return max(0.0, self.end - self.start)


class Measurement:
    """Counts calls. Outside the interval it counts only refusals, errors and the messages that were sent."""

    def __init__(self) -> None:
        self.interval = MeasuredInterval()
        self.messages = 0  # in the interval
        self.messages_total = 0  # including those outside the interval
        self.begun = 0  # calls with any outcome
        self.refusals: Counter[str] = Counter()  # by code, from limits
        self.errors: Counter[str] = Counter()  # other errors, by code
        self.texts: dict[str, str] = {}  # the first message of each code
        self.latencies = Latencies()
        self.failure: TenantqError | None = None  # the error that ended it
        self.ended: EndReason = "time"

    def done(self, took_s: float, messages: int, *, counts: bool) -> None:
        """Count a call that succeeded."""
        self.messages_total += messages
        if counts:
            self.messages += messages
            self.latencies.record(took_s)

    def failed(self, error: TenantqError) -> None:
        """Count a call that was refused or failed, also during the warm-up, because a refused caller pauses."""
        self.texts.setdefault(error.code, error.message)
        (self.refusals if isinstance(error, Limited) else self.errors)[error.code] += 1

    def stop(self, ended: EndReason, now: float, failure: TenantqError | None = None) -> None:
        """End the measurement early. The first reason is kept."""
        if self.ended == "time" and now < self.interval.end:
            self.ended, self.failure = ended, failure
            self.interval.cut(now)

    def failures(self) -> dict[str, Any]:
        """Return refusals, errors and their texts, as the fields of a report."""
        return {"refusals": dict(self.refusals), "errors": dict(self.errors), "texts": dict(self.texts)}

    @property
    def calls(self) -> int:
        """The number of successful calls in the interval."""
        return self.latencies.count

    @property
    def per_second(self) -> float | None:
        """Messages per second, or None if nothing was measured."""
        seconds = self.interval.seconds
        return self.messages / seconds if self.calls and 0 < seconds < math.inf else None
