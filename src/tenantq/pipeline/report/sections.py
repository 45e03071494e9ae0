"""What a report says: the figures of one subject, a tenant or the platform, each list of bounded length."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import msgspec


class Period(msgspec.Struct, frozen=True):
    """Days, both ends included."""

    first: str
    last: str

    @property
    def days(self) -> list[str]:
        """Every day of it."""
        start, end = date.fromisoformat(self.first), date.fromisoformat(self.last)
        return [(start + timedelta(days=at)).isoformat() for at in range((end - start).days + 1)]

    def holds(self, partition: str) -> bool:
        """Tell whether a partition ``date=…`` lies in it."""
        return self.first <= partition.removeprefix("date=")[:10] <= self.last

    def bills(self, partition: str) -> bool:
        """Tell whether a partition ``period=…``, a month, has days in it."""
        return self.first[:7] <= partition.removeprefix("period=")[:7] <= self.last[:7]


class UsageDay(msgspec.Struct, frozen=True):
    """A day of usage_hourly."""

    date: str
    operations: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    byte_hours: str
    bytes_stored: int
    peak_backlog: int
    refused: int
    throttled: int
    denied: int


class Leader(msgspec.Struct, frozen=True):
    """A queue (of a tenant) or a tenant (of the platform) over the whole period; ``others``: so many, put together."""

    name: str
    operations: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    peak_backlog: int
    peak_in_flight: int
    refused: int
    throttled: int
    denied: int
    others: int = 0


class Service(msgspec.Struct, frozen=True):
    """How messages were served: of a day, or of a queue over the period. Times are the worst of what they stand for."""

    date: str
    tenant: str
    queue: str
    deliveries: int
    acked: int
    slow: int
    dead: int
    expired: int
    target: float
    oldest_age_ms: int
    wait_p50_ms: float | None = None
    wait_p95_ms: float | None = None
    wait_p99_ms: float | None = None
    process_p99_ms: float | None = None
    others: int = 0

    @property
    def kept(self) -> float | None:
        """The share that was delivered in time and not lost, by which the target is judged."""
        total = self.deliveries + self.dead + self.expired
        return 1 - (self.slow + self.dead + self.expired) / total if total else None

    @property
    def met(self) -> bool:
        """Whether the target is reached; of nothing, nothing was missed."""
        return self.kept is None or self.kept >= self.target

    @property
    def budget_left(self) -> float | None:
        """What is left of the error budget, 1 for all of it; below 0: overspent. None: there is none to spend."""
        if self.kept is None:
            return 1.0
        return 1 - (1 - self.kept) / (1 - self.target) if self.target < 1 else None


class InvoiceLine(msgspec.Struct, frozen=True):
    """A line of invoice_lines, decimals as text; of the platform: the sum of its tenants' lines."""

    period: str
    item: str
    kind: str
    metric: str
    quantity: str
    unit: str
    amount: str
    currency: str
    details: str


class Anomaly(msgspec.Struct, frozen=True):
    """A row of anomalies."""

    date: str
    kind: str
    severity: str
    tenant: str
    queue: str
    principal: str
    first_at: str
    last_at: str
    observed: float
    expected: float
    details: str
    evidence: list[str]


class Seen(msgspec.Struct, frozen=True):
    """How many anomalies of a severity there are."""

    severity: str
    count: int


class Growth(msgspec.Struct, frozen=True):
    """A day of tenant_growth."""

    date: str
    tenant: str
    metric: str
    last_value: float
    mean: float
    trend_per_day: float
    days: int
    quota: int | None = None
    quota_hit_on: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """Evidence for a control, summed over the period."""

    framework: str
    control: str
    title: str
    evidence: str
    status: str
    count: int
    first: str
    last: str


class Verified(msgspec.Struct, frozen=True):
    """What the verification of the journal said on the last day of the period."""

    evidence: str
    count: int
    status: str
    date: str


class Bill(msgspec.Struct, frozen=True):
    """What a tenant owes for a month; ``others``: so many tenants, put together."""

    period: str
    tenant: str
    amount: str
    currency: str
    others: int = 0


class Facts(msgspec.Struct):
    """Everything a report says of its subject, the tenant's name, or nothing for the platform."""

    subject: str
    usage: list[UsageDay] = []
    leaders: list[Leader] = []
    service_days: list[Service] = []
    service_queues: list[Service] = []
    invoice: list[InvoiceLine] = []
    bills: list[Bill] = []
    anomalies: list[Anomaly] = []
    seen: list[Seen] = []
    growth: list[Growth] = []
    evidence: list[Evidence] = []

    def take(self, section: str, text: str) -> None:
        """Put a row of a section where it belongs."""
        getattr(self, section).append(_DECODERS[section].decode(text))


_ROWS: dict[str, Any] = {
    "usage": UsageDay, "leaders": Leader, "service_days": Service, "service_queues": Service, "invoice": InvoiceLine,
    "bills": Bill, "anomalies": Anomaly, "seen": Seen, "growth": Growth, "evidence": Evidence,
}  # fmt: skip
_DECODERS = {section: msgspec.json.Decoder(kind) for section, kind in _ROWS.items()}
