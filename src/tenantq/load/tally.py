"""What came of the calls of one measurement: how many, how long they took, what was refused, what failed."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Literal

from tenantq.errors import Limited
from tenantq.load.latencies import Latencies

if TYPE_CHECKING:
    from tenantq.errors import TenantqError

Ended = Literal["time", "bytes", "interrupted", "failed"]


class Span:
    """The part of time that is measured. It may be cut short; calls outside of it are made and do not count."""

    __slots__ = ("end", "start")

    def __init__(self, start: float = -math.inf, end: float = math.inf) -> None:
        self.start = start
        self.end = end

    def holds(self, moment: float) -> bool:
        """Tell whether a moment is inside."""
        return self.start <= moment < self.end

    def cut(self, now: float) -> None:
        """End it now."""
        self.end = min(self.end, now)

    @property
    def seconds(self) -> float:
        """How long it is; none where it was cut before it began."""
        return max(0.0, self.end - self.start)


class Tally:
    """Counts the calls of one measurement. Of those outside its span only the refused and failed count, and messages that were sent."""

    def __init__(self, latencies: Latencies | None = None) -> None:
        """Begin at nothing; the times may go where those of other measurements are."""
        self.span = Span()
        self.messages = 0  # that were done
        self.messages_total = 0  # with those of the warming up and of calls that ended too late
        self.begun = 0  # calls, whatever came of them
        self.refusals: Counter[str] = Counter()  # calls that a limit refused, by code
        self.errors: Counter[str] = Counter()  # calls that failed, by code
        self.texts: dict[str, str] = {}  # what the first one of each code said
        self.latencies = latencies or Latencies()
        self.failure: TenantqError | None = None  # why it could not go on
        self.ended: Ended = "time"

    def done(self, took_s: float, messages: int, *, counts: bool) -> None:
        """Note a call that was done."""
        self.messages_total += messages
        if counts:
            self.messages += messages
            self.latencies.record(took_s)

    def failed(self, error: TenantqError) -> None:
        """Note a call that was refused, or failed, at any time: who is refused while warming up pauses, and may call no more."""
        self.texts.setdefault(error.code, error.message)
        (self.refusals if isinstance(error, Limited) else self.errors)[error.code] += 1

    def stop(self, ended: Ended, now: float, failure: TenantqError | None = None) -> None:
        """End the measurement before its time; the first reason stays."""
        if self.ended == "time" and now < self.span.end:
            self.ended, self.failure = ended, failure
            self.span.cut(now)

    @property
    def calls(self) -> int:
        """How many calls were done."""
        return self.latencies.count

    @property
    def per_second(self) -> float | None:
        """Messages a second; None: nothing was measured."""
        seconds = self.span.seconds
        return self.messages / seconds if self.calls and 0 < seconds < math.inf else None
