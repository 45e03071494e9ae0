"""Templates of a tenant or of the platform: list, put, delete, apply."""

from msgspec.structs import asdict

from tenantq.domain.template import Template
from tenantq.domain.validation import projected
from tenantq.http.reply import JsonReply, json_reply
from tenantq.http.request import Request
from tenantq.service.service import Service
from tenantq.wire.templates import AppliedReply, ApplyTemplateRequest, TemplateItem, TemplatesReply


async def list_templates(service: Service, request: Request, _: object) -> TemplatesReply:
    """List the templates that a tenant may use."""
    return TemplatesReply(templates=[*await service.templates.list(request.call, request.tenant)])


async def list_platform_templates(service: Service, request: Request, _: object) -> TemplatesReply:
    """List all templates."""
    return TemplatesReply(templates=[*await service.templates.list(request.call, "")])


async def put_template(service: Service, request: Request, body: Template) -> JsonReply[TemplateItem]:
    """Create or replace a template, and share it."""
    return await _put(service, request, request.tenant or "", body)


async def put_platform_template(service: Service, request: Request, body: Template) -> JsonReply[TemplateItem]:
    """Create or replace a template of the platform, and share it."""
    return await _put(service, request, "", body)


async def _put(service: Service, request: Request, owner: str, body: Template) -> JsonReply[TemplateItem]:
    created = await service.templates.put(request.call, owner, request.name, body)
    item = projected(TemplateItem, body, name=request.name, owner=owner)
    return json_reply(item, 201 if created else 200)


async def delete_template(service: Service, request: Request, _: object) -> None:
    """Delete a template. What was created from it stays."""
    await service.templates.delete(request.call, request.tenant, request.name)


async def delete_platform_template(service: Service, request: Request, _: object) -> None:
    """Delete a template of the platform."""
    await service.templates.delete(request.call, "", request.name)


async def apply_template(service: Service, request: Request, body: ApplyTemplateRequest) -> AppliedReply:
    """Apply a template to a tenant, queue by queue."""
    applied = await service.templates.apply(request.call, request.tenant, request.name, **asdict(body))
    return AppliedReply(results=[*applied])
