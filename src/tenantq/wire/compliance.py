"""Replies about compliance controls."""

from tenantq.domain.compliance import ControlStatus
from tenantq.wire.base_types import WireReply


class EvidenceItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A fact that a control was decided by."""

    tenant: str  # empty: the platform
    subject: str  # the key, principal, check, alert or backup
    passed: bool
    text: str
    at: int | None  # when the fact came about


class ControlItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A control. It fails if any of its evidence fails, and does not apply without evidence."""

    control: str
    title: str
    soc2: str  # criterion of SOC 2
    gdpr: str  # paragraph of GDPR article 30; empty: none
    status: ControlStatus
    threshold: str
    passed: int  # evidence that passes
    failed: int
    evidence: list[EvidenceItem]  # failed first, at most 100


class ComplianceReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """All controls of a tenant or of the platform."""

    tenant: str  # empty: the platform and all tenants
    at: int
    status: ControlStatus  # fail if any control fails
    controls: list[ControlItem]
