"""Tenants: create, change, list, suspend, delete; usage, encryption, export."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenantq.domain.names import QueueName
from tenantq.domain.validation import all_fields, build, projected
from tenantq.engine.restrictions import Suspension
from tenantq.http.query import PageQuery
from tenantq.http.reply import BYTES, PROMETHEUS, JsonReply, Reply, Stream, json_reply
from tenantq.http.request import QueryRequest, Request
from tenantq.service.call import TenantInfo
from tenantq.service.service import Service
from tenantq.wire import tenants as wire
from tenantq.wire.alerts import AlertsReply, AlertTestReply, AlertTestRequest, ContainmentItem, ContainmentsReply
from tenantq.wire.erasures import ErasureReply, ErasuresReply
from tenantq.wire.lifecycle import DestroyRequest, ReasonRequest, SuspendRequest, SuspensionItem


class TenantsQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    """Selects a page of tenants."""

    figures: Literal["true", "false"] = "false"  # include current figures of each tenant


async def put_tenant(service: Service, request: Request, body: dict[str, Any]) -> JsonReply[wire.TenantReply]:
    """Create a tenant, or change the given settings."""
    created, tenant = await service.tenants.put(request.call, named_tenant(request), body)
    return json_reply(_tenant(tenant), 201 if created else 200)


async def get_tenant(service: Service, request: Request, _: object) -> wire.TenantReply:
    """Get a tenant."""
    return _tenant(await service.tenants.get(request.call, request.tenant))


async def list_tenants(service: Service, request: QueryRequest[TenantsQuery], _: object) -> wire.TenantsReply:
    """List tenants by name."""
    query, figures = request.query, request.query.figures == "true"
    tenants = await service.tenants.list(request.call, after=query.cursor, limit=query.limit, figures=figures)
    cursor = tenants[-1].name if len(tenants) == query.limit else None
    return wire.TenantsReply(tenants=[_tenant(one) for one in tenants], cursor=cursor)


async def list_alerts(service: Service, request: Request, _: object) -> AlertsReply:
    """List active alerts of the platform and all tenants."""
    return await service.alerts.list(request.call)


async def list_tenant_alerts(service: Service, request: Request, _: object) -> AlertsReply:
    """List active alerts about a tenant."""
    return await service.alerts.list_tenant(request.call, request.tenant)


async def test_alert_target(service: Service, request: Request, body: AlertTestRequest) -> AlertTestReply:
    """Send a test notification to a target."""
    return await service.alerts.test(request.call, body.target)


async def list_containments(service: Service, request: Request, _: object) -> ContainmentsReply:
    """List containments: what the server did because of alerts, or in a dry run would do."""
    return await service.containment.list(request.call)


async def release_containment(service: Service, request: Request, _: object) -> ContainmentItem:
    """Release a containment before it expires."""
    return await service.containment.release(request.call, request.name)


async def list_plans(service: Service, request: Request, _: object) -> wire.PlansReply:
    """List the plans that tenants can get."""
    return await service.tenants.plans(request.call)


async def suspend_tenant(service: Service, request: Request, body: SuspendRequest) -> wire.TenantReply:
    """Suspend a tenant: refuse adds and polls."""
    return _tenant(await service.tenants.suspend(request.call, named_tenant(request), body.reason, body.mode))


async def resume_tenant(service: Service, request: Request, _: object) -> wire.TenantReply:
    """Resume a suspended tenant."""
    return _tenant(await service.tenants.resume(request.call, named_tenant(request)))


async def hold_tenant(service: Service, request: Request, body: ReasonRequest) -> wire.TenantReply:
    """Put a tenant under legal hold, which prevents deletion."""
    return _tenant(await service.legal_holds.place(request.call, named_tenant(request), body.reason))


async def release_hold(service: Service, request: Request, body: ReasonRequest) -> wire.TenantReply:
    """Release a tenant from legal hold."""
    return _tenant(await service.legal_holds.release(request.call, named_tenant(request), body.reason))


async def delete_tenant(service: Service, request: Request, body: DestroyRequest) -> ErasureReply:
    """Delete a tenant with all its data, and certify the erasure."""
    tenant = named_tenant(request)
    erased = await service.erasures.delete_tenant(request.call, tenant, confirm=body.confirm, reason=body.reason)
    return build(ErasureReply, erased)


async def list_erasures(service: Service, request: Request, _: object) -> ErasuresReply:
    """List the certificates of erased tenants."""
    return ErasuresReply(erasures=[build(ErasureReply, one) for one in await service.erasures.list(request.call)])


async def get_erasure(service: Service, request: Request, _: object) -> ErasureReply:
    """Get the certificate of an erasure."""
    return build(ErasureReply, await service.erasures.get(request.call, request.name))


async def get_encryption(service: Service, request: Request, _: object) -> wire.EncryptionReply:
    """Get a tenant's encryption and data keys."""
    return await service.encryption.get(request.call, request.tenant)


async def rotate_keys(service: Service, request: Request, _: object) -> wire.EncryptionReply:
    """Create a new data key and encrypt with it from now on."""
    return await service.encryption.rotate(request.call, request.tenant)


async def rewrap_keys(service: Service, request: Request, _: object) -> wire.EncryptionReply:
    """Rewrap all data keys with the tenant's key, without touching messages."""
    return await service.encryption.rewrap(request.call, request.tenant)


class ExportQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects what to export."""

    queue: QueueName | None = None  # only this queue, without keys, grants and audit trail; default: everything


async def export(service: Service, request: QueryRequest[ExportQuery], _: object) -> Stream:
    """Export a tenant, or one queue, as a tar file of JSON lines."""
    exporting = await service.exports.export(request.call, request.tenant, request.query.queue)
    name = f'Content-Disposition: attachment; filename="{exporting.tenant}.tar"\r\n'.encode()
    return Stream(exporting, BYTES, name)


async def usage(service: Service, request: Request, _: object) -> wire.UsageReply:
    """Get a tenant's quotas and usage."""
    return await service.tenants.usage(request.call, request.tenant)


async def metrics(service: Service, request: Request, _: object) -> Reply:
    """Get a tenant's metrics in the Prometheus format."""
    return Reply(await service.status.tenant_metrics(request.call, request.tenant), 200, PROMETHEUS)


async def residency(service: Service, request: Request, _: object) -> wire.ResidencyReply:
    """Return where a tenant's data is."""
    return await service.tenants.residency(request.call, request.tenant)


def named_tenant(request: Request) -> str:
    """Return the tenant in the path of a request."""
    assert request.tenant is not None, "the route has the tenant in its path"
    return request.tenant


def _tenant(tenant: TenantInfo) -> wire.TenantReply:
    hold = projected(wire.HoldItem, tenant.hold) if tenant.hold is not None else None
    suspension = suspension_item(tenant.suspension)
    return projected(wire.TenantReply, tenant, config=all_fields(tenant.config), hold=hold, suspension=suspension)


def suspension_item(found: Suspension | None) -> SuspensionItem | None:
    """Return the wire form of a suspension."""
    return projected(SuspensionItem, found) if found is not None else None
