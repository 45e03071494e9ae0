"""Tenants: make, change, list, suspend, delete; usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenantq.domain.names import QueueName
from tenantq.domain.validation import all_fields
from tenantq.http.handlers.page_query import PageQuery
from tenantq.http.reply import BYTES, Reply, Stream, json_reply
from tenantq.wire.acts import DestroyRequest, ReasonRequest, SuspendRequest, SuspensionItem
from tenantq.wire.tenants import HoldItem, TenantReply, TenantsReply

if TYPE_CHECKING:
    from tenantq.engine.queue_state import Suspension
    from tenantq.http.request import Request
    from tenantq.service import Service, TenantInfo


class TenantsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Which page of tenants, and what of each."""

    figures: Literal["true", "false"] = "false"  # with what each has and does now


async def put_tenant(service: Service, request: Request, body: dict[str, Any]) -> Reply:
    """Make a tenant or change it."""
    created, tenant = await service.tenants.put(request.call, _named(request), body)
    return json_reply(_tenant(tenant), 201 if created else 200)


async def get_tenant(service: Service, request: Request, _: object) -> Reply:
    """Tell how a tenant is configured."""
    return json_reply(_tenant(await service.tenants.get(request.call, request.tenant)))


async def list_tenants(service: Service, request: Request, _: object) -> Reply:
    """Tell all tenants, by name."""
    query: TenantsQuery = request.query
    tenants = await service.tenants.list(
        request.call, after=query.cursor, limit=query.limit, figures=query.figures == "true"
    )
    cursor = tenants[-1].name if len(tenants) == query.limit else None
    return json_reply(TenantsReply(tenants=[_tenant(one) for one in tenants], cursor=cursor))


async def suspend_tenant(service: Service, request: Request, body: SuspendRequest) -> Reply:
    """Stop a tenant's work."""
    return json_reply(_tenant(await service.tenants.suspend(request.call, _named(request), body.reason, body.mode)))


async def resume_tenant(service: Service, request: Request, _: object) -> Reply:
    """Let a suspended tenant work again."""
    return json_reply(_tenant(await service.tenants.resume(request.call, _named(request))))


async def hold_tenant(service: Service, request: Request, body: ReasonRequest) -> Reply:
    """Put a tenant under legal hold."""
    return json_reply(_tenant(await service.legal_holds.place(request.call, _named(request), body.reason)))


async def release_hold(service: Service, request: Request, body: ReasonRequest) -> Reply:
    """Take a tenant out of legal hold."""
    return json_reply(_tenant(await service.legal_holds.release(request.call, _named(request), body.reason)))


async def delete_tenant(service: Service, request: Request, body: DestroyRequest) -> Reply:
    """Delete a tenant and everything it has; tell what was erased."""
    return json_reply(
        await service.erasures.delete_tenant(request.call, _named(request), confirm=body.confirm, reason=body.reason)
    )


async def list_erasures(service: Service, request: Request, _: object) -> Reply:
    """Tell all tenants that were erased."""
    return json_reply({"erasures": await service.erasures.list(request.call)})


async def get_erasure(service: Service, request: Request, _: object) -> Reply:
    """Give the certificate of one erasure."""
    return json_reply(await service.erasures.get(request.call, request.name))


async def get_encryption(service: Service, request: Request, _: object) -> Reply:
    """Tell how a tenant is encrypted."""
    return json_reply(await service.encryption.get(request.call, request.tenant))


async def rotate_keys(service: Service, request: Request, _: object) -> Reply:
    """Make a new data key."""
    return json_reply(await service.encryption.rotate(request.call, request.tenant))


async def rewrap_keys(service: Service, request: Request, _: object) -> Reply:
    """Wrap all data keys anew."""
    return json_reply(await service.encryption.rewrap(request.call, request.tenant))


class ExportQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of what."""

    queue: QueueName | None = None  # this one alone, without keys, grants and audit trail; none: everything


async def export(service: Service, request: Request, _: object) -> Stream:
    """Send everything that a tenant has, or one queue of it."""
    query: ExportQuery = request.query
    exporting = await service.exports.export(request.call, request.tenant, query.queue)
    name = f'Content-Disposition: attachment; filename="{exporting.tenant}.tar"\r\n'.encode()
    return Stream(exporting, BYTES, name)


async def usage(service: Service, request: Request, _: object) -> Reply:
    """Tell a tenant's quotas against its usage."""
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
    """Return what is told of a suspension."""
    return msgspec.convert(found, SuspensionItem | None, from_attributes=True)
