"""Keys, grants and revocations of a tenant, and the platform's own keys."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.access import Grant
from tenantq.domain.validation import build
from tenantq.http.reply import JsonReply, json_reply
from tenantq.http.request import Request
from tenantq.service.service import Service
from tenantq.wire import access as wire

NEVER_STORED: Final = b"Cache-Control: no-store\r\n"  # the reply contains a secret


async def whoami(service: Service, request: Request, _: object) -> wire.WhoAmIReply:
    """Describe the credential of this request."""
    found = await service.access.log_in(request.call)
    grants = [wire.CredentialGrant(**msgspec.structs.asdict(grant)) for grant in found.grants]
    return wire.WhoAmIReply(principal=found.id, tenant=found.tenant, grants=grants, expires_at=found.expires_at)


async def create_key(service: Service, request: Request, body: wire.CreateKeyRequest) -> JsonReply[wire.CreatedKey]:
    """Create an API key. Its secret is shown only once."""
    key = await service.access.create_key(request.call, request.tenant, body.name, _grant(body))
    return json_reply(key, 201, NEVER_STORED)


async def list_keys(service: Service, request: Request, _: object) -> wire.KeysReply:
    """List a tenant's API keys, without secrets."""
    return wire.KeysReply(keys=await service.access.list_keys(request.call, request.tenant))


async def revoke_key(service: Service, request: Request, _: object) -> None:
    """Revoke an API key."""
    await service.access.revoke_key(request.call, request.tenant, request.name)


async def create_platform_key(
    service: Service, request: Request, body: wire.CreatePlatformKeyRequest
) -> JsonReply[wire.CreatedKey]:
    """Create a platform API key."""
    key = await service.access.create_platform_key(request.call, body.name, _grant(body))
    return json_reply(key, 201, NEVER_STORED)


async def list_platform_keys(service: Service, request: Request, _: object) -> wire.KeysReply:
    """List the platform's API keys, without secrets."""
    return wire.KeysReply(keys=await service.access.list_platform_keys(request.call))


async def revoke_platform_key(service: Service, request: Request, _: object) -> None:
    """Revoke a platform API key."""
    await service.access.revoke_platform_key(request.call, request.name)


async def put_grant(service: Service, request: Request, body: wire.GrantRequest) -> wire.GrantItem:
    """Set a principal's grant."""
    return await service.access.put_grant(request.call, request.tenant, request.name, _grant(body))


async def delete_grant(service: Service, request: Request, _: object) -> None:
    """Delete a principal's grant."""
    await service.access.delete_grant(request.call, request.tenant, request.name)


async def review_grant(service: Service, request: Request, _: object) -> wire.GrantItem:
    """Record that a principal's grant was reviewed."""
    return await service.access.review_grant(request.call, request.tenant, request.name)


async def list_grants(service: Service, request: Request, _: object) -> wire.GrantsReply:
    """List a tenant's grants."""
    return wire.GrantsReply(grants=await service.access.list_grants(request.call, request.tenant))


async def revoke_token(service: Service, request: Request, body: wire.RevokeTokenRequest) -> None:
    """Revoke JSON web tokens before they expire."""
    await service.access.revoke_token(request.call, request.tenant, **msgspec.structs.asdict(body))


def _grant(body: wire.CreateKeyRequest | wire.CreatePlatformKeyRequest | wire.GrantRequest) -> Grant:
    return build(Grant, body)
