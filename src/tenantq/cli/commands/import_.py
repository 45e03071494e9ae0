"""``tenantq import``: create a tenant from an export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.export_file import ExportFile
from tenantq.cli.output import Output
from tenantq.cli.progress import byte_bar
from tenantq.client import Tenant
from tenantq.domain.access import can_be_granted_to
from tenantq.domain.formatting import plural
from tenantq.errors import Invalid, NotFound
from tenantq.runtime.clock import SystemClock
from tenantq.wire.access import GrantItem
from tenantq.wire.exports import (
    ExportedFile,
    ExportedKey,
    ExportedMessage,
    ExportedQueue,
    ExportedResult,
    ExportedTenant,
    ImportRequest,
)

_S = TypeVar("_S", bound=msgspec.Struct)
_NOT_MOVED: Final = ("encryption", "plan")  # the other server has its own keys and plans
_REMARKS: Final = {
    "duplicate_parts": "parts were already imported",
    "there": "messages already existed",
    "expired": "messages and results have expired since the export",
}


@server_command(name="import")
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option("--as", "new_name", metavar="NAME", help="Name of the tenant to import into.  [default: as exported]")
def import_(connection: ServerConnection, *, file: Path, new_name: str | None) -> Output:
    """Import a file or directory written by 'tenantq export'.

    The whole export is checked before anything is sent. An interrupted import can be repeated: parts that were already
    imported are skipped. A missing tenant is created with the exported settings; an existing tenant keeps its own.

    \b
    tenantq import acme.tar --as acme-2
    """
    with ExportFile(file) as export, byte_bar() as bar:
        export.verify(lambda done, total: bar("verifying", done, total))
        tenant = new_name or export.manifest.tenant
        counts = _import(connection, export, tenant, bar)
    imported = (plural(counts[f"{noun}s"], noun) for noun in ("queue", "message", "result", "grant"))
    return Output(
        {"tenant": tenant, "export": export.manifest.export, **counts},
        f"imported {file} into {tenant}: {', '.join(imported)}",
        *(f"{counts[what]:,} {text}" for what, text in _REMARKS.items() if counts[what]),
    )


def _import(
    connection: ServerConnection, export: ExportFile, name: str, bar: Callable[[str, int, int], None]
) -> dict[str, int]:
    files = export.manifest.files
    tenant = connection.client.tenant(name)
    _make_tenant(tenant, export)
    counts = dict.fromkeys(("queues", "messages", "results", "grants", "there", "expired", "duplicate_parts"), 0)
    queues = [queue for file in files if file.kind == "queues" for queue in _lines(export, file, ExportedQueue)]
    there = {queue.name for queue in tenant.queues()}
    for queue in queues:
        if queue.name not in there:
            tenant.queue(queue.name).configure(**queue.config)
            counts["queues"] += 1
    total, done = sum(file.size for file in files), 0
    for file in files:
        if file.kind in {"messages", "results", "idempotency"}:
            _import_part(tenant, export, file, counts)
        elif file.kind == "grants":
            counts["grants"] += _import_grants(tenant, _lines(export, file, GrantItem))
        done += file.size
        bar("importing", done, total)
    for queue in queues:
        if queue.name not in there and queue.status == "paused":
            tenant.queue(queue.name).pause()
    return counts


def _make_tenant(tenant: Tenant, export: ExportFile) -> None:
    (file,) = (file for file in export.manifest.files if file.kind == "tenant")
    (exported,) = _lines(export, file, ExportedTenant)
    try:
        tenant.get()
    except NotFound:
        config = {name: value for name, value in exported.config.items() if name not in _NOT_MOVED}
        tenant.configure(**config, plan=None)
        if exported.hold is not None:
            tenant.hold(exported.hold.reason)


def _import_part(tenant: Tenant, export: ExportFile, file: ExportedFile, counts: dict[str, int]) -> None:
    if file.queue is None:
        raise Invalid(f"{export.path}: {file.name} does not belong to any queue")
    kind = {"messages": ExportedMessage, "results": ExportedResult, "idempotency": ExportedKey}[file.kind]
    lines: dict[str, Any] = {file.kind: _lines(export, file, kind)}
    part = ImportRequest(export=export.manifest.export, part=file.part, **lines)
    reply = tenant.import_part(file.queue, part)
    counts["duplicate_parts"] += reply.duplicate
    for name in ("messages", "results", "there", "expired"):
        counts[name] += getattr(reply, name)


def _import_grants(tenant: Tenant, grants: list[GrantItem]) -> int:
    known = {grant.principal for grant in tenant.grants()}
    now = SystemClock().wall_ms()
    new = [one for one in grants if one.principal not in known and can_be_granted_to(one.principal)]
    new = [one for one in new if one.expires_at is None or one.expires_at > now]
    for grant in new:
        fields = msgspec.structs.asdict(grant)
        del fields["reviewed_at"]  # a new grant counts as reviewed when it is created
        tenant.grant(**fields)
    return len(new)


def _lines(export: ExportFile, file: ExportedFile, kind: type[_S]) -> list[_S]:
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    try:
        return [decode(line) for line in export.read(file)]
    except msgspec.MsgspecError as error:
        raise Invalid(f"{export.path}: {file.name}: {error}") from error
