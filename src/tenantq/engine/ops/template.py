"""Templates of a tenant or of the platform. Row and journal entry share a commit."""

from dataclasses import dataclass
from typing import Final

from tenantq.domain.formatting import plural
from tenantq.domain.template import Template
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.errors import NotFound, QuotaExceeded

TEMPLATES_MAX: Final = 1_000
"""Templates of one tenant, or of the platform."""


@dataclass(eq=False)
class PutTemplate(Operation[bool]):
    """Store a template, replacing an earlier one. Replies whether it is new."""

    name: str
    template: Template
    journal_op = "put_template"

    def execute(self, effects: Effects) -> None:
        """Store it. Raises QuotaExceeded if the owner has too many."""
        templates, owner, most = effects.state.templates, self.tenant, TEMPLATES_MAX
        held = templates.of(owner.id)
        self.reply = self.name not in held
        if self.reply and len(held) >= most:
            raise QuotaExceeded(f"templates: at most {most}. Delete some.", limit=most, current=len(held))
        templates.put(effects.batch, owner.id, self.name, self.template)
        shared = f"shared with {', '.join(self.template.shared_with)}" if self.template.shared_with else "not shared"
        details = f"{self.name}: {plural(len(self.template.queues), 'queue')}, {shared}"
        effects.log_tenant("put_template", owner, self.caller, details)


@dataclass(eq=False)
class DeleteTemplate(Operation[None]):
    """Delete a template. What was made from it stays."""

    name: str
    journal_op = "delete_template"

    def execute(self, effects: Effects) -> None:
        """Delete it. Raises NotFound."""
        if self.name not in effects.state.templates.of(self.tenant.id):
            raise NotFound(f"template {self.name[:80]!r} does not exist", tenant=self.tenant.name or None)
        effects.state.templates.drop(effects.batch, self.tenant.id, self.name)
        effects.log_tenant("delete_template", self.tenant, self.caller, self.name)
