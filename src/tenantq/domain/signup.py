"""Sign-ups: people ask for a tenant, and an administrator decides."""

from typing import Annotated

import msgspec

from tenantq.domain.names import PlanName, TenantName
from tenantq.domain.validation import about, between, matching, text


class SignupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether people without a credential may ask for a tenant."""

    enabled: Annotated[bool, about("Accept `POST /v1/signups`.")] = False
    per_hour: Annotated[int, between(1, 100_000, "Sign-ups per hour from one network (/24, /48).")] = 5
    waiting_max: Annotated[int, between(1, 100_000, "Maximum number of pending sign-ups.")] = 1_000


class SignupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tenant that a person asks for."""

    tenant: Annotated[TenantName, about("Name of the tenant.")]
    contact: Annotated[
        str,
        matching(r"[^\x00-\x1f\x7f]{1,200}", "1 to 200 characters on one line"),
        about("Whom to answer, such as an e-mail address."),
    ]
    plan: Annotated[PlanName, about("Plan; none: the default plan.")] | None = None
    note: Annotated[str, text(1_000, "Text for the administrator.", chars_min=0)] = ""


class Signup(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-up that waits for a decision, as stored."""

    id: str
    request: SignupRequest
    remote: str
    created_at: int  # wall clock
