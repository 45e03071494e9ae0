"""Keys, grants and revocations of a tenant, and the platform's own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.access import Grant
from tenantq.domain.validation import build
from tenantq.http.reply import NO_CONTENT, Reply, json_reply
from tenantq.wire.access import (
    CreateKeyRequest,
    CreatePlatformKeyRequest,
    GrantItem,
    GrantRequest,
    GrantsReply,
    KeysReply,
    RevokeTokenRequest,
)

if TYPE_CHECKING:
    from tenantq.http.request import Request
    from tenantq.service import Service

_NEVER_STORED: Final = b"Cache-Control: no-store\r\n"  # the reply has a secret in it


async def create_key(service: Service, request: Request, body: CreateKeyRequest) -> Reply:
    """Make an API key; its secret is shown this once."""
    key = await service.access.create_key(request.call, request.tenant, body.name, _grant(body))
    return json_reply(key, 201, _NEVER_STORED)


async def list_keys(service: Service, request: Request, _: object) -> Reply:
    """Tell a tenant's keys, without their secrets."""
    return json_reply(KeysReply(keys=await service.access.list_keys(request.call, request.tenant)))


async def revoke_key(service: Service, request: Request, _: object) -> Reply:
    """Refuse a key from now on."""
    await service.access.revoke_key(request.call, request.tenant, request.name)
    return NO_CONTENT


async def create_platform_key(service: Service, request: Request, body: CreatePlatformKeyRequest) -> Reply:
    """Make an API key of the platform."""
    return json_reply(
        await service.access.create_platform_key(request.call, body.name, _grant(body)), 201, _NEVER_STORED
    )


async def list_platform_keys(service: Service, request: Request, _: object) -> Reply:
    """Tell the platform's keys, without their secrets."""
    return json_reply(KeysReply(keys=await service.access.list_platform_keys(request.call)))


async def revoke_platform_key(service: Service, request: Request, _: object) -> Reply:
    """Refuse a key of the platform from now on."""
    await service.access.revoke_platform_key(request.call, request.name)
    return NO_CONTENT


async def put_grant(service: Service, request: Request, body: GrantRequest) -> Reply:
    """Store what a principal may do in the tenant."""
    grant = _grant(body)
    await service.access.put_grant(request.call, request.tenant, request.name, grant)
    return json_reply(GrantItem(principal=request.name, **msgspec.structs.asdict(grant)))


async def delete_grant(service: Service, request: Request, _: object) -> Reply:
    """Forget what was stored for a principal."""
    await service.access.delete_grant(request.call, request.tenant, request.name)
    return NO_CONTENT


async def list_grants(service: Service, request: Request, _: object) -> Reply:
    """Tell a tenant's stored grants."""
    return json_reply(GrantsReply(grants=await service.access.list_grants(request.call, request.tenant)))


async def revoke_token(service: Service, request: Request, body: RevokeTokenRequest) -> Reply:
    """Refuse a JSON web token, or all of a principal's, from now on."""
    await service.access.revoke_token(
        request.call, request.tenant, token_id=body.token_id, principal=body.principal, until=body.until
    )
    return NO_CONTENT


def _grant(body: CreateKeyRequest | CreatePlatformKeyRequest | GrantRequest) -> Grant:
    return build(Grant, body)
