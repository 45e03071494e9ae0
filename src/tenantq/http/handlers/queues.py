"""Queues: create, change, list, pause, purge, delete, redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.domain.limits import ExportId, WallTime
from tenantq.domain.validation import all_fields
from tenantq.engine.ops.redrive import RedriveFilter
from tenantq.http.handlers.tenants import suspension_item
from tenantq.http.reply import Reply, json_reply
from tenantq.wire.exports import ImportReply, ImportRequest
from tenantq.wire.queues import PurgeReply, QueueReply, QueuesReply, RedriveReply, RedriveRequest

if TYPE_CHECKING:
    from tenantq.http.query import PageQuery
    from tenantq.http.request import Request
    from tenantq.service import QueueInfo, Service
    from tenantq.service.redrives import RedriveInfo
    from tenantq.wire.acts import DestroyRequest, SuspendRequest


async def put_queue(service: Service, request: Request, body: dict[str, Any]) -> Reply:
    """Create a queue, or change the given settings."""
    created, queue = await service.queues.put(request.call, request.tenant, request.queue, body)
    return json_reply(_queue(queue), 201 if created else 200)


async def get_queue(service: Service, request: Request, _: object) -> Reply:
    """Get a queue's settings and figures."""
    return json_reply(_queue(await service.queues.get(request.call, request.tenant, request.queue)))


async def list_queues(service: Service, request: Request, _: object) -> Reply:
    """List a tenant's queues by name."""
    query: PageQuery = request.query
    queues = await service.queues.list(request.call, request.tenant, after=query.cursor, limit=query.limit)
    cursor = queues[-1].name if len(queues) == query.limit else None
    return json_reply(QueuesReply(queues=[_queue(one) for one in queues], cursor=cursor))


async def import_part(service: Service, request: Request, body: ImportRequest) -> Reply:
    """Import one part of an export."""
    taken = await service.exports.import_part(
        request.call,
        request.tenant,
        request.queue,
        export=body.export,
        part=body.part,
        messages=body.messages,
        results=body.results,
        idempotency=body.idempotency,
    )
    return json_reply(ImportReply(**msgspec.structs.asdict(taken)))


class DigestQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects what the digest covers."""

    at: WallTime | None = None  # only messages that do not expire until then; default: now
    export: ExportId | None = None  # also return how many parts of this export were imported


async def digest(service: Service, request: Request, _: object) -> Reply:
    """Get a digest of a queue's content, to compare two servers."""
    query: DigestQuery = request.query
    return json_reply(
        await service.exports.digest(request.call, request.tenant, request.queue, at=query.at, export=query.export)
    )


async def suspend_queue(service: Service, request: Request, body: SuspendRequest) -> Reply:
    """Suspend a queue: refuse adds and polls."""
    assert request.tenant is not None, "the route has the tenant in its path"
    return json_reply(
        _queue(await service.queues.suspend(request.call, request.tenant, request.queue, body.reason, body.mode))
    )


async def reopen_queue(service: Service, request: Request, _: object) -> Reply:
    """Resume a suspended queue."""
    assert request.tenant is not None, "the route has the tenant in its path"
    return json_reply(_queue(await service.queues.unsuspend(request.call, request.tenant, request.queue)))


async def pause_queue(service: Service, request: Request, _: object) -> Reply:
    """Pause deliveries. Adds continue."""
    return json_reply(_queue(await service.queues.pause(request.call, request.tenant, request.queue)))


async def resume_queue(service: Service, request: Request, _: object) -> Reply:
    """Resume deliveries."""
    return json_reply(_queue(await service.queues.resume(request.call, request.tenant, request.queue)))


async def delete_queue(service: Service, request: Request, body: DestroyRequest) -> Reply:
    """Delete a queue once its leases have settled."""
    await service.queues.delete(
        request.call, request.tenant, request.queue, confirm=body.confirm, reason=body.reason, force=body.force
    )
    return Reply(b"{}", 202)


async def purge(service: Service, request: Request, body: DestroyRequest) -> Reply:
    """Delete all messages of a queue."""
    purged = await service.queues.purge(
        request.call, request.tenant, request.queue, confirm=body.confirm, reason=body.reason
    )
    return json_reply(PurgeReply(purged=purged))


async def redrive(service: Service, request: Request, body: RedriveRequest) -> Reply:
    """Move dead letters back to the queues they came from."""
    wanted = body.filter
    ids = frozenset(wanted.ids) if wanted.ids is not None else None
    task = await service.redrives.start(
        request.call,
        request.tenant,
        request.queue,
        filter=RedriveFilter(source=wanted.source, reason=wanted.reason, ids=ids, limit=wanted.limit),
        rate=body.rate,
        dry_run=body.dry_run,
    )
    return json_reply(_redrive(task))


async def redrive_status(service: Service, request: Request, _: object) -> Reply:
    """Get the progress of a redrive."""
    return json_reply(_redrive(await service.redrives.get(request.call, request.tenant, request.queue, request.name)))


async def cancel_redrive(service: Service, request: Request, _: object) -> Reply:
    """Cancel a redrive. Messages already moved stay moved."""
    return json_reply(
        _redrive(await service.redrives.cancel(request.call, request.tenant, request.queue, request.name))
    )


def _queue(queue: QueueInfo) -> QueueReply:
    figures = {field: getattr(queue.stats, field) for field in queue.stats.__struct_fields__}
    return QueueReply(
        name=queue.name, id=queue.id, tenant=queue.tenant, config=all_fields(queue.config),
        suspension=suspension_item(queue.suspension), **figures,
    )  # fmt: skip


def _redrive(task: RedriveInfo) -> RedriveReply:
    return RedriveReply(
        task=task.id, state=task.state, moved=task.moved, skipped=task.skipped, dry_run=task.dry_run, reason=task.reason
    )
