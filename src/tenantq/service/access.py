"""Access: API keys of tenants and of the platform, grants, and revoked tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.access import Grant, Principal, StoredKey, can_be_granted_to, check_grant
from tenantq.domain.message import SYSTEM, Caller
from tenantq.domain.validation import check_field, projected
from tenantq.engine.access_store import PLATFORM, AccessStore
from tenantq.engine.ops.access import DropGrant, PutGrant, PutKey, ReviewGrant, RevokeKey, RevokeToken
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, Invalid
from tenantq.gates.api_key import check_token, token_hash
from tenantq.gates.authorize import PLATFORM_ACTIONS
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.wire.access import CreatedKey, GrantItem, KeyItem

_FIRST: Final = "first administrator", Grant(role="platform-admin")


class Access:
    """Manages credentials and what they may do."""

    def __init__(self, shard: Shard, admission: Admission) -> None:
        self._shard = shard
        self._admission = admission

    async def log_in(self, call: Call) -> Principal:
        """Return the principal of a credential; raise Unauthenticated, and note it, if it is not valid."""
        return await self._admission.identify(call, "login")

    async def bootstrap(self, admin_token: str | None, show: Callable[[str], None] | None = None) -> None:
        """Ensure that a platform administrator exists, with ``admin_token`` or with a generated token.

        A generated token is stored only after ``show`` has shown it. If that raises, or without ``show``, no administrator
        is created, and the next start generates another token.
        """
        if admin_token is not None:
            hash = token_hash(check_token(admin_token))
            if self._shard.state.access.key(hash) is None:
                await self._put_key(hash.hex()[:16], hash, None, *_FIRST, SYSTEM)
            return
        if show is None or self._shard.state.access.administrators(PLATFORM, self._shard.state.wall_ms()):
            return
        new = self._admission.keys.new_key()
        show(new.token)
        await self._put_key(new.id, new.token_hash, None, *_FIRST, SYSTEM)

    async def create_key(self, call: Call, tenant: str | None, name: str, grant: Grant) -> CreatedKey:
        """Create an API key. Its secret is returned only here and never stored."""
        check_field("name", name, limits.KeyName)
        check_grant(grant)
        with await self._admission.admit(call, tenant, "create_key") as admitted:
            self._admission.check_may_grant(call, admitted, "create_key", grant)
            return await self._create_key(admitted.tenant, name, grant, admitted.caller)

    async def list_keys(self, call: Call, tenant: str | None) -> list[KeyItem]:
        """Return the keys of a tenant without their secrets."""
        with await self._admission.admit(call, tenant, "list_keys") as admitted:
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "list_keys")
            return key_items(self._shard, self._admission, admitted.state.id)

    async def revoke_key(self, call: Call, tenant: str | None, key_id: str) -> None:
        check_field("key_id", key_id, limits.PrincipalName)
        with await self._admission.admit(call, tenant, "revoke_key") as admitted:
            await self._shard.submit(RevokeKey(admitted.state, admitted.caller, key_id))
            self._admission.signals.forget(f"key:{key_id}")

    async def create_platform_key(self, call: Call, name: str, grant: Grant) -> CreatedKey:
        """Create an API key of the platform: for an administrator, or for single actions such as metrics."""
        check_field("name", name, limits.KeyName)
        check_grant(grant)
        caller = await self._admission.admit_platform(call, "create_platform_key", grant=grant)
        with self._admission.notes.noting_failure(caller, "", "create_platform_key"):
            if grant.role not in {None, "platform-admin"}:
                raise Invalid("role: must be platform-admin for a platform key. Or give it actions of the platform.")
            if grant.queues != ("*",):
                raise Invalid("queues: not allowed for a platform key")
            if not PLATFORM_ACTIONS.issuperset(grant.actions):
                raise Invalid(f"actions: those of the platform are {', '.join(sorted(PLATFORM_ACTIONS))}")
        return await self._create_key(None, name, grant, caller)

    async def list_platform_keys(self, call: Call) -> list[KeyItem]:
        """Return the keys of the platform without their secrets."""
        caller = await self._admission.admit_platform(call, "list_platform_keys")
        self._admission.notes.note_view(caller, "", "list_platform_keys")
        return key_items(self._shard, self._admission, PLATFORM)

    async def revoke_platform_key(self, call: Call, key_id: str) -> None:
        """Revoke a key of the platform. Raises Conflict for the last administrator's key, because no other could replace it."""
        check_field("key_id", key_id, limits.PrincipalName)
        caller = await self._admission.admit_platform(call, "revoke_platform_key")
        with self._admission.notes.noting_failure(caller, "", "revoke_platform_key"):
            if self._shard.state.access.administrators(PLATFORM, self._shard.state.wall_ms()) == {key_id}:
                raise Conflict("this is the last administrator key. Create another one first.")
        await self._shard.submit(RevokeKey(self._shard.state.platform, caller, key_id))
        self._admission.signals.forget(f"key:{key_id}")

    async def put_grant(self, call: Call, tenant: str | None, principal: str, grant: Grant) -> GrantItem:
        check_field("principal", principal, limits.PrincipalName)
        if not can_be_granted_to(principal):
            raise Invalid("principal: must be key:<key id>, jwt:<subject> or cert:<name>")
        check_grant(grant)
        with await self._admission.admit(call, tenant, "put_grant") as admitted:
            self._admission.check_may_grant(call, admitted, "put_grant", grant)
            await self._shard.submit(PutGrant(admitted.state, admitted.caller, principal, grant))
            return _grant_item(self._shard.state.access, admitted.tenant, principal, grant)

    async def delete_grant(self, call: Call, tenant: str | None, principal: str) -> None:
        check_field("principal", principal, limits.PrincipalName)
        with await self._admission.admit(call, tenant, "delete_grant") as admitted:
            await self._shard.submit(DropGrant(admitted.state, admitted.caller, principal))

    async def review_grant(self, call: Call, tenant: str | None, principal: str) -> GrantItem:
        """Record that a principal's grant was reviewed and is still needed. Raises NotFound."""
        check_field("principal", principal, limits.PrincipalName)
        with await self._admission.admit(call, tenant, "review_grant") as admitted:
            grant, at = await self._shard.submit(ReviewGrant(admitted.state, admitted.caller, principal))
            return GrantItem(principal=principal, **msgspec.structs.asdict(grant), reviewed_at=at)

    async def list_grants(self, call: Call, tenant: str | None) -> list[GrantItem]:
        with await self._admission.admit(call, tenant, "list_grants") as admitted:
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "list_grants")
            return grant_items(self._shard.state.access, admitted.tenant)

    async def revoke_token(
        self, call: Call, tenant: str | None, *, token_id: str | None, principal: str | None, until: int
    ) -> None:
        """Revoke JSON web tokens of the tenant before they expire: one by its ID, or all tokens of a principal."""
        for field, value in (("token_id", token_id), ("principal", principal)):
            if value is not None:
                check_field(field, value, limits.PrincipalName)
        if token_id is None and principal is None:
            raise Invalid("token_id, principal: exactly one is required")
        check_field("until", until, limits.WallTime)
        with await self._admission.admit(call, tenant, "revoke_token") as admitted:
            await self._shard.submit(RevokeToken(admitted.state, admitted.caller, token_id, principal, until))

    async def _create_key(self, tenant: str | None, name: str, grant: Grant, caller: Caller) -> CreatedKey:
        new = self._admission.keys.new_key()
        await self._put_key(new.id, new.token_hash, tenant, name, grant, caller)
        return CreatedKey(key_id=new.id, secret=new.secret, token=new.token)

    async def _put_key(self, id: str, hash: bytes, tenant: str | None, name: str, grant: Grant, caller: Caller) -> None:
        key = StoredKey(
            id=id, tenant=tenant, name=name, grant=grant, token_hash=hash,
            created_at=self._shard.state.wall_ms(), created_by=caller.principal,
        )  # fmt: skip
        await self._shard.submit(PutKey(self._shard.owner(tenant), caller, key))


def key_items(shard: Shard, admission: Admission, owner_id: int) -> list[KeyItem]:
    """Return the keys of a tenant, or of the platform, without their secrets."""
    access, last_used = shard.state.access, admission.authenticator.last_used
    items: list[KeyItem] = []
    for id, key in access.keys(owner_id).items():
        use = access.use(id)
        used_at = last_used.get(id, use.last_used_at if use is not None else None)
        items.append(projected(KeyItem, key, key_id=id, **msgspec.structs.asdict(key.grant), last_used_at=used_at))
    return items


def grant_items(access: AccessStore, tenant: str) -> list[GrantItem]:
    """Return the stored grants of a tenant."""
    return [_grant_item(access, tenant, *one) for one in access.grants_in(tenant).items()]


def _grant_item(access: AccessStore, tenant: str, principal: str, grant: Grant) -> GrantItem:
    reviewed_at = access.reviewed_at(tenant, principal)
    return GrantItem(principal=principal, **msgspec.structs.asdict(grant), reviewed_at=reviewed_at)
