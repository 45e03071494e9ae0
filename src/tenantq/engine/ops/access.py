"""Keys, grants and revocations, and the refusals that the gates report: all journaled in the commit that makes them true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq.engine.access_store import PLATFORM
from tenantq.engine.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenantq.domain.access import Grant, KeyUse, StoredKey
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round
    from tenantq.journal.record import JournalEntry


def _id(tenant: TenantState) -> int:
    return tenant.id if tenant.name else PLATFORM


def _shown(grant: Grant) -> str:
    return msgspec.json.encode(grant).decode()


class PutKey(Operation):
    """Store a new API key. The platform's keys wait in the system's line."""

    __slots__ = ("key",)
    journal_op = "create_key"

    def __init__(self, tenant: TenantState, caller: Caller, key: StoredKey) -> None:
        super().__init__(tenant, caller)
        self.key = key

    def execute(self, round: Round) -> None:
        """Store it, and journal everything but the secret."""
        round.core.access.put_key(round.batch, _id(self.tenant), self.key)
        details = f"{self.key.id} {self.key.name!r}: {_shown(self.key.grant)}"
        round.log_tenant("create_key", self.tenant, self.caller, details)


class RevokeKey(Operation):
    """Refuse an API key from now on."""

    __slots__ = ("key_id",)
    journal_op = "revoke_key"

    def __init__(self, tenant: TenantState, caller: Caller, key_id: str) -> None:
        super().__init__(tenant, caller)
        self.key_id = key_id

    def execute(self, round: Round) -> None:
        """Mark it as revoked."""
        key = round.core.access.revoke_key(round.batch, _id(self.tenant), self.key_id, round.now + round.wall)
        round.log_tenant("revoke_key", self.tenant, self.caller, f"{key.id} {key.name!r}")


class PutGrant(Operation):
    """Store what a principal may do in a tenant."""

    __slots__ = ("grant", "principal")
    journal_op = "put_grant"

    def __init__(self, tenant: TenantState, caller: Caller, principal: str, grant: Grant) -> None:
        super().__init__(tenant, caller)
        self.principal = principal
        self.grant = grant

    def execute(self, round: Round) -> None:
        """Replace what was stored before."""
        tenant = self.tenant
        round.core.access.put_grant(round.batch, tenant.id, tenant.name, self.principal, self.grant)
        round.log_tenant("put_grant", tenant, self.caller, f"{self.principal}: {_shown(self.grant)}")


class DropGrant(Operation):
    """Forget what a principal may do in a tenant."""

    __slots__ = ("principal",)
    journal_op = "delete_grant"

    def __init__(self, tenant: TenantState, caller: Caller, principal: str) -> None:
        super().__init__(tenant, caller)
        self.principal = principal

    def execute(self, round: Round) -> None:
        """Drop it."""
        round.core.access.drop_grant(round.batch, self.tenant.id, self.tenant.name, self.principal)
        round.log_tenant("delete_grant", self.tenant, self.caller, self.principal)


class RevokeToken(Operation):
    """Refuse JSON web tokens before they expire."""

    __slots__ = ("principal", "token_id", "until")
    journal_op = "revoke_token"

    def __init__(
        self, tenant: TenantState, caller: Caller, token_id: str | None, principal: str | None, until: int
    ) -> None:
        super().__init__(tenant, caller)
        self.token_id = token_id
        self.principal = principal
        self.until = until

    def execute(self, round: Round) -> None:
        """Remember it until then, and forget those whose time is over."""
        access, tenant = round.core.access, self.tenant
        access.collect(round.batch, round.core.catalog, round.now + round.wall)
        access.revoke_token(round.batch, _id(tenant), tenant.name or None, self.token_id, self.principal, self.until)
        what = f"token {self.token_id}" if self.token_id is not None else ""
        who = f"all of {self.principal}" if self.principal is not None else ""
        round.log_tenant("revoke_token", tenant, self.caller, ", ".join(filter(None, (what, who))))


class NoteKeyUse(Operation):
    """Remember when and from where keys were used; gathered, so that a use costs no write of its own."""

    __slots__ = ("uses",)
    journal_op = "note_key_use"

    def __init__(self, system: TenantState, caller: Caller, uses: Mapping[str, KeyUse]) -> None:
        super().__init__(system, caller)
        self.uses = uses

    def execute(self, round: Round) -> None:
        """Write each."""
        for key_id, use in self.uses.items():
            round.core.access.note_use(round.batch, key_id, use)
        round.log_tenant("note_key_use", self.tenant, self.caller, f"{len(self.uses)} keys")


class NoteEntries(Operation):
    """Journal what happened before the engine: calls that the gates refused, and alerts."""

    __slots__ = ("entries",)
    journal_op = "note_entries"

    def __init__(self, system: TenantState, caller: Caller, entries: Sequence[JournalEntry]) -> None:
        super().__init__(system, caller, max(1, len(entries)))
        self.entries = entries

    def execute(self, round: Round) -> None:
        """Put them into the round's record."""
        round.entries += self.entries
