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


class AlertRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Thresholds of a tenant's alerts. None means no alert, or in a tenant's settings the server's threshold."""

    quota_percent: Annotated[int, between(1, 100, "Share of a quota in use.")] | None = None
    oldest_ms: Annotated[_Many, about("How long the oldest ready message of a queue has waited.")] | None = None
    dead_letters: Annotated[_Many, about("Messages in the dead-letter queue of a queue.")] | None = None
    throttled_per_minute: Annotated[_Many, about("Calls refused by a rate limit or quota.")] | None = None
    targets: Annotated[
        tuple[TargetName, ...], items(0, 16, "Names of targets to notify; empty: the server's `alerts.targets`.")
    ] = ()
    silenced_until: Annotated[WallTime, about("Time until which no notification about the tenant is sent.")] | None = (
        None
    )

    def with_defaults(self, other: AlertRules) -> AlertRules:
        """Return these rules, with the thresholds of ``other`` where this one has none."""
        return AlertRules(**{name: getattr(self, name) or getattr(other, name) for name in self.__struct_fields__})

    @property
    def watches_queues(self) -> bool:
        """Whether a threshold concerns single queues."""
        return self.oldest_ms is not None or self.dead_letters is not None
