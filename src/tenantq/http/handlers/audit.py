"""The audit trail: a page as JSON, or all of it as a stream in another format."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Literal

import msgspec

from tenantq.domain.limits import PAGE_MAX, PageSize, PrincipalName
from tenantq.http.reply import JsonReply, Stream, json_reply
from tenantq.http.request import QueryRequest, Request
from tenantq.journal.audit_event import audit_events
from tenantq.journal.audit_formats import AuditFormat, audit_format
from tenantq.service.audit_trail import AuditConditions, AuditPage, AuditQuery
from tenantq.service.service import Service
from tenantq.wire.compliance import ComplianceReply
from tenantq.wire.tenants import AuditReply

_PageReader = Callable[[AuditQuery], Awaitable[AuditPage]]

_NAMES: Final = {"jsonl": b"audit.jsonl", "csv": b"audit.csv", "parquet": b"audit.parquet"}


class AuditParameters(AuditConditions, frozen=True, kw_only=True):
    """Selects rows of the journal. All given conditions must hold."""

    limit: PageSize | None = None  # rows of a JSON page, 100 by default; rows in total for other formats
    format: Literal["json", "jsonl", "csv", "parquet"] = "json"


class PlatformAuditParameters(AuditParameters, frozen=True, kw_only=True):
    """Selects rows of all tenants, or of one."""

    tenant: PrincipalName | None = None


async def audit(service: Service, request: QueryRequest[AuditParameters], _: object) -> JsonReply[AuditReply] | Stream:
    """Query a tenant's audit trail."""
    return await _answer(request.query, lambda query: service.audit.query(request.call, request.tenant, query))


async def compliance(service: Service, request: Request, _: object) -> ComplianceReply:
    """Evaluate a tenant's compliance controls."""
    return await service.compliance.tenant(request.call, request.tenant)


async def compliance_platform(service: Service, request: Request, _: object) -> ComplianceReply:
    """Evaluate the compliance controls of the platform and all tenants."""
    return await service.compliance.platform(request.call)


async def audit_platform(
    service: Service, request: QueryRequest[PlatformAuditParameters], _: object
) -> JsonReply[AuditReply] | Stream:
    """Query the audit trail of all tenants and the platform."""
    return await _answer(request.query, lambda query: service.audit.query_platform(request.call, query))


async def _answer(parameters: AuditParameters, page: _PageReader) -> JsonReply[AuditReply] | Stream:
    fields = msgspec.structs.asdict(parameters)
    format, limit = fields.pop("format"), fields.pop("limit")
    if format == "json":
        found = await page(AuditQuery(**fields, limit=limit or 100))
        return json_reply(AuditReply(rows=audit_events(found.rows), cursor=found.cursor, incomplete=found.incomplete))
    writer = audit_format(format)
    query = AuditQuery(**fields, limit=limit or PAGE_MAX)
    first = await page(query)  # before the status is sent: an error needs its own
    name = b'Content-Disposition: attachment; filename="%b"\r\n' % _NAMES[format]
    return Stream(_parts(writer, page, query, first, limit), writer.content_type.encode(), name)


async def _parts(
    writer: AuditFormat, page: _PageReader, query: AuditQuery, found: AuditPage, limit: int | None
) -> AsyncIterator[bytes]:
    """Yield the file in pieces. Every page is authorized again."""
    left = limit
    yield writer.start()
    while True:
        yield await asyncio.to_thread(writer.add, audit_events(found.rows))
        if left is not None:
            left -= len(found.rows)
        if found.cursor is None or left == 0:
            break
        query = msgspec.structs.replace(query, cursor=found.cursor, limit=left or PAGE_MAX)
        found = await page(query)
    yield await asyncio.to_thread(writer.end)
