"""``tenantq backup``: create, list, verify and restore backups."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tenantq.backup.manifest import BackupManifest, verify_backup
from tenantq.backup.restore import Restored, parts_of, restore_server
from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.offline_store import segments_option
from tenantq.cli.options import DIRECTORY, FILE
from tenantq.cli.options import data_dir as data_dir_option
from tenantq.cli.output import Columns, Output, list_output, output_command, time_of
from tenantq.cli.progress import byte_bar
from tenantq.domain.formatting import plural
from tenantq.errors import NotFound
from tenantq.journal.export_target import open_target
from tenantq.journal.signing import PublicKey

_key_option = click.option("--public-key", type=FILE, help="Public key of the server, to check the backup's signature.")
_from_option = click.option("--from", "source", type=DIRECTORY, metavar="DIR", required=True, help="Backup directory.")


@click.group(cls=CommandGroup)
def backup() -> None:
    """Manage backups of a server."""


@server_command(backup)
@click.argument("name", required=False)
@click.option("--no-segments", is_flag=True, help="Leave out the exported journal, if it is stored elsewhere.")
def create(connection: ServerConnection, *, name: str | None, no_segments: bool) -> Output:
    """Back up a running server into its backup directory. NAME defaults to the current time.

    Returns when the backup is complete and durable. The server keeps running.
    """
    made = connection.client.create_backup(name, segments=not no_segments)
    return Output(made, f"created backup {made.name}: up to journal record {made.last_seq:,}, {made.size or 0:,} bytes")


@server_command(backup, name="list")
def list_backups(connection: ServerConnection) -> Output:
    """List the backups in the server's backup directory."""
    created = ("created", time_of("created_at"))
    columns: Columns = ["name", created, ("last record", "last_seq"), ("bytes", "size"), ("problem", "error")]
    return list_output("backups", connection.client.backups(), columns)


@server_command(backup)
@click.argument("name", required=False)
def test(connection: ServerConnection, *, name: str | None) -> Output:
    """Restore a backup of a running server into a temporary directory and check it. NAME defaults to the newest.

    \b
    Exit codes:
      0  the backup can be restored
      1  the restore failed
    """
    if name is None:
        complete = [one for one in connection.client.backups() if not one.error]
        if not complete:
            raise NotFound("no backups; create one with 'tenantq backup create'")
        name = max(complete, key=lambda one: one.created_at or 0).name
    found = connection.client.test_backup(name)
    verdict = "restored and checked" if found.ok else f"the restore failed: {found.text}"
    return Output(found, f"{name}: {verdict}", code=exit_codes.OK if found.ok else exit_codes.ERROR)


@output_command(backup)
@_from_option
@_key_option
def verify(source: Path, public_key: Path | None) -> Output:
    """Verify every file of a backup against its hash, and that no journal record is missing, offline."""
    key = PublicKey.load(public_key) if public_key is not None else None
    with byte_bar() as bar:
        parts = parts_of(source)
        manifests = [verify_backup(part, key, lambda done, total: bar("verifying", done, total)) for part in parts]
    files, size = sum(len(one.files) for one in manifests), sum(one.size for one in manifests)
    of_shards = f" of {len(parts)} shards" if len(parts) > 1 else ""
    return Output(
        {**_facts(manifests[0]), "files": files, "size": size, "signature_checked": key is not None},
        f"{source}: {files:,} files{of_shards}, {size:,} bytes, all hashes match",
        *(_journal_line(one, several=len(parts) > 1) for one in manifests),
    )


@output_command(backup)
@_from_option
@data_dir_option
@click.option("--audit-key", type=FILE, help="Private audit key of the server, to keep signing with it.")
@click.option("--key-maker", type=FILE, help="File key_maker of the server, so that existing API keys can still sign SQS requests.")  # fmt: skip
@_key_option
@click.option("--data-keys", type=FILE, help="Wrapped data keys.  [default: the file next to the backup]")
@segments_option("Location of the exported journal, if the backup does not contain it.")
def restore(
    source: Path, data_dir: Path, *, public_key: Path | None, segments: str | None, **files: Path | None
) -> Output:  # fmt: skip
    """Create a data directory from a backup.

    The backup is verified first and the result is checked by the doctor. The directory must be empty or missing. A failed
    restore leaves nothing behind.
    """
    with byte_bar() as bar:
        restored = restore_server(
            source,
            data_dir,
            **files,
            public_key=PublicKey.load(public_key) if public_key is not None else None,
            segments=open_target(segments) if segments is not None else None,
            progress=bar,
        )
    names = ("data_keys", "segments", "audit_key", "key_maker", "signature_checked", "figures", "wrapped_by")
    facts = {name: getattr(restored, name) for name in names}
    document = {**_facts(restored.manifest), "data_dir": str(data_dir), **facts}
    return Output(document, *_restored_lines(restored, source, data_dir))


def _restored_lines(restored: Restored, source: Path, data_dir: Path) -> Iterator[str]:
    figures, manifest = restored.figures, restored.manifest
    yield (
        f"restored {source} to {data_dir}: {plural(figures.tenants, 'tenant')},"
        f" {plural(figures.queues, 'queue')}, {plural(figures.messages, 'message')}, {plural(figures.results, 'result')};"
        f" the journal up to record {manifest.last_seq:,}, {plural(restored.segments, 'segment')},"
        f" {plural(restored.data_keys, 'wrapped data key')}"
    )
    yield "the doctor found no problems"
    if not restored.signature_checked:
        yield "neither --audit-key nor --public-key: the backup's signature was not checked"
    if not restored.keys_found:
        yield "no data keys next to the backup: encrypted messages cannot be read. Give the file with --data-keys"
    if any(name.startswith("local:") for name in restored.wrapped_by):
        yield (
            f"the data keys are wrapped by keys of a keyring: copy keyring.json and keyring.key of the old server to {data_dir},"
            " or set kms.local.keyring, before you start the server"
        )
    if remote := [name for name in restored.wrapped_by if not name.startswith("local:")]:
        yield f"the data keys are wrapped by {', '.join(remote)}: configure access before you start the server"
    if not restored.audit_key:
        yield "no --audit-key: the server creates a new one and keeps the old public key for verification"
    if not restored.key_maker:
        yield (
            "no --key-maker: existing API keys work as bearer tokens, but cannot sign Amazon SQS requests until the"
            f" old server's file key_maker is in {data_dir}; copy it before you start the server"
        )
    if manifest.first_seq > 1 and not restored.segments:
        yield (
            f"the journal begins at record {manifest.first_seq:,}: copy the exported segments to"
            f" {data_dir / 'journal'}, or set export.target to their location, before you start the server"
        )


def _journal_line(manifest: BackupManifest, *, several: bool) -> str:
    shard = f"shard {manifest.shard}: " if several else ""
    if manifest.first_seq > 1 and not manifest.segments_upto:
        return f"{shard}the journal begins at record {manifest.first_seq:,}: the restore needs the exported segments (--segments)"
    return f"{shard}the journal is complete up to record {manifest.last_seq:,}"


def _facts(manifest: BackupManifest) -> dict[str, Any]:
    names = ("name", "version", "created_at", "last_seq", "segments_upto")
    return {**{name: getattr(manifest, name) for name in names}, "files": len(manifest.files), "size": manifest.size}
