"""Backups: create and list."""

from tenantq.domain.validation import build
from tenantq.http.request import Request
from tenantq.service.service import Service
from tenantq.wire.backups import BackupReply, BackupRequest, BackupsReply, BackupTestReply


async def create_backup(service: Service, request: Request, body: BackupRequest) -> BackupReply:
    """Back up the running server."""
    return build(BackupReply, await service.backups.create(request.call, body.name, segments=body.segments))


async def run_restore_test(service: Service, request: Request, _: object) -> BackupTestReply:
    """Restore a backup into a temporary directory and check it."""
    return build(BackupTestReply, await service.backups.test(request.call, request.name))


async def list_backups(service: Service, request: Request, _: object) -> BackupsReply:
    """List backups."""
    return BackupsReply(backups=[build(BackupReply, one) for one in await service.backups.list(request.call)])
