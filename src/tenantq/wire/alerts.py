"""The replies about alerts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tenantq.domain.names import TargetName
from tenantq.wire.base_types import Wire, WireReply


class AlertItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """An active alert."""

    kind: str
    severity: Literal["warning", "critical"]
    tenant: str  # empty: it concerns the platform
    queue: str
    detail: str  # the quota, check or principal
    text: str
    since: int
    silenced: bool  # the tenant's alerts.silenced_until is not over


class AlertsReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Active alerts, and the targets of the server."""

    alerts: list[AlertItem]
    targets: list[str]


class ContainmentItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A containment: the server's reaction to an alert."""

    id: str
    action: str  # suspend_key, limit_principal or freeze_tenant
    tenant: str  # of the principal, or the frozen one; empty: the platform
    principal: str  # empty: the tenant as a whole
    alert: str
    text: str
    dry_run: bool  # it was only listed, not applied
    ops_per_sec: int  # left by limit_principal
    created_at: int
    until: int


class ContainmentsReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Containments in force."""

    containments: list[ContainmentItem]


class AlertTestRequest(Wire, frozen=True, kw_only=True):
    """Names the target to test."""

    target: Annotated[TargetName, msgspec.Meta(description="Name of a target in the server's settings.")]


class AlertTestReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Whether a target accepted a notification."""

    target: str
    delivered: bool
    error: str = ""
