"""What a tenant may use, and how its use stands against it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import check_int

QuotaState = Literal["good", "warning", "critical"]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
_COUNT_MAX: Final = 1 << 53  # what JSON carries exactly everywhere


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The most that a tenant may have or do; None: no limit."""

    messages_per_hour: int | None = None  # added in one hour of the clock, UTC
    messages_per_day: int | None = None  # added in one day, UTC
    backlog: int | None = None  # messages stored, in whatever state, in all queues
    stored_bytes: int | None = None  # bodies and attributes of those
    in_flight: int | None = None  # messages leased at one time
    message_bytes: int | None = None  # body and attributes of one message
    queues: int | None = None  # made by callers; dead-letter queues that the system makes are not counted
    consumers_per_queue: int | None = None
    soft_percent: int = 80  # of a quota: from here on its state is "warning"


NO_QUOTAS: Final = Quotas()

_RANGES: Final[dict[str, tuple[int, int]]] = {
    "messages_per_hour": (0, _COUNT_MAX),
    "messages_per_day": (0, _COUNT_MAX),
    "backlog": (0, _COUNT_MAX),
    "stored_bytes": (0, _COUNT_MAX),
    "in_flight": (0, _COUNT_MAX),
    "message_bytes": (1, limits.BODY_BYTES_MAX + limits.ATTRIBUTES_BYTES_MAX),
    "queues": (0, limits.QUEUE_ID_MAX),
    "consumers_per_queue": (1, 1_000_000),
    "soft_percent": (1, 100),
}


def check_quotas(quotas: Quotas) -> Quotas:
    """Return ``quotas`` if each is in its range, else raise Invalid."""
    for field, (low, high) in _RANGES.items():
        value = getattr(quotas, field)
        if value is not None or field == "soft_percent":
            check_int(f"quotas.{field}", value, low, high)
    return quotas


def state_of(used: int, limit: int | None, soft_percent: int) -> QuotaState:
    """Return how ``used`` stands against ``limit``."""
    if limit is None:
        return "good"
    if used >= limit:
        return "critical"
    return "warning" if used * 100 >= limit * soft_percent else "good"
