"""The bounds of the gates that are the server's, not a tenant's."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.message import check_int
from tenantq.gates.signals import SignalSettings, check_signals


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the gates let through at one time, and what they note."""

    server_requests: int = 10_000  # in flight at one time
    connection_requests: int = 256  # in flight on one connection
    waiting_per_tenant: int = 1_000  # requests of a tenant that may wait for a place
    slot_wait_ms: int = 5_000  # how long they may
    consumer_idle_ms: int = 60_000  # who has not polled for this long is no consumer any more
    refusal_rows_per_second: int = 20  # refused calls of a tenant that are journaled one by one; the rest with a count
    anonymous_default: bool = False  # callers without a credential may use the tenant 'default'
    signals: SignalSettings = SignalSettings()


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "server_requests": (1, 1_000_000),
    "connection_requests": (1, 1_000_000),
    "waiting_per_tenant": (0, 1_000_000),
    "slot_wait_ms": (0, 600_000),
    "consumer_idle_ms": (1_000, 86_400_000),
    "refusal_rows_per_second": (1, 1_000_000),
}


def check_gates(settings: GateSettings) -> GateSettings:
    """Return ``settings`` if each is in its range, else raise Invalid naming the field, the value and the range."""
    for field, (low, high) in _RANGES.items():
        check_int(f"gates.{field}", getattr(settings, field), low, high)
    check_signals(settings.signals, "gates.signals")
    return settings
