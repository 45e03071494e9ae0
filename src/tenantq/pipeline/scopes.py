"""Scopes: which partitions of a table a run has to compute again, given what is new in the journal."""

import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec

from tenantq.pipeline.bronze.ingestion import NewSegments
from tenantq.pipeline.bronze.row_summary import reset_of
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.run_options import RunOptions, RunReport
from tenantq.pipeline.silver.queue_resets import ResetIndex
from tenantq.pipeline.silver.removed_leases import removed_leases_in
from tenantq.pipeline.silver.reset_lives import are_changed
from tenantq.pipeline.tables import Scope, day_of

NEEDED: Final = {Scope.SINCE_VERDICT: ("segments", "quarantine", "ops_daily")}
"""Tables that must be staged before partitions are selected, besides the sources of a table."""


class Selection(msgspec.Struct, frozen=True):
    """The partitions that a scope selects, of the table itself and of its selected inputs."""

    covers: Callable[[str], bool]
    first: str = ""  # the first day, if days are selected by their date


class Selector:
    """Selects partitions for one run. ``state`` becomes what the lake must record about prices and objective."""

    def __init__(self, lake: Lake, options: RunOptions, new: NewSegments, state: LakeState, report: RunReport) -> None:
        self._lake, self._options, self._new, self._report = lake, options, new, report
        self.state = state

    def select(self, scope: Scope) -> Selection | None:
        """Return the partitions of a table with this scope; None if it is up to date. Its sources must be staged."""
        found: Selection | None = {
            Scope.SEGMENTS: self._segments,
            Scope.RESETS: self._resets,
            Scope.NEW_HOURS: lambda: _among(set(self._new.summary.hours)),
            Scope.NEW_DAYS: lambda: _among(self._days, day_of),
            Scope.LIFE_DAYS: lambda: _among(self._life_days),
            Scope.LEVEL_HOURS: self._level_hours,
            Scope.SINCE: lambda: _since(self._first),
            Scope.SINCE_OBJECTIVE: self._since_objective,
            Scope.SINCE_VERDICT: lambda: _since(min(filter(None, (self._first, self._first_changed_verdict)), default="")),
            Scope.MONTHS: self._months,
            Scope.CLOSED_MONTHS: self._closed_months,
        }[scope]()  # fmt: skip
        return found

    # ---- what new rows touch ----

    @cached_property
    def _days(self) -> set[str]:
        return {day_of(hour) for hour in self._new.summary.hours}

    @cached_property
    def _first(self) -> str:
        """The first day with new rows; the newest day of earlier runs counts too, because it may have been incomplete."""
        if not self._days:
            return ""
        newest_before = max((day_of(one) for one in self._lake.partitions("bronze", staged=False)), default="")
        return min([*self._days, *([newest_before] if newest_before else [])])

    def _segments(self) -> Selection | None:
        recorded = {row["file"] for row in self._lake.rows("quarantine") if row["reason"] == "missing_manifest"}
        return _whole() if self._new.verdicts or recorded != set(self._new.orphans) else None

    def _resets(self) -> Selection | None:
        missing = self._new.summary.rows > 0 and not self._lake.tables.has("queue_resets")
        return _whole() if missing or self._new.summary.first_reset_ms is not None else None

    @cached_property
    def resets(self) -> ResetIndex:
        """All resets of the lake, with the new ones."""
        known = (reset_of(row) for row in self._lake.rows("queue_resets", staged=False))
        return ResetIndex([*known, *self._new.summary.resets])

    @cached_property
    def _life_days(self) -> set[str]:
        names, tenants = set(self._new.summary.lives), {tenant for _, tenant, *_ in self._new.summary.resets}
        for name, files in self._lake.files("message_lives").items() if tenants else ():
            if name not in names and any(are_changed(file, self.resets, tenants) for file in files):
                names.add(name)
        return names

    def _level_hours(self) -> Selection | None:
        if not self._new.summary.rows:
            return None
        hours, there = set(self._new.summary.hours), self._lake.partitions("bronze")
        if self._new.summary.first_reset_ms is not None:
            at = datetime.fromtimestamp(self._new.summary.first_reset_ms / 1_000, UTC)
            first = f"{at:date=%Y-%m-%d/hour=%H}"
            hours |= {one for one in there if one >= first}
        return _among(hours | (self._hours_of_removed_leases() & there))

    def _hours_of_removed_leases(self) -> set[str]:
        """Return the hours of the lake in which removes end other leases than before. Hours outside it are new."""
        known = self._life_days & self._lake.partitions("message_lives", staged=False)
        before, now = (
            removed_leases_in(
                file
                for files in self._lake.files("message_lives", known.__contains__, staged=staged).values()
                for file in files
            )
            for staged in (False, True)
        )
        return {f"{lease[-1]:date=%Y-%m-%d/hour=%H}" for lease in before ^ now}

    # ---- what else changed ----

    def _since_objective(self) -> Selection | None:
        digest = hashlib.sha256(msgspec.json.encode(self._options.objective)).hexdigest()
        self._report.remeasured = self.state.objective not in {"", digest}
        self.state = msgspec.structs.replace(self.state, objective=digest)
        if self._report.remeasured:
            return _since(min((day_of(one) for one in self._lake.partitions("bronze")), default=""))
        return _since(self._first)

    @cached_property
    def _first_changed_verdict(self) -> str:
        """The first day of the lake whose verification result changed; segments of unknown days count for the newest."""
        days = sorted(day_of(one) for one in self._lake.partitions("ops_daily"))
        changed: set[str] = set()
        for table in ("segments", "quarantine") if days else ():
            before, now = (
                {tuple(sorted(row.items())) for row in self._lake.rows(table, staged=staged)}
                for staged in (False, True)
            )
            files = {str(dict(row)["file"]) for row in before ^ now}
            changed |= {day_of(file) if day_of(file) in days else days[-1] for file in files}
        return min(changed, default="")

    def _months(self) -> Selection | None:
        """Select months that changed, and those about which the price book says something else."""
        book, known = self._options.prices, self.state.prices
        months = {day_of(one)[:7] for one in self._lake.partitions("usage_hourly")} - self.state.closed.keys()
        touched = self._touched(months)
        repriced = {month for month in months if known.get(month, "") != book.digest(month)}
        stale = {month for month in repriced - touched if self._options.asks_for(month)}
        self._report.repriced = sorted(stale | {month for month in repriced & touched if month in known})
        wanted = touched | stale
        prices = {**known, **{month: book.digest(month) for month in wanted}}
        self.state = msgspec.structs.replace(self.state, prices=dict(sorted(prices.items())))
        return _among(wanted, lambda one: day_of(one)[:7])

    def _touched(self, months: Iterable[str]) -> set[str]:
        return {month for month in months if self._first and month >= self._first[:7]}

    def _closed_months(self) -> Selection | None:
        closed = self.state.closed
        fresh = {month for month, one in closed.items() if one.applied != len(one.approvals)}
        for month in fresh:
            applied = msgspec.structs.replace(closed[month], applied=len(closed[month].approvals))
            self.state = self.state.with_closed(month, applied)
        return _among(self._touched(closed) | fresh, lambda one: day_of(one)[:7])


def _whole() -> Selection:
    return Selection(lambda _: True)


def _among(names: set[str], name_of: Callable[[str], str] = lambda one: one) -> Selection | None:
    return Selection(lambda one: name_of(one) in names) if names else None


def _since(first: str) -> Selection | None:
    return Selection(lambda one: day_of(one) >= first, first) if first else None
