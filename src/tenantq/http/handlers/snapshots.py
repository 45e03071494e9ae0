"""Snapshots of queues: open, read, close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq.domain.limits import PeekSize
from tenantq.http.handlers.messages import page_reply
from tenantq.http.reply import NO_CONTENT, Reply, json_reply
from tenantq.wire.messages import MessageId, SnapshotReply, SnapshotRequest

if TYPE_CHECKING:
    from tenantq.http.request import Request
    from tenantq.service import Service


class SnapshotQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects messages of a snapshot by ID."""

    start: MessageId | None = None  # inclusive
    end: MessageId | None = None  # exclusive
    limit: PeekSize = 100


async def open_snapshot(service: Service, request: Request, body: SnapshotRequest) -> Reply:
    """Open a snapshot of a queue, to be read in pages."""
    taken = await service.message_reads.open_snapshot(
        request.call, request.tenant, request.queue, keep_ms=body.keep_ms, part_messages=body.part_messages
    )
    reply = SnapshotReply(
        snapshot=taken.id, taken_at=taken.taken_at, messages=taken.messages, bytes=taken.bytes, parts=taken.parts
    )
    return json_reply(reply, 201)


async def read_snapshot(service: Service, request: Request, _: object) -> Reply:
    """Read a page of a snapshot in order of message IDs."""
    query: SnapshotQuery = request.query
    page = await service.message_reads.read_snapshot(
        request.call,
        request.tenant,
        request.queue,
        request.name,
        start=query.start,
        end=query.end,
        limit=query.limit,
    )
    return await page_reply(page)


async def close_snapshot(service: Service, request: Request, _: object) -> Reply:
    """Close a snapshot."""
    await service.message_reads.close_snapshot(request.call, request.tenant, request.queue, request.name)
    return NO_CONTENT
