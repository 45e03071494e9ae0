"""Quotas of a tenant, and the state of its usage against them."""

from typing import Annotated, Final, Literal

import msgspec

from tenantq.domain.limits import ATTRIBUTES_BYTES_MAX, BODY_BYTES_MAX, QUEUE_ID_MAX
from tenantq.domain.validation import about, between

QuotaState = Literal["good", "warning", "critical"]


_QuotaLimit = Annotated[int, between(0, 1 << 53)]  # JSON carries no larger number exactly


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The most that a tenant may have or do. None means no limit."""

    messages_per_hour: Annotated[_QuotaLimit, about("Messages added in one clock hour, UTC.")] | None = None
    messages_per_day: Annotated[_QuotaLimit, about("Messages added in one day, UTC.")] | None = None
    backlog: Annotated[_QuotaLimit, about("Messages stored in all queues, in any state.")] | None = None
    stored_bytes: Annotated[_QuotaLimit, about("Bodies and attributes of the stored messages.")] | None = None
    in_flight: Annotated[_QuotaLimit, about("Messages leased at one time.")] | None = None
    message_bytes: (
        Annotated[int, between(1, BODY_BYTES_MAX + ATTRIBUTES_BYTES_MAX, "Body and attributes of one message.")] | None
    ) = None
    queues: (
        Annotated[int, between(0, QUEUE_ID_MAX, "Queues, without dead-letter queues that the server created.")] | None
    ) = None
    consumers_per_queue: Annotated[int, between(1, 1_000_000, "Consumers of one queue at one time.")] | None = None
    soft_percent: Annotated[int, between(1, 100, "Share of a quota from which its state is `warning`.")] = 80


NO_QUOTAS: Final = Quotas()


def state_of(used: int, limit: int | None, soft_percent: int) -> QuotaState:
    """Return the state of ``used`` against ``limit``."""
    if limit is None:
        return "good"
    if used >= limit:
        return "critical"
    return "warning" if used * 100 >= limit * soft_percent else "good"
