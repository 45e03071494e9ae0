"""Backups: make one, list them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.http.reply import Reply, json_reply
from tenantq.wire import BackupReply, BackupRequest, BackupsReply

if TYPE_CHECKING:
    from tenantq.http.request import Request
    from tenantq.service import Service


async def create_backup(service: Service, request: Request, body: BackupRequest) -> Reply:
    """Back the server up while it works."""
    made = await service.backups.create(request.call, body.name, segments=body.segments)
    reply = BackupReply(
        name=made.name,
        created_at=made.created_at,
        last_seq=made.last_seq,
        size=made.size,
        segments_upto=made.segments_upto,
        version=made.version,
    )
    return json_reply(reply, 201)


async def list_backups(service: Service, request: Request, _: object) -> Reply:
    """Tell which backups there are."""
    backups = [
        BackupReply(
            name=one.name,
            created_at=one.created_at,
            last_seq=one.last_seq,
            size=one.size,
            segments_upto=one.segments_upto,
            version=one.version,
            error=one.error,
        )
        for one in await service.backups.list(request.call)
    ]
    return json_reply(BackupsReply(backups=backups))
