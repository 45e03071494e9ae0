"""The options and the result of a run."""

from pathlib import Path  # msgspec looks at it

import msgspec

from tenantq.pipeline.gold.slo_daily import Objective
from tenantq.pipeline.price_book import DEFAULT, PriceBook


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    now_ms: int
    from_date: str = ""  # first and last day of segments to process; empty: all
    to_date: str = ""
    public_key: Path | None = None  # if given, signatures are checked with it
    prices: PriceBook = DEFAULT
    objective: Objective = Objective()
    keep_versions: int = 1  # version sets whose files are kept, with the newest

    def asks_for(self, date: str) -> bool:
        """Return whether a day, or a month, is between the first and the last day."""
        first, last = self.from_date[: len(date)], self.to_date[: len(date)]
        return (not first or date >= first) and (not last or date <= last)


class RunReport(msgspec.Struct):
    """The result of a run."""

    segments: int = 0  # verified
    accepted: int = 0
    rows: int = 0  # new in bronze
    quarantined: dict[str, int] = {}  # reason -> rows or records, over the whole lake
    changed: list[str] = []  # partitions that were written
    stages: dict[str, float] = {}  # seconds; stages may overlap
    repriced: list[str] = []  # months computed again because the price book says something else about them
    restored: list[str] = []  # days that late rows brought back from the archive
    remeasured: bool = False  # slo_daily was computed again because the objective changed
    late: int = 0  # segments that came behind the stream's watermark
    watermark: str = ""  # of the stream
