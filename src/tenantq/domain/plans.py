"""Plans: named limits that the operator defines and tenants get."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from tenantq.domain.config import TenantConfig, change_config
from tenantq.domain.limits import WEIGHT_MAX
from tenantq.domain.names import PlanName
from tenantq.domain.quotas import NO_QUOTAS, Quotas
from tenantq.domain.rates import NO_LIMITS, Concurrency, Limits
from tenantq.domain.validation import about, between, text
from tenantq.errors import Invalid


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a tenant of the plan gets. A tenant keeps these values when the plan changes, until it gets a plan again."""

    description: Annotated[str, text(200, "One line for people who choose a plan.", chars_min=0)] = ""
    weight: Annotated[int, between(1, WEIGHT_MAX, "Share of every round compared with other tenants.")] = 1
    quotas: Quotas = NO_QUOTAS
    limits: Limits = NO_LIMITS
    concurrency: Concurrency = Concurrency()
    encrypted: Annotated[bool, about("Encrypt the tenant's messages. A plan never turns encryption off.")] = False

    def apply(self, config: TenantConfig) -> TenantConfig:
        """Return ``config`` with the values of this plan."""
        encryption = config.encryption
        if self.encrypted and not encryption.enabled:
            encryption = msgspec.structs.replace(encryption, enabled=True)
        return msgspec.structs.replace(
            config, weight=self.weight, quotas=self.quotas, limits=self.limits, concurrency=self.concurrency,
            encryption=encryption,
        )  # fmt: skip


STANDARD: Final = Plan(
    description="Bounds a tenant's storage. Tenants share the rest in fair turns.",
    quotas=Quotas(backlog=10_000_000, stored_bytes=10 << 30, queues=10_000),
)
UNLIMITED: Final = Plan(description="For tenants that you trust.")
BUILT_IN: Final[Mapping[str, Plan]] = {"standard": STANDARD, "unlimited": UNLIMITED}


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plans of a server."""

    default: Annotated[PlanName, about("Plan of new tenants unless another is named.")] = "standard"
    custom: Annotated[
        dict[PlanName, Plan],
        about("Your plans by name, in addition to `standard` and `unlimited`. The same names replace those."),
    ] = {}  # msgspec copies it

    def __post_init__(self) -> None:
        """Refuse a default that is not defined."""
        if self.default not in self.available:
            raise Invalid(f"default: unknown plan ({self.default!r}, allowed: {', '.join(sorted(self.available))})")

    @property
    def available(self) -> dict[str, Plan]:
        """All plans by name."""
        return {**BUILT_IN, **self.custom}

    def change(self, config: TenantConfig, changes: dict[str, Any]) -> TenantConfig:
        """Return ``config`` with ``changes``, which apply on top of the plan they name. Raises Invalid."""
        named = changes.get("plan")
        if named is None:
            return change_config(config, changes)
        plan = self.available.get(named) if type(named) is str else None
        if plan is None and type(named) is str:
            known = ", ".join(sorted(self.available))
            raise Invalid(f"plan: unknown plan ({named[:40]!r}, allowed: {known}). Define it in the server's settings.")
        return change_config(plan.apply(config) if plan is not None else config, changes)

    def shown(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return ``changes`` for the journal: with the values of the plan they name, as these may change later."""
        plan = self.available.get(changes.get("plan", ""))
        if plan is None:
            return changes
        values = {name: one for name, one in msgspec.to_builtins(plan).items() if name != "description"}
        return {**changes, "plan": {"name": changes["plan"], **values}}


PLANS: Final = PlanSettings()
