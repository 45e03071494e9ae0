"""Replies about tenants: settings, figures, usage, encryption and audit trail."""

from typing import Any, Literal

from tenantq.wire.base_types import WireReply
from tenantq.wire.lifecycle import SuspensionItem


class HoldItem(WireReply, frozen=True, kw_only=True):
    """A legal hold: why, by whom, since when."""

    reason: str
    by: str
    at: int


class TenantFigures(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Current figures of a tenant."""

    state: Literal["good", "warning", "critical"]  # of the quota closest to its limit
    backlog: int  # stored messages in any state
    in_flight: int
    dead: int  # of the backlog, those in dead-letter queues
    stored_bytes: int
    queues: int  # created by callers
    throttled_total: int  # calls that a limit refused since the server started
    added_total: int = 0
    acked_total: int = 0


class TenantReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A tenant and its settings."""

    name: str
    id: int
    status: Literal["active", "suspended"]
    version: int
    config: dict[str, Any]
    hold: HoldItem | None = None
    suspension: SuspensionItem | None = None
    figures: TenantFigures | None = None  # in lists, on request


class PlanItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A plan that tenants can get."""

    name: str
    is_default: bool  # new tenants get it unless they name another
    plan: dict[str, Any]


class PlansReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The plans of a server."""

    plans: list[PlanItem]


class DataKeyItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One of a tenant's data keys; it is stored only wrapped."""

    number: int
    key: str  # the key that wraps it
    created_at: int
    uses: int  # upper bound of the records it has encrypted


class EncryptionReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """How a tenant is encrypted at rest."""

    tenant: str
    enabled: bool
    key: str | None  # the key that wraps its data keys
    key_state: Literal["unknown", "ok", "unavailable", "denied", "disabled", "failed"]  # when it was last used
    key_error: str | None
    secret_attributes: tuple[str, ...]
    rotate_every_ms: int
    next_rotation_at: int | None
    data_keys: list[DataKeyItem]  # oldest first; the last one encrypts, all of them decrypt


class TenantsReply(WireReply, frozen=True, kw_only=True):
    """A page of tenants, and the name after which the next one starts."""

    tenants: list[TenantReply]
    cursor: str | None = None


class UsageItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One quota: what is allowed, used and left; None: no limit."""

    limit: int | None
    used: int
    remaining: int | None
    state: Literal["good", "warning", "critical"]
    resets_at: int | None = None


class UsageReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A tenant's quotas against its usage."""

    tenant: str
    state: Literal["good", "warning", "critical"]
    quotas: dict[str, UsageItem]
    throttled_total: int = 0  # calls that a limit refused since the server started


class PlaceItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """One place of a tenant's data."""

    what: str  # messages, journal, journal segments or backups
    where: str
    region: str | None  # None: unknown
    allowed: bool  # by the tenant's regions


class ResidencyReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Where a tenant's data is."""

    tenant: str
    regions: list[str]  # that it allows; empty: all
    shard: str  # its home
    shards: list[str]  # that its queues are spread over, its home first
    allowed: bool  # all places are
    places: list[PlaceItem]


class AuditReply(WireReply, frozen=True, kw_only=True):
    """A page of journal rows in the order asked for, and the cursor of the next page."""

    rows: list[dict[str, Any]]
    cursor: str | None = None
    incomplete: bool = False  # older rows are in segments that the server cannot reach
