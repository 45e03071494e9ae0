"""Requests and replies about templates."""

from typing import Annotated, Any, Literal

from tenantq.domain.names import OptionalTenantName
from tenantq.domain.validation import about
from tenantq.wire.base_types import Wire, WireReply


class TemplateItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A template, and whose it is."""

    name: str
    owner: str  # a tenant; empty: the platform
    description: str
    queues: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    shared_with: tuple[str, ...]  # "*": all tenants


class TemplatesReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """Templates that a tenant, or the platform, may use."""

    templates: list[TemplateItem]


class ApplyTemplateRequest(Wire, frozen=True, kw_only=True):
    """Apply a template to a tenant."""

    owner: (
        Annotated[
            OptionalTenantName,
            about("Owner of the template; empty: the platform. Default: the tenant, then the platform."),
        ]
        | None
    ) = None
    dry_run: bool = False  # only show what would change


class AppliedItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What a template did to a queue, or to the tenant if ``queue`` is empty."""

    queue: str
    outcome: Literal["created", "changed", "unchanged", "refused"]
    changes: dict[str, Any] = {}  # new values of the settings that differ
    error: str = ""  # why it was refused


class AppliedReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What a template did, or in a dry run would do."""

    results: list[AppliedItem]
