"""Checks of a tenant's usage against its quotas."""

from collections.abc import Mapping
from typing import Final

from tenantq.domain.quotas import QuotaState, state_of
from tenantq.engine.queue_state import TenantState
from tenantq.engine.reservation import Reservation
from tenantq.engine.usage import reset_time
from tenantq.errors import QuotaExceeded, TenantqError, TooLarge

NOTHING_USED: Final[Mapping[str, int]] = {}
_REARM_PERCENT: Final = 10  # a warning is repeated only after usage fell this far below the soft limit
_RANK: Final[dict[QuotaState, int]] = {"good": 0, "warning": 1, "critical": 2}


class RemainingQuota:
    """How much a tenant's quotas still allow to be added now."""

    __slots__ = ("_bytes", "_message_bytes", "_messages", "_taken", "_taken_bytes", "_tenant", "_wall_ms")

    def __init__(self, tenant: TenantState, wall_ms: int, reservation: Reservation | None = None) -> None:
        """Prepare. What other calls have reserved is not available; ``reservation`` is what this one has."""
        usage, quotas = tenant.usage, tenant.config.quotas
        self._tenant = tenant
        self._wall_ms = wall_ms
        self._taken = self._taken_bytes = 0
        self._message_bytes = quotas.message_bytes
        counted: list[tuple[str, int]] = [("backlog", usage.messages)]
        if quotas.messages_per_hour is not None or quotas.messages_per_day is not None:
            hour, day = usage.windows(wall_ms)
            counted[:0] = [("messages_per_hour", hour.messages), ("messages_per_day", day.messages)]
        kept = _reserved_by_others(tenant, reservation)
        owing = tenant.part.owing if tenant.part is not None else frozenset()
        self._messages = [
            (0 if name in owing else limit - used - kept.get(name, 0), name, limit)
            for name, used in counted
            if (limit := tenant.allowed(name)) is not None
        ]
        bytes_max = tenant.allowed("stored_bytes")
        self._bytes = None if bytes_max is None else bytes_max - usage.bytes - kept.get("stored_bytes", 0)
        if self._bytes is not None and "stored_bytes" in owing:
            self._bytes = min(0, self._bytes)

    def has_room(self, messages: int, size: int) -> bool:
        """Return whether all of these messages, ``size`` bytes in total, fit without checking each. False: check each."""
        if self._message_bytes is not None and size > self._message_bytes:
            return False
        if self._bytes is not None and self._taken_bytes + size > self._bytes:
            return False
        return all(self._taken + messages <= left for left, _, _ in self._messages)

    def take(self, size: int) -> TenantqError | None:
        """Count one more message of ``size`` bytes. If it exceeds a quota, return the error and count nothing."""
        refused = self.refusal(size)
        if refused is None:
            self._taken += 1
            self._taken_bytes += size
        return refused

    def refusal(self, size: int) -> TenantqError | None:
        """Return why one more message of ``size`` bytes exceeds a quota, or None if it fits."""
        tenant = self._tenant
        if self._message_bytes is not None and size > self._message_bytes:
            text = f"quotas.message_bytes: message too large ({size} bytes, allowed: up to {self._message_bytes})"
            return TooLarge(text, tenant=tenant.name)
        for left, name, limit in self._messages:
            if self._taken >= left:
                return exceeded(tenant, name, limit, limit - left + self._taken, self._wall_ms)
        if self._bytes is not None and self._taken_bytes + size > self._bytes:
            limit = tenant.allowed("stored_bytes") or 0
            return exceeded(tenant, "stored_bytes", limit, limit - self._bytes + self._taken_bytes, self._wall_ms)
        return None


def _reserved_by_others(tenant: TenantState, reservation: Reservation | None) -> Mapping[str, int]:
    if tenant.part is None:
        return NOTHING_USED
    own = reservation.amounts if reservation is not None else {}
    return {name: amount - own.get(name, 0) for name, amount in tenant.part.reserved.items()}


def exceeded(tenant: TenantState, name: str, limit: int, current: int, wall_ms: int) -> QuotaExceeded:
    """Return the error for an exhausted quota. Where parts of the tenant share it, nothing is left on any of them."""
    if tenant.part is not None:
        quota = getattr(tenant.config.quotas, name) or 0
        limit, current = quota, quota - (limit - current)
    resets_at = reset_time(tenant.usage, name, wall_ms)
    wait_ms = max(1, resets_at - wall_ms) if resets_at is not None else 1_000
    when = "Wait until it resets" if resets_at is not None else "Finish or remove messages"
    text = f"quotas.{name}: exceeded ({current} of {limit} used). {when}, or ask for a higher quota."
    error = QuotaExceeded(text, limit=limit, current=current, retry_after_ms=wait_ms, tenant=tenant.name)
    error.quota = name
    return error


def newly_exceeded(
    tenant: TenantState, wall_ms: int, used_by_others: Mapping[str, int] = NOTHING_USED
) -> list[tuple[str, QuotaState, int, int]]:
    """Return (quota, state, used, limit) of each that has just become worse, and remember that it was reported.

    ``used_by_others`` is what the tenant's parts on other shards use.
    """
    quotas, usage = tenant.config.quotas, tenant.usage
    reported = usage.reported
    found: list[tuple[str, QuotaState, int, int]] = []
    for name, used_here in usage.used(wall_ms).items():
        used, limit = used_here + used_by_others.get(name, 0), getattr(quotas, name)
        if limit is None:
            reported.pop(name, None)
            continue
        state = state_of(used, limit, quotas.soft_percent)
        before = reported.get(name, "good")
        if _RANK[state] > _RANK[before]:
            reported[name] = state
            found.append((name, state, used, limit))
        elif state == "good" and used * 100 < limit * (quotas.soft_percent - _REARM_PERCENT):
            reported.pop(name, None)
        elif state == "warning" and before == "critical" and used * 100 < limit * (100 - _REARM_PERCENT):
            reported[name] = "warning"
    return found


def restore_reported(tenant: TenantState) -> None:
    """Mark as reported what earlier rounds have journaled about quotas. A part has stored it for all parts together."""
    part, usage = tenant.part, tenant.usage
    if part is not None:
        usage.reported = dict(part.reported)
        if part.reported_day:  # its own last adds may be older than what was reported
            usage.reported_hour, usage.reported_day = part.reported_hour, part.reported_day
    else:
        newly_exceeded(tenant, 0)  # a time before every window, which marks none of them
