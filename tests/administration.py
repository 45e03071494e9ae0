"""Shortcuts that prepare tenants and queues of a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.domain.message import LOCAL, SYSTEM
from tenantq.engine.ops.access import DropGrant, NoteKeyUse, PutGrant, PutKey, RevokeKey, RevokeToken
from tenantq.engine.ops.data_keys import PutDataKey, ReplaceDataKey
from tenantq.engine.ops.hold import HoldTenant, ReleaseHold
from tenantq.engine.ops.lifecycle import DeleteQueue, PauseQueue, Purge, PutQueue, PutTenant, UnpauseQueue
from tenantq.engine.ops.suspension import ResumeTenant, SuspendTenant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenantq.domain.access import Grant, KeyUse, StoredKey
    from tenantq.domain.config import QueueConfig, TenantConfig
    from tenantq.domain.message import Caller
    from tenantq.engine.redrive_task import RedriveTask
    from tenantq.engine.restrictions import SuspensionMode
    from tenantq.engine.shard import Shard


async def put_tenant(shard: Shard, name: str, caller: Caller = LOCAL, /, **changes: Any) -> bool:
    """Create a tenant or change it; return whether it is new."""
    return await shard.submit(PutTenant(shard.state.platform, caller, name, changes))


async def put_queue(shard: Shard, tenant: str, name: str, caller: Caller = LOCAL, /, **changes: Any) -> bool:
    """Create a queue or change it; return whether it is new."""
    return await shard.submit(PutQueue(shard.tenant(tenant), caller, name, changes))


def tenants(shard: Shard) -> dict[str, TenantConfig]:
    """Return all tenants with their configuration."""
    return {name: tenant.config for name, tenant in shard.state.catalog.tenants.items()}


def queues(shard: Shard, tenant: str) -> dict[str, QueueConfig]:
    """Return a tenant's queues with their configuration."""
    return {name: queue.config for name, queue in shard.tenant(tenant).queues.items()}


def usage(shard: Shard, tenant: str) -> dict[str, int]:
    """Return what a tenant uses of each counted quota."""
    return shard.tenant(tenant).usage.used(shard.state.wall_ms())


async def delete_queue(
    shard: Shard, tenant: str, name: str, *, force: bool = False, reason: str = "", caller: Caller = LOCAL
) -> None:
    """Start to delete a queue."""
    await shard.submit(DeleteQueue(shard.tenant(tenant), caller, name, reason, force))


async def pause_queue(shard: Shard, tenant: str, name: str, caller: Caller = LOCAL) -> None:
    """Stop deliveries of a queue."""
    await shard.submit(PauseQueue(shard.tenant(tenant), caller, name))


async def unpause_queue(shard: Shard, tenant: str, name: str, caller: Caller = LOCAL) -> None:
    """Deliver messages of a paused queue again."""
    await shard.submit(UnpauseQueue(shard.tenant(tenant), caller, name))


async def purge(shard: Shard, tenant: str, name: str, *, reason: str = "", caller: Caller = LOCAL) -> int:
    """Empty a queue; return how many messages it had."""
    return await shard.submit(Purge(shard.tenant(tenant), caller, name, reason))


async def finished(shard: Shard, task: RedriveTask) -> None:
    """Wait until a redrive has ended and is durable."""
    await task.ended.wait()
    await shard.loop.synced()


async def suspend_tenant(
    shard: Shard, name: str, *, reason: str = "", mode: SuspensionMode = "settle", caller: Caller = LOCAL
) -> None:
    """Suspend a tenant."""
    await shard.submit(SuspendTenant(shard.state.platform, caller, name, reason, mode))


async def resume_tenant(shard: Shard, name: str, *, reason: str = "", caller: Caller = LOCAL) -> None:
    """End the suspension of a tenant."""
    await shard.submit(ResumeTenant(shard.state.platform, caller, name, reason))


async def hold_tenant(shard: Shard, name: str, *, reason: str, caller: Caller = LOCAL) -> None:
    """Put a tenant under legal hold."""
    await shard.submit(HoldTenant(shard.state.platform, caller, name, reason))


async def release_hold(shard: Shard, name: str, *, reason: str, caller: Caller = LOCAL) -> None:
    """Release a tenant from legal hold."""
    await shard.submit(ReleaseHold(shard.state.platform, caller, name, reason))


async def put_key(shard: Shard, key: StoredKey, caller: Caller = LOCAL) -> None:
    """Store a new API key."""
    await shard.submit(PutKey(shard.owner(key.tenant), caller, key))


async def revoke_key(shard: Shard, tenant: str | None, key_id: str, caller: Caller = LOCAL) -> None:
    """Revoke an API key."""
    await shard.submit(RevokeKey(shard.owner(tenant), caller, key_id))


async def put_grant(shard: Shard, tenant: str, principal: str, grant: Grant, caller: Caller = LOCAL) -> None:
    """Store a grant."""
    await shard.submit(PutGrant(shard.tenant(tenant), caller, principal, grant))


async def delete_grant(shard: Shard, tenant: str, principal: str, caller: Caller = LOCAL) -> None:
    """Delete a grant."""
    await shard.submit(DropGrant(shard.tenant(tenant), caller, principal))


async def revoke_token(
    shard: Shard, tenant: str | None, *, token_id: str | None, principal: str | None, until: int
) -> None:
    """Revoke a JSON web token."""
    await shard.submit(RevokeToken(shard.owner(tenant), LOCAL, token_id, principal, until))


async def note_key_use(shard: Shard, uses: Mapping[str, KeyUse]) -> None:
    """Store when keys were used."""
    await shard.submit(NoteKeyUse(shard.state.platform, SYSTEM, uses))


async def put_data_key(shard: Shard, tenant_id: int, number: int, value: bytes, *, details: str = "") -> bool:
    """Store a wrapped data key; return whether it is new."""
    tenant = shard.state.catalog.tenant_by_id(tenant_id)
    return await shard.submit(PutDataKey(tenant, SYSTEM, number, value, details))


async def replace_data_key(shard: Shard, tenant_id: int, number: int, old: bytes, new: bytes) -> bool:
    """Replace a wrapped data key; return whether ``old`` was stored."""
    tenant = shard.state.catalog.tenant_by_id(tenant_id)
    return await shard.submit(ReplaceDataKey(tenant, SYSTEM, number, old, new))
