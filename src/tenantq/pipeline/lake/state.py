"""The state of a lake besides its tables: prices and objective, erased tenants, archived days and closed months.

It is part of each version set, so it changes in the same commit as the tables it is about.
"""

from __future__ import annotations

import msgspec

from tenantq.pipeline.price_book import PriceBook


class Removal(msgspec.Struct, frozen=True):
    """A partition from which a tenant's rows were removed."""

    partition: str
    rows_before: int
    rows_removed: int
    sha256_before: str  # over its files, by name
    sha256_after: str  # empty: nothing was left of it
    archive: str = ""  # its URL, if it is archived


class Erasure(msgspec.Struct, frozen=True):
    """A tombstone: rows of the tenant up to this time stay out, also when the journal is processed again."""

    tenant: str
    until_ms: int
    reason: str
    removals: list[Removal] = []
    months: dict[str, dict[str, str]] = {}  # its usage, without its name: the shares of others in a cost stay as billed
    certificate: str = ""  # its file; empty: the erasure is not finished


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file in cold storage."""

    name: str
    size: int
    sha256: str
    rows: int


class ArchivedDay(msgspec.Struct, frozen=True):
    """A day of a table in cold storage. It has no files once retention has deleted it."""

    table: str
    date: str
    url: str
    files: list[ArchivedFile]
    partitions: int
    deleted: bool = False
    restored: bool = False  # it is in the lake too

    @property
    def is_cold(self) -> bool:
        """Whether the day is only in the archive."""
        return bool(self.files) and not self.restored


class Approval(msgspec.Struct, frozen=True):
    """A correction of an invoice line that somebody approved, as it was then."""

    line: str  # the invoice line
    quantity: str
    amount: str
    by: str
    at_ms: int


class ClosedMonth(msgspec.Struct, frozen=True):
    """A month whose invoice lines no longer change."""

    by: str
    at_ms: int
    book: PriceBook  # what the price book said about the month; corrections are computed with it
    approvals: list[Approval] = []
    applied: int = 0  # approvals that the table of corrections has
    number: int = 0  # the version set that it was closed with


class LakeState(msgspec.Struct, frozen=True):
    """The whole state."""

    prices: dict[str, str] = {}  # period -> digest of what the price book says about it
    objective: str = ""  # digest of the service level objective
    erased: list[Erasure] = []
    archived: list[ArchivedDay] = []
    closed: dict[str, ClosedMonth] = {}  # by month

    @property
    def approvals(self) -> dict[str, Approval]:
        """The approved corrections, by their line. The table of corrections says so only after the next run."""
        return {
            f"{line}/{number}": one
            for month in self.closed.values()
            for line in {one.line for one in month.approvals}
            for number, one in enumerate((one for one in month.approvals if one.line == line), 1)
        }

    def with_closed(self, period: str, month: ClosedMonth) -> LakeState:
        """Return the state with a closed month, which replaces what was recorded about it."""
        return msgspec.structs.replace(self, closed={**self.closed, period: month})

    def with_archived(self, *days: ArchivedDay) -> LakeState:
        """Return the state with these days, which replace those of the same table and date."""
        merged = {(day.table, day.date): day for day in (*self.archived, *days)}
        return msgspec.structs.replace(self, archived=[merged[place] for place in sorted(merged)])

    def with_erasure(self, erasure: Erasure) -> LakeState:
        """Return the state with an erasure, which replaces an unfinished one of the same tenant and time."""
        others = [one for one in self.erased if (one.tenant, one.until_ms) != (erasure.tenant, erasure.until_ms)]
        return msgspec.structs.replace(self, erased=[*others, erasure])
