"""Keys, grants and revocations, and the refusals that the gates report. Each is journaled in the commit that makes it true."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tenantq.domain.access import Grant, KeyUse, StoredKey
from tenantq.engine.access_store import PLATFORM
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.engine.queue_state import TenantState
from tenantq.journal.record import JournalEntry


def _id(tenant: TenantState) -> int:
    return tenant.id if tenant.name else PLATFORM


def _shown(grant: Grant) -> str:
    return msgspec.json.encode(grant).decode()


@dataclass(eq=False)
class PutKey(Operation[None]):
    """Store a new API key of a tenant or of the platform."""

    key: StoredKey
    journal_op = "create_key"

    def execute(self, effects: Effects) -> None:
        """Store the key; journal everything but the secret."""
        effects.state.access.put_key(effects.batch, _id(self.tenant), self.key)
        details = f"{self.key.id} {self.key.name!r}: {_shown(self.key.grant)}"
        effects.log_tenant("create_key", self.tenant, self.caller, details)


@dataclass(eq=False)
class RevokeKey(Operation[None]):
    """Refuse an API key from now on."""

    key_id: str
    journal_op = "revoke_key"

    def execute(self, effects: Effects) -> None:
        wall_ms = effects.now + effects.wall
        key = effects.state.access.revoke_key(effects.batch, _id(self.tenant), self.key_id, wall_ms)
        effects.log_tenant("revoke_key", self.tenant, self.caller, f"{key.id} {key.name!r}")


@dataclass(eq=False)
class PutGrant(Operation[None]):
    """Store a principal's grant in a tenant, replacing any earlier one."""

    principal: str
    grant: Grant
    journal_op = "put_grant"

    def execute(self, effects: Effects) -> None:
        tenant = self.tenant
        wall_ms = effects.now + effects.wall
        effects.state.access.put_grant(effects.batch, tenant.id, tenant.name, self.principal, self.grant, wall_ms)
        effects.log_tenant("put_grant", tenant, self.caller, f"{self.principal}: {_shown(self.grant)}")


@dataclass(eq=False)
class ReviewGrant(Operation[tuple[Grant, int]]):
    """Store that a principal's grant in a tenant was reviewed. Reply the grant and the time of the review."""

    principal: str
    journal_op = "review_grant"

    def execute(self, effects: Effects) -> None:
        tenant, wall_ms = self.tenant, effects.now + effects.wall
        access = effects.state.access
        self.reply = access.review_grant(effects.batch, tenant.id, tenant.name, self.principal, wall_ms), wall_ms
        effects.log_tenant("review_grant", tenant, self.caller, self.principal)


@dataclass(eq=False)
class DropGrant(Operation[None]):
    """Delete a principal's grant in a tenant."""

    principal: str
    journal_op = "delete_grant"

    def execute(self, effects: Effects) -> None:
        effects.state.access.drop_grant(effects.batch, self.tenant.id, self.tenant.name, self.principal)
        effects.log_tenant("delete_grant", self.tenant, self.caller, self.principal)


@dataclass(eq=False)
class RevokeToken(Operation[None]):
    """Refuse a JSON web token by its id, or all of a principal's, until a wall-clock time."""

    token_id: str | None
    principal: str | None
    until: int
    journal_op = "revoke_token"

    def execute(self, effects: Effects) -> None:
        """Store the revocation, and drop those that have expired."""
        access, tenant = effects.state.access, self.tenant
        access.collect(effects.batch, effects.state.catalog, effects.now + effects.wall)
        access.revoke_token(effects.batch, _id(tenant), tenant.name or None, self.token_id, self.principal, self.until)
        token = f"token {self.token_id}" if self.token_id is not None else ""
        principal = f"all of {self.principal}" if self.principal is not None else ""
        effects.log_tenant("revoke_token", tenant, self.caller, ", ".join(filter(None, (token, principal))))


@dataclass(eq=False)
class NoteKeyUse(Operation[None]):
    """Store when and from where keys were used. Many uses share one write."""

    uses: Mapping[str, KeyUse]
    journal_op = "note_key_use"

    def execute(self, effects: Effects) -> None:
        for key_id, use in self.uses.items():
            effects.state.access.note_use(effects.batch, key_id, use)
        effects.log_tenant("note_key_use", self.tenant, self.caller, f"{len(self.uses)} keys")


@dataclass(eq=False)
class NoteEntries(Operation[None]):
    """Journal what happened before the engine: calls that the gates refused, and alerts."""

    entries: Sequence[JournalEntry]
    journal_op = "note_entries"

    def __post_init__(self) -> None:
        self.cost = max(1, len(self.entries))

    def execute(self, effects: Effects) -> None:
        effects.entries += self.entries
