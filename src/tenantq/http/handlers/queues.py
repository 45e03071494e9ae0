"""Queues: make, change, list, pause, empty, delete, redrive."""

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
    from tenantq.http.handlers.page_query import PageQuery
    from tenantq.http.request import Request
    from tenantq.service import QueueInfo, Service
    from tenantq.service.redrives import RedriveInfo
    from tenantq.wire.acts import DestroyRequest, SuspendRequest


async def put_queue(service: Service, request: Request, body: dict[str, Any]) -> Reply:
    """Make a queue or change it."""
    created, queue = await service.queues.put(request.call, request.tenant, request.queue, body)
    return json_reply(_queue(queue), 201 if created else 200)


async def get_queue(service: Service, request: Request, _: object) -> Reply:
    """Tell a queue's configuration and figures."""
    return json_reply(_queue(await service.queues.get(request.call, request.tenant, request.queue)))


async def list_queues(service: Service, request: Request, _: object) -> Reply:
    """Tell a tenant's queues, by name."""
    query: PageQuery = request.query
    queues = await service.queues.list(request.call, request.tenant, after=query.cursor, limit=query.limit)
    cursor = queues[-1].name if len(queues) == query.limit else None
    return json_reply(QueuesReply(queues=[_queue(one) for one in queues], cursor=cursor))


async def import_part(service: Service, request: Request, body: ImportRequest) -> Reply:
    """Take in one part of an export."""
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
    """Of what."""

    at: WallTime | None = None  # what lives beyond this; none: beyond now
    export: ExportId | None = None  # also tell how many parts of this export were taken in


async def digest(service: Service, request: Request, _: object) -> Reply:
    """Tell what stands for everything in a queue."""
    query: DigestQuery = request.query
    return json_reply(
        await service.exports.digest(request.call, request.tenant, request.queue, at=query.at, export=query.export)
    )


async def suspend_queue(service: Service, request: Request, body: SuspendRequest) -> Reply:
    """Take and hand out no more of a queue's work."""
    assert request.tenant is not None, "the route has the tenant in its path"
    return json_reply(
        _queue(await service.queues.suspend(request.call, request.tenant, request.queue, body.reason, body.mode))
    )


async def reopen_queue(service: Service, request: Request, _: object) -> Reply:
    """Let a suspended queue work again."""
    assert request.tenant is not None, "the route has the tenant in its path"
    return json_reply(_queue(await service.queues.unsuspend(request.call, request.tenant, request.queue)))


async def pause_queue(service: Service, request: Request, _: object) -> Reply:
    """Stop deliveries."""
    return json_reply(_queue(await service.queues.pause(request.call, request.tenant, request.queue)))


async def resume_queue(service: Service, request: Request, _: object) -> Reply:
    """Deliver again."""
    return json_reply(_queue(await service.queues.resume(request.call, request.tenant, request.queue)))


async def delete_queue(service: Service, request: Request, body: DestroyRequest) -> Reply:
    """Begin to delete a queue."""
    await service.queues.delete(
        request.call, request.tenant, request.queue, confirm=body.confirm, reason=body.reason, force=body.force
    )
    return Reply(b"{}", 202)


async def purge(service: Service, request: Request, body: DestroyRequest) -> Reply:
    """Empty a queue."""
    purged = await service.queues.purge(
        request.call, request.tenant, request.queue, confirm=body.confirm, reason=body.reason
    )
    return json_reply(PurgeReply(purged=purged))


async def redrive(service: Service, request: Request, body: RedriveRequest) -> Reply:
    """Begin to send dead letters back."""
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
    """Tell how far a redrive is."""
    return json_reply(_redrive(await service.redrives.get(request.call, request.tenant, request.queue, request.name)))


async def cancel_redrive(service: Service, request: Request, _: object) -> Reply:
    """Stop a redrive; what was moved stays moved."""
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
