"""Templates: settings of a tenant and of queues that can be applied again and shared."""

from typing import Annotated, Any

import msgspec

from tenantq.domain.config import QueueConfig, TenantConfig, change_config
from tenantq.domain.names import QueueName, TenantNameOrAll
from tenantq.domain.validation import about, items, text

QUEUES_MAX = 1_000
SHARED_MAX = 1_000


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings to apply. Settings that it does not name stay as they are."""

    description: Annotated[str, text(200, "One line for people who choose a template.", chars_min=0)] = ""
    queues: Annotated[
        dict[QueueName, dict[str, Any]], items(0, QUEUES_MAX, "Settings of queues by name. Missing queues are created.")
    ] = {}
    settings: Annotated[dict[str, Any], about("Settings of the tenant. Only platform administrators apply them.")] = {}
    shared_with: Annotated[
        tuple[TenantNameOrAll, ...], items(0, SHARED_MAX, "Other tenants that may use it; `*`: all.")
    ] = ()

    def check(self) -> None:
        """Raise Invalid if a setting does not exist or is out of range."""
        for changes in self.queues.values():
            change_config(QueueConfig(), changes)
        change_config(TenantConfig(), {name: one for name, one in self.settings.items() if name != "plan"})

    def is_visible(self, owner: str, tenant: str) -> bool:
        """Return whether a tenant may use the template of ``owner``."""
        return tenant in {owner, ""} or "*" in self.shared_with or tenant in self.shared_with
