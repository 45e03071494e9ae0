"""Requests and replies about sign-ups."""

from typing import Annotated

import msgspec

from tenantq.domain.limits import OptionalReason
from tenantq.domain.names import PlanName, TemplateName
from tenantq.wire.base_types import Wire, WireReply
from tenantq.wire.templates import AppliedItem


class SignupItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A sign-up that waits for a decision."""

    id: str
    tenant: str
    contact: str
    plan: str | None
    note: str
    remote: str
    created_at: int


class SignupReceipt(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The sign-up is stored. An administrator decides."""

    id: str


class SignupsReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Pending sign-ups."""

    signups: list[SignupItem]


class ApproveSignupRequest(Wire, frozen=True, kw_only=True):
    """Approve a sign-up."""

    plan: Annotated[PlanName, msgspec.Meta(description="Plan, instead of the requested one.")] | None = None
    template: Annotated[TemplateName, msgspec.Meta(description="Template of the platform to apply.")] | None = None


class RejectSignupRequest(Wire, frozen=True, kw_only=True):
    """Reject a sign-up. The reason goes into the journal."""

    reason: OptionalReason = ""


class ApprovedSignup(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The new tenant with its first key. Secret and token are shown only once."""

    tenant: str
    contact: str
    plan: str | None
    key_id: str
    secret: str
    token: str
    applied: list[AppliedItem]  # what the template did
