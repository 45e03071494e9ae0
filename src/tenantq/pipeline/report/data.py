"""The data of a report: the rows of each section about one subject, a tenant or the platform."""

from collections import defaultdict
from datetime import date, timedelta
from typing import Any, Final

import msgspec

from tenantq.pipeline.tables import day_of

_DAYS_MIN: Final = 3
ReportRow = dict[str, Any]
"""A row of a section, by the column names of its query."""


class Period(msgspec.Struct, frozen=True):
    """Days, both ends included."""

    first: str
    last: str

    @property
    def days(self) -> list[str]:
        """Every day of the period."""
        start, end = date.fromisoformat(self.first), date.fromisoformat(self.last)
        return [(start + timedelta(days=at)).isoformat() for at in range((end - start).days + 1)]

    @property
    def is_short(self) -> bool:
        """Whether charts show hours, because there are too few days for a curve."""
        return len(self.days) < _DAYS_MIN

    def holds(self, partition: str) -> bool:
        """Return whether a partition, a day or a month, has days in the period."""
        day = day_of(partition)
        return self.first[: len(day)] <= day <= self.last[: len(day)]


class ReportData(msgspec.Struct):
    """The sections of a report. The subject is a tenant's name, or empty for the platform."""

    subject: str
    sections: defaultdict[str, list[ReportRow]] = msgspec.field(default_factory=lambda: defaultdict(list))

    def add(self, section: str, text: str) -> None:
        """Add a row, given as JSON, to a section."""
        row = msgspec.json.decode(text)
        if section.startswith("service"):
            row |= service_level(row)
        self.sections[section].append(row)


def service_level(row: ReportRow) -> ReportRow:
    """Return the share of messages delivered in time and not lost, whether it meets the target, and the budget left.

    A budget below 0 is overspent. It is None if the target leaves none. Without messages, nothing was missed.
    """
    total = row["deliveries"] + row["dead"] + row["expired"]
    kept = 1 - (row["slow"] + row["dead"] + row["expired"]) / total if total else None
    target = row["target"]
    left = 1.0 if kept is None else 1 - (1 - kept) / (1 - target) if target < 1 else None
    return {"kept": kept, "met": kept is None or kept >= target, "budget_left": left}
