"""Credentials: keys of tenants and of the platform, grants, tokens that are revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.domain import limits
from tenantq.domain.access import Grant, StoredKey, can_be_granted_to, check_grant
from tenantq.domain.message import Caller, check_int, check_text
from tenantq.engine.access_store import PLATFORM
from tenantq.errors import Conflict, Invalid
from tenantq.gates.api_key import check_token, token_hash
from tenantq.gates.authorize import PLATFORM_ACTIONS
from tenantq.service.control import Control
from tenantq.wire import CreatedKey, GrantItem, KeyItem

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.engine.access_store import AccessStore
    from tenantq.service.call import Call

PRINCIPAL_CHARS_MAX: Final = 300
BOOTSTRAP: Final = Caller("system")


class Credentials(Control):
    """Who may come in, and what for."""

    async def bootstrap(self, admin_token: str | None, show: Callable[[str], None] | None = None) -> None:
        """Make sure that there is a platform administrator: with the token that is given, else with one that is made up.

        One that is made up counts only once ``show`` has shown it: where that raises, or there is no ``show``, there is no
        administrator yet, and the next start makes up another one.
        """
        if admin_token is not None:
            hash = token_hash(check_token(admin_token))
            if self.shard.access.key(hash) is None:
                await self._put_platform_key(hash.hex()[:16], hash)
            return
        if show is None or self._administrators():
            return
        made = self.gates.keys.new_key()
        show(made.token)
        await self._put_platform_key(made.id, made.token_hash)

    async def _put_platform_key(self, id: str, hash: bytes) -> None:
        key = StoredKey(
            id=id, tenant=None, name="first administrator", grant=Grant(role="platform-admin"), token_hash=hash,
            created_at=self.shard.wall_ms(), created_by=BOOTSTRAP.principal,
        )  # fmt: skip
        await self.shard.put_key(key, BOOTSTRAP)

    async def create_key(self, call: Call, tenant: str | None, name: str, grant: Grant) -> CreatedKey:
        """Make an API key. Its secret is returned this once and never stored."""
        check_text("name", name, limits.KEY_CHARS_MAX)
        check_grant(grant)
        with await self.gates.enter(call, tenant, "create_key") as entered:
            self.gates.check_may_grant(call, entered, "create_key", grant)
            return await self._make_key(entered.tenant, name, grant, entered.caller)

    async def list_keys(self, call: Call, tenant: str | None) -> list[KeyItem]:
        """Return a tenant's keys without their secrets."""
        with await self.gates.enter(call, tenant, "list_keys") as entered:
            return self._keys(entered.state.id)

    async def revoke_key(self, call: Call, tenant: str | None, key_id: str) -> None:
        """Refuse a key from now on."""
        check_text("key_id", key_id, PRINCIPAL_CHARS_MAX)
        with await self.gates.enter(call, tenant, "revoke_key") as entered:
            await self.shard.revoke_key(entered.tenant, key_id, entered.caller)
            self.gates.signals.forget(f"key:{key_id}")

    async def create_platform_key(self, call: Call, name: str, grant: Grant) -> CreatedKey:
        """Make an API key of the platform: an administrator's, or one for single actions of the platform, such as metrics."""
        check_text("name", name, limits.KEY_CHARS_MAX)
        check_grant(grant)
        caller = await self.gates.enter_platform(call, "create_platform_key", grant=grant)
        with self._noting(call, caller, "", "create_platform_key"):
            if grant.role not in {None, "platform-admin"}:
                raise Invalid("role: a key of the platform is platform-admin, or has actions of the platform")
            if grant.queues != ("*",):
                raise Invalid("queues: the platform has none; leave them out")
            if not PLATFORM_ACTIONS.issuperset(grant.actions):
                raise Invalid(f"actions: those of the platform are {', '.join(sorted(PLATFORM_ACTIONS))}")
        return await self._make_key(None, name, grant, caller)

    async def list_platform_keys(self, call: Call) -> list[KeyItem]:
        """Return the platform's own keys without their secrets."""
        await self.gates.enter_platform(call, "list_platform_keys")
        return self._keys(PLATFORM)

    async def revoke_platform_key(self, call: Call, key_id: str) -> None:
        """Refuse a key of the platform from now on; not the last administrator's, which nobody could replace."""
        check_text("key_id", key_id, PRINCIPAL_CHARS_MAX)
        caller = await self.gates.enter_platform(call, "revoke_platform_key")
        with self._noting(call, caller, "", "revoke_platform_key"):
            if self._administrators() == {key_id}:
                raise Conflict("this is the last key of an administrator: make another one first")
        await self.shard.revoke_key(None, key_id, caller)
        self.gates.signals.forget(f"key:{key_id}")

    async def put_grant(self, call: Call, tenant: str | None, principal: str, grant: Grant) -> None:
        """Store what a principal may do in the tenant."""
        check_text("principal", principal, PRINCIPAL_CHARS_MAX)
        if not can_be_granted_to(principal):
            raise Invalid("principal: is key:<key id>, jwt:<subject> or cert:<name>")
        check_grant(grant)
        with await self.gates.enter(call, tenant, "put_grant") as entered:
            self.gates.check_may_grant(call, entered, "put_grant", grant)
            await self.shard.put_grant(entered.tenant, principal, grant, entered.caller)

    async def delete_grant(self, call: Call, tenant: str | None, principal: str) -> None:
        """Forget what is stored for a principal in the tenant."""
        check_text("principal", principal, PRINCIPAL_CHARS_MAX)
        with await self.gates.enter(call, tenant, "delete_grant") as entered:
            await self.shard.delete_grant(entered.tenant, principal, entered.caller)

    async def list_grants(self, call: Call, tenant: str | None) -> list[GrantItem]:
        """Return the stored grants of a tenant."""
        with await self.gates.enter(call, tenant, "list_grants") as entered:
            return grant_items(self.shard.access, entered.tenant)

    async def revoke_token(
        self, call: Call, tenant: str | None, *, token_id: str | None, principal: str | None, until: int
    ) -> None:
        """Refuse JSON web tokens of the tenant before they expire: one by its id, or all of a principal's."""
        for field, value in (("token_id", token_id), ("principal", principal)):
            if value is not None:
                check_text(field, value, PRINCIPAL_CHARS_MAX)
        if token_id is None and principal is None:
            raise Invalid("token_id, principal: give one of them")
        check_int("until", until, 0, limits.TIME_MS_MAX)
        with await self.gates.enter(call, tenant, "revoke_token") as entered:
            await self.shard.revoke_token(
                entered.tenant, token_id=token_id, principal=principal, until=until, caller=entered.caller
            )

    def _administrators(self) -> set[str]:
        """Return the ids of the platform administrators' keys that are valid."""
        now = self.shard.wall_ms()
        return {
            key.id
            for key in self.shard.access.keys(PLATFORM).values()
            if key.revoked_at is None and key.grant.role == "platform-admin" and not _is_over(key.grant, now)
        }

    async def _make_key(self, tenant: str | None, name: str, grant: Grant, caller: Caller) -> CreatedKey:
        made = self.gates.keys.new_key()
        key = StoredKey(
            id=made.id, tenant=tenant, name=name, grant=grant, token_hash=made.token_hash,
            created_at=self.shard.wall_ms(), created_by=caller.principal,
        )  # fmt: skip
        await self.shard.put_key(key, caller)
        return CreatedKey(key_id=made.id, secret=made.secret, token=made.token)

    def _keys(self, owner_id: int) -> list[KeyItem]:
        access, last_used = self.shard.access, self.gates.authenticator.last_used
        items: list[KeyItem] = []
        for key in access.keys(owner_id).values():
            use, grant = access.use(key.id), key.grant
            items.append(
                KeyItem(
                    key_id=key.id, name=key.name, role=grant.role, actions=grant.actions, queues=grant.queues,
                    expires_at=grant.expires_at, created_at=key.created_at, created_by=key.created_by,
                    revoked_at=key.revoked_at,
                    last_used_at=last_used.get(key.id, use.last_used_at if use is not None else None),
                )
            )  # fmt: skip
        return items


def grant_items(access: AccessStore, tenant: str) -> list[GrantItem]:
    """Return the stored grants of a tenant, as they are told."""
    return [
        GrantItem(
            principal=principal, role=grant.role, actions=grant.actions, queues=grant.queues, expires_at=grant.expires_at
        )
        for principal, grant in access.grants_in(tenant).items()
    ]  # fmt: skip


def _is_over(grant: Grant, now_ms: int) -> bool:
    return grant.expires_at is not None and grant.expires_at <= now_ms
