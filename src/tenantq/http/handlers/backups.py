"""Backups: create and list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.domain.validation import build
from tenantq.http.reply import Reply, json_reply
from tenantq.wire.backups import BackupReply, BackupRequest, BackupsReply

if TYPE_CHECKING:
    from tenantq.http.request import Request
    from tenantq.service import Service


async def create_backup(service: Service, request: Request, body: BackupRequest) -> Reply:
    """Back up the running server."""
    made = await service.backups.create(request.call, body.name, segments=body.segments)
    return json_reply(build(BackupReply, made), 201)


async def list_backups(service: Service, request: Request, _: object) -> Reply:
    """List backups."""
    backups = [build(BackupReply, one) for one in await service.backups.list(request.call)]
    return json_reply(BackupsReply(backups=backups))
