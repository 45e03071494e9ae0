"""What the doctor found: findings, each with a kind and one sentence, and the store in figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tenantq.runtime.randomness import id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FINDINGS_LISTED_MAX: Final = 1_000

Kind = Literal[
    "catalog", "counters", "damaged", "expiry", "group", "index", "journal", "keys", "lease", "orphan", "usage"
]  # fmt: skip


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    kind: Kind
    text: str  # one sentence
    tenant: str = ""  # the name, or the id where no name is known
    queue: str = ""
    id: str = ""  # of the message concerned
    shard: str = ""  # where there are several


class Figures(msgspec.Struct):
    """The store, counted from its rows."""

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


class Report(msgspec.Struct, frozen=True):
    """The outcome of one examination. ``findings`` lists the first FINDINGS_LISTED_MAX of ``findings_total``."""

    findings: list[Finding]
    findings_total: int
    figures: Figures

    @property
    def clean(self) -> bool:
        """Whether everything adds up."""
        return self.findings_total == 0


def joined(reports: Mapping[str, Report], twice: Iterable[str] = ()) -> Report:
    """Return the reports of several shards, by name, as one; ``twice`` are tenants that two of them have."""
    notes = Notes()
    for shard, report in reports.items():
        for name in Figures.__struct_fields__:
            setattr(notes.figures, name, getattr(notes.figures, name) + getattr(report.figures, name))
        notes.total += report.findings_total
        notes.findings += [msgspec.structs.replace(one, shard=shard) for one in report.findings]
    for tenant in twice:
        notes.found("catalog", "Two shards have a tenant of this name; one of them is not served.", tenant=tenant)
    del notes.findings[FINDINGS_LISTED_MAX:]
    return notes.report()


class Notes:
    """Where an examination writes down findings, figures and how far it is."""

    def __init__(self, progress: Callable[[str, int], None] | None = None) -> None:
        self.figures = Figures()
        self.findings: list[Finding] = []
        self.total = 0
        self._progress = progress
        self._rows = 0

    def found(self, kind: Kind, text: str, *, tenant: str = "", queue: str = "", id: bytes = b"") -> None:
        """Write down a finding."""
        self.total += 1
        if len(self.findings) < FINDINGS_LISTED_MAX:
            shown = id_text(id) if len(id) == 16 else id.hex()
            self.findings.append(Finding(kind, text, tenant, queue, shown))

    def passed(self, where: str, rows: int) -> None:
        """Tell that ``rows`` more rows were looked at."""
        self._rows += rows
        if self._progress is not None:
            self._progress(where, self._rows)

    def report(self) -> Report:
        """Return the outcome."""
        return Report(self.findings, self.total, self.figures)
