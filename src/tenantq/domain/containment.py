"""Containment: the server's reactions to alerts, against a credential or a tenant."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from tenantq.domain.alert_rules import AlertKind
from tenantq.domain.limits import DAY_MS
from tenantq.domain.rates import OPS_PER_SEC_MAX
from tenantq.domain.validation import about, between
from tenantq.errors import Invalid

ContainmentAction = Literal["suspend_key", "limit_principal", "freeze_tenant"]

ABOUT_PRINCIPALS: Final = frozenset(("denials", "cross_tenant", "new_places"))
"""Alerts that name a principal. Other tenants can cause them, so their tenant must not suffer from them."""

_ABOUT_THE_SERVER: Final = frozenset(("self_check", "journal_lag"))


class ContainmentRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reaction to alerts of one kind."""

    alert: Annotated[AlertKind, about("Kind of alert to react to.")]
    action: Annotated[
        ContainmentAction,
        about(
            "Suspend the API key, limit the principal, or freeze the tenant. If the alert names a principal, its own tenant is frozen."
        ),
    ]
    dry_run: Annotated[bool, about("Only journal and list what would be done.")] = True
    duration_ms: Annotated[int, between(1_000, 30 * DAY_MS, "How long it lasts unless it is released.")] = 3_600_000
    ops_per_sec: Annotated[
        int, between(1, OPS_PER_SEC_MAX, "Rate that `limit_principal` leaves, for reads and for writes.")
    ] = 1

    def __post_init__(self) -> None:
        """Refuse a rule that could never act."""
        if self.alert in _ABOUT_THE_SERVER or (self.action != "freeze_tenant" and self.alert not in ABOUT_PRINCIPALS):
            raise Invalid(
                f"action: {self.action} is not possible, because alerts of kind {self.alert} do not name its subject"
            )


class Containment(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to an alert, as stored."""

    id: str = ""  # set when it is stored
    action: ContainmentAction
    tenant: str  # of the principal, or the frozen tenant; empty: the platform
    principal: str  # empty: the tenant as a whole
    alert: AlertKind
    text: str  # of the alert
    dry_run: bool
    ops_per_sec: int
    created_at: int  # wall clock
    until: int

    @property
    def key_id(self) -> str:
        """ID of the API key that it is about; empty if it is about another kind of principal."""
        return self.principal.removeprefix("key:") if self.principal.startswith("key:") else ""

    @property
    def freeze_reason(self) -> str:
        """The reason of a tenant's suspension that belongs to this containment."""
        return f"containment {self.id}"

    def is_like(self, other: Containment) -> bool:
        """Return whether both do the same to the same subject."""
        same = ("action", "tenant", "principal", "dry_run")
        return all(getattr(self, name) == getattr(other, name) for name in same)

    @property
    def what(self) -> str:
        """Its action, its subject and its alert."""
        does = f"{'dry run: ' if self.dry_run else ''}{self.action} {self.principal or self.tenant}"
        return f"{does} because of {self.alert}: {self.text}"

    def __str__(self) -> str:
        """Show it for the journal."""
        return f"{self.id}: {self.what}"
