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

_NEVER_STORED: Final = b"Cache-Control: no-store\r\n"  # the reply contains a secret


async def create_key(service: Service, request: Request, body: CreateKeyRequest) -> Reply:
    """Create an API key. Its secret is shown only once."""
    key = await service.access.create_key(request.call, request.tenant, body.name, _grant(body))
    return json_reply(key, 201, _NEVER_STORED)


async def list_keys(service: Service, request: Request, _: object) -> Reply:
    """List a tenant's API keys, without secrets."""
    return json_reply(KeysReply(keys=await service.access.list_keys(request.call, request.tenant)))


async def revoke_key(service: Service, request: Request, _: object) -> Reply:
    """Revoke an API key."""
    await service.access.revoke_key(request.call, request.tenant, request.name)
    return NO_CONTENT


async def create_platform_key(service: Service, request: Request, body: CreatePlatformKeyRequest) -> Reply:
    """Create a platform API key."""
    return json_reply(
        await service.access.create_platform_key(request.call, body.name, _grant(body)), 201, _NEVER_STORED
    )


async def list_platform_keys(service: Service, request: Request, _: object) -> Reply:
    """List the platform's API keys, without secrets."""
    return json_reply(KeysReply(keys=await service.access.list_platform_keys(request.call)))


async def revoke_platform_key(service: Service, request: Request, _: object) -> Reply:
    """Revoke a platform API key."""
    await service.access.revoke_platform_key(request.call, request.name)
    return NO_CONTENT


async def put_grant(service: Service, request: Request, body: GrantRequest) -> Reply:
    """Set a principal's grant."""
    grant = _grant(body)
    await service.access.put_grant(request.call, request.tenant, request.name, grant)
    return json_reply(GrantItem(principal=request.name, **msgspec.structs.asdict(grant)))


async def delete_grant(service: Service, request: Request, _: object) -> Reply:
    """Delete a principal's grant."""
    await service.access.delete_grant(request.call, request.tenant, request.name)
    return NO_CONTENT


async def list_grants(service: Service, request: Request, _: object) -> Reply:
    """List a tenant's grants."""
    return json_reply(GrantsReply(grants=await service.access.list_grants(request.call, request.tenant)))


async def revoke_token(service: Service, request: Request, body: RevokeTokenRequest) -> Reply:
    """Revoke JSON web tokens before they expire."""
    await service.access.revoke_token(
        request.call, request.tenant, token_id=body.token_id, principal=body.principal, until=body.until
    )
    return NO_CONTENT


def _grant(body: CreateKeyRequest | CreatePlatformKeyRequest | GrantRequest) -> Grant:
    return build(Grant, body)
