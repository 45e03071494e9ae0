"""Snapshots of queues: open, read, close."""

import msgspec
from msgspec.structs import asdict

from tenantq.domain.limits import PeekSize
from tenantq.domain.validation import projected
from tenantq.http.handlers.messages import page_reply
from tenantq.http.reply import JsonReply
from tenantq.http.request import QueryRequest, Request
from tenantq.service.service import Service
from tenantq.wire.messages import MessageId, PeekReply, SnapshotReply, SnapshotRequest


class SnapshotQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects messages of a snapshot by ID."""

    start: MessageId | None = None  # inclusive
    end: MessageId | None = None  # exclusive
    limit: PeekSize = 100


async def open_snapshot(service: Service, request: Request, body: SnapshotRequest) -> SnapshotReply:
    """Open a snapshot of a queue, to be read in pages."""
    taken = await service.message_reads.open_snapshot(request.call, request.tenant, request.queue, **asdict(body))
    return projected(SnapshotReply, taken, snapshot=taken.id)


async def read_snapshot(service: Service, request: QueryRequest[SnapshotQuery], _: object) -> JsonReply[PeekReply]:
    """Read a page of a snapshot in order of message IDs."""
    place = request.call, request.tenant, request.queue, request.name
    return await page_reply(await service.message_reads.read_snapshot(*place, **asdict(request.query)))


async def close_snapshot(service: Service, request: Request, _: object) -> None:
    """Close a snapshot."""
    await service.message_reads.close_snapshot(request.call, request.tenant, request.queue, request.name)
