"""Queues: create, change, list, pause, purge, delete, redrive."""

from typing import Any

import msgspec
from msgspec.structs import asdict

from tenantq.domain.limits import ExportId, WallTime
from tenantq.domain.validation import all_fields, projected
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.http.handlers.tenants import named_tenant, suspension_item
from tenantq.http.query import PageQuery
from tenantq.http.reply import JsonReply, json_reply
from tenantq.http.request import QueryRequest, Request
from tenantq.http.route import Empty
from tenantq.service.call import QueueInfo
from tenantq.service.redrives import RedriveInfo
from tenantq.service.service import Service
from tenantq.wire import queues as wire
from tenantq.wire.exports import ImportReply, ImportRequest
from tenantq.wire.lifecycle import DestroyRequest, SuspendRequest


async def put_queue(service: Service, request: Request, body: dict[str, Any]) -> JsonReply[wire.QueueReply]:
    """Create a queue, or change the given settings."""
    created, queue = await service.queues.put(request.call, request.tenant, request.queue, body)
    return json_reply(_queue(queue), 201 if created else 200)


async def get_queue(service: Service, request: Request, _: object) -> wire.QueueReply:
    """Get a queue's settings and figures."""
    return _queue(await service.queues.get(request.call, request.tenant, request.queue))


async def list_queues(service: Service, request: QueryRequest[PageQuery], _: object) -> wire.QueuesReply:
    """List a tenant's queues by name."""
    after, limit = request.query.cursor, request.query.limit
    queues = await service.queues.list(request.call, request.tenant, after=after, limit=limit)
    cursor = queues[-1].name if len(queues) == limit else None
    return wire.QueuesReply(queues=[_queue(one) for one in queues], cursor=cursor)


async def list_workers(service: Service, request: Request, _: object) -> wire.WorkersReply:
    """List the workers that poll a tenant's queues."""
    found = await service.queues.workers(request.call, request.tenant)
    return wire.WorkersReply(workers=[projected(wire.WorkerItem, one) for one in found])


async def import_part(service: Service, request: Request, body: ImportRequest) -> ImportReply:
    """Import one part of an export."""
    taken = await service.exports.import_part(request.call, request.tenant, request.queue, **asdict(body))
    return ImportReply(**asdict(taken))


class DigestQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects what the digest covers."""

    at: WallTime | None = None  # only messages that do not expire until then; default: now
    export: ExportId | None = None  # also return how many parts of this export were imported


async def digest(service: Service, request: QueryRequest[DigestQuery], _: object) -> wire.DigestReply:
    """Get a digest of a queue's content, to compare two servers."""
    return await service.exports.digest(request.call, request.tenant, request.queue, **asdict(request.query))


async def suspend_queue(service: Service, request: Request, body: SuspendRequest) -> wire.QueueReply:
    """Suspend a queue: refuse adds and polls."""
    found = await service.queues.suspend(request.call, named_tenant(request), request.queue, body.reason, body.mode)
    return _queue(found)


async def reopen_queue(service: Service, request: Request, _: object) -> wire.QueueReply:
    """Resume a suspended queue."""
    return _queue(await service.queues.resume(request.call, named_tenant(request), request.queue))


async def pause_queue(service: Service, request: Request, _: object) -> wire.QueueReply:
    """Pause deliveries. Adds continue."""
    return _queue(await service.queues.pause(request.call, request.tenant, request.queue))


async def resume_queue(service: Service, request: Request, _: object) -> wire.QueueReply:
    """Resume deliveries."""
    return _queue(await service.queues.unpause(request.call, request.tenant, request.queue))


async def delete_queue(service: Service, request: Request, body: DestroyRequest) -> Empty:
    """Delete a queue once its leases have settled."""
    await service.queues.delete(request.call, request.tenant, request.queue, **asdict(body))
    return Empty()


async def purge(service: Service, request: Request, body: DestroyRequest) -> wire.PurgeReply:
    """Delete all messages of a queue."""
    place = request.call, request.tenant, request.queue
    return wire.PurgeReply(purged=await service.queues.purge(*place, confirm=body.confirm, reason=body.reason))


async def redrive(service: Service, request: Request, body: wire.RedriveRequest) -> wire.RedriveReply:
    """Move dead letters back to the queues they came from."""
    wanted = body.filter
    ids = frozenset(wanted.ids) if wanted.ids is not None else None
    filter, place = projected(RedriveFilter, wanted, ids=ids), (request.call, request.tenant, request.queue)
    return _redrive(await service.redrives.start(*place, filter=filter, rate=body.rate, dry_run=body.dry_run))


async def redrive_status(service: Service, request: Request, _: object) -> wire.RedriveReply:
    """Get the progress of a redrive."""
    return _redrive(await service.redrives.get(request.call, request.tenant, request.queue, request.name))


async def cancel_redrive(service: Service, request: Request, _: object) -> wire.RedriveReply:
    """Cancel a redrive. Messages already moved stay moved."""
    return _redrive(await service.redrives.cancel(request.call, request.tenant, request.queue, request.name))


def _queue(queue: QueueInfo) -> wire.QueueReply:
    return projected(
        wire.QueueReply, queue.stats, name=queue.name, id=queue.id, tenant=queue.tenant, config=all_fields(queue.config),
        suspension=suspension_item(queue.suspension),
    )  # fmt: skip


def _redrive(task: RedriveInfo) -> wire.RedriveReply:
    return projected(wire.RedriveReply, task, task=task.id)
