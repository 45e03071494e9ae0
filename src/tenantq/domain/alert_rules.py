"""When the server notifies people about a tenant."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tenantq.domain.limits import WallTime
from tenantq.domain.names import TargetName
from tenantq.domain.validation import about, between, items

AlertKind = Literal[
    "denials", "cross_tenant", "new_places", "self_check", "quota", "oldest", "dead_letters", "throttled", "journal_lag"
]
Severity = Literal["warning", "critical"]

_Many = Annotated[int, between(1, 1 << 53)]
_Percent = Annotated[int, between(1, 100, "Used share of this quota.")] | None


class QuotaThresholds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Used shares in percent from which single quotas raise an alert. None means ``quota_percent``."""

    messages_per_hour: _Percent = None
    messages_per_day: _Percent = None
    backlog: _Percent = None
    stored_bytes: _Percent = None
    in_flight: _Percent = None
    queues: _Percent = None


class AlertRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Thresholds of a tenant's alerts. None means no alert, or in a tenant's settings the server's threshold."""

    quota_percent: Annotated[int, between(1, 100, "Used share of any quota.")] | None = None
    quotas: Annotated[QuotaThresholds, about("Used share in percent of a given quota, such as `quotas.backlog`.")] = (
        QuotaThresholds()
    )
    oldest_ms: Annotated[_Many, about("How long the oldest ready message of a queue has waited.")] | None = None
    dead_letters: Annotated[_Many, about("Messages in the dead-letter queue of a queue.")] | None = None
    throttled_per_minute: Annotated[_Many, about("Calls refused by a rate limit or quota.")] | None = None
    targets: Annotated[
        tuple[TargetName, ...], items(0, 16, "Names of targets to notify; empty: the server's `alerts.targets`.")
    ] = ()
    silenced_until: Annotated[WallTime, about("Time until which no new alert about the tenant is sent.")] | None = None

    def with_defaults(self, other: AlertRules) -> AlertRules:
        """Return these rules, with the thresholds of ``other`` where this one has none."""
        return AlertRules(
            **{
                name: getattr(self, name) or getattr(other, name) for name in self.__struct_fields__ if name != "quotas"
            },
            quotas=self.quotas if self.quotas != QuotaThresholds() else other.quotas,
        )

    def percent_of(self, quota: str) -> int | None:
        """Return the used share of a quota from which it raises an alert."""
        percent: int | None = getattr(self.quotas, quota)
        return self.quota_percent if percent is None else percent

    @property
    def watches_quotas(self) -> bool:
        """Whether a threshold concerns quotas."""
        return self.quota_percent is not None or self.quotas != QuotaThresholds()

    @property
    def watches_queues(self) -> bool:
        """Whether a threshold concerns single queues."""
        return self.oldest_ms is not None or self.dead_letters is not None
