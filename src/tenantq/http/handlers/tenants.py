"""Tenants: create, change, list, suspend, delete; usage, encryption, export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenantq.domain.names import QueueName
from tenantq.domain.validation import all_fields
from tenantq.http.query import PageQuery
from tenantq.http.reply import BYTES, Reply, Stream, json_reply
from tenantq.wire.acts import DestroyRequest, ReasonRequest, SuspendRequest, SuspensionItem
from tenantq.wire.tenants import HoldItem, TenantReply, TenantsReply

if TYPE_CHECKING:
    from tenantq.engine.queue_state import Suspension
    from tenantq.http.request import Request
    from tenantq.service import Service, TenantInfo


class TenantsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Selects a page of tenants."""

    figures: Literal["true", "false"] = "false"  # include current figures of each tenant


async def put_tenant(service: Service, request: Request, body: dict[str, Any]) -> Reply:
    """Create a tenant, or change the given settings."""
    created, tenant = await service.tenants.put(request.call, _named(request), body)
    return json_reply(_tenant(tenant), 201 if created else 200)


async def get_tenant(service: Service, request: Request, _: object) -> Reply:
    """Get a tenant."""
    return json_reply(_tenant(await service.tenants.get(request.call, request.tenant)))


async def list_tenants(service: Service, request: Request, _: object) -> Reply:
    """List tenants by name."""
    query: TenantsQuery = request.query
    tenants = await service.tenants.list(
        request.call, after=query.cursor, limit=query.limit, figures=query.figures == "true"
    )
    cursor = tenants[-1].name if len(tenants) == query.limit else None
    return json_reply(TenantsReply(tenants=[_tenant(one) for one in tenants], cursor=cursor))


async def suspend_tenant(service: Service, request: Request, body: SuspendRequest) -> Reply:
    """Suspend a tenant: refuse adds and polls."""
    return json_reply(_tenant(await service.tenants.suspend(request.call, _named(request), body.reason, body.mode)))


async def resume_tenant(service: Service, request: Request, _: object) -> Reply:
    """Resume a suspended tenant."""
    return json_reply(_tenant(await service.tenants.resume(request.call, _named(request))))


async def hold_tenant(service: Service, request: Request, body: ReasonRequest) -> Reply:
    """Put a tenant under legal hold, which prevents deletion."""
    return json_reply(_tenant(await service.legal_holds.place(request.call, _named(request), body.reason)))


async def release_hold(service: Service, request: Request, body: ReasonRequest) -> Reply:
    """Release a tenant from legal hold."""
    return json_reply(_tenant(await service.legal_holds.release(request.call, _named(request), body.reason)))


async def delete_tenant(service: Service, request: Request, body: DestroyRequest) -> Reply:
    """Delete a tenant with all its data, and certify the erasure."""
    return json_reply(
        await service.erasures.delete_tenant(request.call, _named(request), confirm=body.confirm, reason=body.reason)
    )


async def list_erasures(service: Service, request: Request, _: object) -> Reply:
    """List the certificates of erased tenants."""
    return json_reply({"erasures": await service.erasures.list(request.call)})


async def get_erasure(service: Service, request: Request, _: object) -> Reply:
    """Get the certificate of an erasure."""
    return json_reply(await service.erasures.get(request.call, request.name))


async def get_encryption(service: Service, request: Request, _: object) -> Reply:
    """Get a tenant's encryption and data keys."""
    return json_reply(await service.encryption.get(request.call, request.tenant))


async def rotate_keys(service: Service, request: Request, _: object) -> Reply:
    """Create a new data key and encrypt with it from now on."""
    return json_reply(await service.encryption.rotate(request.call, request.tenant))


async def rewrap_keys(service: Service, request: Request, _: object) -> Reply:
    """Rewrap all data keys with the tenant's key, without touching messages."""
    return json_reply(await service.encryption.rewrap(request.call, request.tenant))


class ExportQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects what to export."""

    queue: QueueName | None = None  # only this queue, without keys, grants and audit trail; default: everything


async def export(service: Service, request: Request, _: object) -> Stream:
    """Export a tenant, or one queue, as a tar file of JSON lines."""
    query: ExportQuery = request.query
    exporting = await service.exports.export(request.call, request.tenant, query.queue)
    name = f'Content-Disposition: attachment; filename="{exporting.tenant}.tar"\r\n'.encode()
    return Stream(exporting, BYTES, name)


async def usage(service: Service, request: Request, _: object) -> Reply:
    """Get a tenant's quotas and usage."""
    return json_reply(await service.tenants.usage(request.call, request.tenant))


async def residency(service: Service, request: Request, _: object) -> Reply:
    """Return where a tenant's data is."""
    return json_reply(await service.tenants.residency(request.call, request.tenant))


def _named(request: Request) -> str:
    assert request.tenant is not None, "these routes have the tenant in their path"
    return request.tenant


def _tenant(tenant: TenantInfo) -> TenantReply:
    return TenantReply(
        name=tenant.name,
        id=tenant.id,
        status=tenant.status,
        version=tenant.version,
        config=all_fields(tenant.config),
        hold=msgspec.convert(tenant.hold, HoldItem | None, from_attributes=True),
        suspension=suspension_item(tenant.suspension),
        figures=tenant.figures,
    )


def suspension_item(found: Suspension | None) -> SuspensionItem | None:
    """Return the wire form of a suspension."""
    return msgspec.convert(found, SuspensionItem | None, from_attributes=True)
