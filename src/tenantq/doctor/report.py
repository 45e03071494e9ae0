"""The doctor's report: findings, each with a kind and one sentence, and figures of the store."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from tenantq.runtime.randomness import id_text

FINDINGS_LISTED_MAX: Final = 1_000

FindingKind = Literal[
    "catalog", "counters", "damaged", "expiry", "group", "index", "journal", "keys", "lease", "orphan", "usage"
]  # fmt: skip


class Finding(msgspec.Struct, frozen=True):
    """One inconsistency."""

    kind: FindingKind
    text: str  # one sentence
    tenant: str = ""  # the name, or the id if the name is unknown
    queue: str = ""
    id: str = ""  # of the message
    shard: str = ""  # if there are several


class StoreFigures(msgspec.Struct):
    """Figures of the store, counted from its rows."""

    tenants: int = 0
    queues: int = 0
    messages: int = 0
    ready: int = 0  # visible at the store's last known time
    delayed: int = 0
    blocked: int = 0  # behind an earlier message of their group
    in_flight: int = 0
    bytes: int = 0  # bodies and extras of all messages
    keys: int = 0  # idempotency keys
    results: int = 0
    data_keys: int = 0  # wrapped, of encrypted tenants
    encrypted: int = 0  # messages
    journal_records: int = 0
    journal_bytes: int = 0

    def add(self, other: "StoreFigures") -> None:
        """Add the figures of another store."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class DoctorReport(msgspec.Struct, frozen=True):
    """The result of one check. ``findings`` lists the first FINDINGS_LISTED_MAX of ``findings_total``."""

    findings: list[Finding]
    findings_total: int
    figures: StoreFigures
    unchecked: list[str] = []  # queues, each with the reason

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return self.findings_total == 0


def joined(reports: Mapping[str, DoctorReport], together: "FindingLog") -> DoctorReport:
    """Combine the reports of several shards with what was found by comparing them."""
    log = FindingLog()
    for shard, report in reports.items():
        log.figures.add(report.figures)
        log.total += report.findings_total
        log.unchecked += [f"shard {shard} {one}" for one in report.unchecked]
        log.findings += [msgspec.structs.replace(one, shard=shard) for one in report.findings]
    log.total += together.total
    log.findings += together.findings
    del log.findings[FINDINGS_LISTED_MAX:]
    return log.report()


class FindingLog:
    """Collects findings and figures, and reports progress."""

    def __init__(self, progress: Callable[[str, int], None] | None = None) -> None:
        self.figures = StoreFigures()
        self.findings: list[Finding] = []
        self.unchecked: list[str] = []
        self.tenants: set[str] = set()  # names
        self.parts: set[str] = set()  # names of tenants whose home is another shard
        self.total = 0
        self._progress = progress
        self._rows = 0

    def found(self, kind: FindingKind, text: str, *, tenant: str = "", queue: str = "", id: bytes = b"") -> None:
        self.total += 1
        if len(self.findings) < FINDINGS_LISTED_MAX:
            shown = id_text(id) if len(id) == 16 else id.hex()
            self.findings.append(Finding(kind, text, tenant, queue, shown))

    def progress(self, where: str, rows: int) -> None:
        """Report that ``rows`` more rows were checked."""
        self._rows += rows
        if self._progress is not None:
            self._progress(where, self._rows)

    def report(self) -> DoctorReport:
        return DoctorReport(self.findings, self.total, self.figures, self.unchecked)
