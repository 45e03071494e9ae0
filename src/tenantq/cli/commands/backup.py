"""``tenantq backup``: make, list, verify and restore backups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tenantq.backup.manifest import verify_backup
from tenantq.backup.restore_shards import parts_of, restore_server
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import Connection, connected
from tenantq.cli.options import data_dir as data_dir_option
from tenantq.cli.output import json_option, print_json, print_table
from tenantq.cli.progress import ByteBar
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid
from tenantq.journal.export_target import open_target
from tenantq.journal.signing import PublicKey

if TYPE_CHECKING:
    from tenantq.backup.manifest import BackupManifest

_A_FILE: Final = click.Path(path_type=Path, dir_okay=False)
from_option = click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="The backup's directory.",
)


@click.group(cls=CommandGroup)
def backup() -> None:
    """Make, list, verify and restore backups of a server."""


@backup.command()
@click.argument("name", required=False)
@click.option("--no-segments", is_flag=True, help="Leave the exported journal out: it is kept elsewhere.")
@json_option
@connected
def create(connection: Connection, *, name: str | None, no_segments: bool, as_json: bool) -> None:
    """Back a running server up, into its backup directory; NAME is by default the time.

    It returns when the backup is whole and on the disk. The server goes on working.
    """
    made = connection.client.create_backup(name, segments=not no_segments)
    if as_json:
        print_json(made)
    else:
        click.echo(f"made backup {made.name}: up to journal record {made.last_seq:,}, {made.size or 0:,} bytes")


@backup.command("list")
@json_option
@connected
def list_backups(connection: Connection, *, as_json: bool) -> None:
    """List the backups in the server's backup directory."""
    backups = connection.client.backups()
    if as_json:
        print_json({"backups": backups})
        return
    rows = [
        (one.name, "" if one.created_at is None else show_time(one.created_at), one.last_seq, one.size, one.error)
        for one in backups
    ]
    print_table(("name", "created", "last record", "bytes", "problem"), rows, empty="no backups")


@backup.command()
@from_option
@click.option(
    "--public-key", type=_A_FILE, metavar="FILE", help="The server's public key: its signature is checked too."
)
@json_option
def verify(source: Path, public_key: Path | None, *, as_json: bool) -> None:
    """Check every file of a backup against its hash, offline."""
    key = PublicKey.load(public_key) if public_key is not None else None
    with ByteBar() as bar:
        parts = parts_of(source)
        manifests = [verify_backup(part, key, lambda done, total: bar("verifying", done, total)) for part in parts]
    files, size = sum(len(one.files) for one in manifests), sum(one.size for one in manifests)
    if as_json:
        facts = {**_facts(manifests[0]), "files": files, "size": size}
        print_json({**facts, "signature_checked": key is not None})
    else:
        of_shards = f" of {len(parts)} shards" if len(parts) > 1 else ""
        click.echo(f"{source}: {files:,} files{of_shards}, {size:,} bytes, as they were written")


@backup.command()
@from_option
@data_dir_option
@click.option(
    "--audit-key", type=_A_FILE, metavar="FILE", help="The server's private audit key, to go on signing with it."
)
@click.option(
    "--key-maker",
    type=_A_FILE,
    metavar="FILE",
    help="The server's file key_maker: API keys made before go on signing requests of Amazon SQS.",
)
@click.option(
    "--public-key", type=_A_FILE, metavar="FILE", help="The server's public key: the backup's signature is checked."
)
@click.option(
    "--data-keys", type=_A_FILE, metavar="FILE", help="The wrapped data keys.  [default: the file beside the backup]"
)
@click.option("--segments", metavar="URL", help="Where the exported journal is, if it is not in the backup.")
@json_option
def restore(
    source: Path,
    data_dir: Path,
    audit_key: Path | None,
    key_maker: Path | None,
    public_key: Path | None,
    data_keys: Path | None,
    segments: str | None,
    *,
    as_json: bool,
) -> None:
    """Make a data directory from a backup: verified, examined by the doctor, all of it or nothing.

    The directory has to be empty or not there yet.
    """
    if segments is not None and "://" not in segments and not Path(segments).is_dir():
        raise Invalid(f"segments: there is no directory {segments}")
    with ByteBar() as bar:
        restored = restore_server(
            source,
            data_dir,
            audit_key=audit_key,
            key_maker=key_maker,
            public_key=PublicKey.load(public_key) if public_key is not None else None,
            data_keys=data_keys,
            segments=open_target(segments) if segments is not None else None,
            progress=bar,
        )
    if as_json:
        facts = {"data_keys": restored.data_keys, "segments": restored.segments, "audit_key": restored.audit_key}
        facts |= {"key_maker": restored.key_maker, "signature_checked": restored.signature_checked}
        print_json({**_facts(restored.manifest), "data_dir": str(data_dir), **facts, "figures": restored.figures})
        return
    figures = restored.figures
    click.echo(
        f"restored {source} to {data_dir}: {figures.tenants:,} tenants, {figures.queues:,} queues,"
        f" {figures.messages:,} messages, {figures.results:,} results; the journal up to record"
        f" {restored.manifest.last_seq:,}, {restored.segments:,} segments, {restored.data_keys:,} wrapped data keys"
    )
    click.echo("the doctor found nothing amiss")
    if not restored.signature_checked:
        click.echo("neither --audit-key nor --public-key: whether the backup is as the server wrote it is not known")
    if not restored.keys_found:
        click.echo("no file of data keys is beside the backup: encrypted messages cannot be read; --data-keys names it")
    if not restored.audit_key:
        click.echo(
            "no --audit-key: the server will make a new one, and keeps the old public key to verify what it signed"
        )
    if not restored.key_maker:
        click.echo(
            "no --key-maker: API keys made so far work as bearer tokens, and sign no requests of Amazon SQS until the"
            f" old server's file key_maker is put into {data_dir}, before you start the server"
        )
    if restored.manifest.first_seq > 1 and not restored.segments:
        click.echo(
            f"the journal begins at record {restored.manifest.first_seq:,}: put the exported segments back to"
            f" {data_dir / 'journal'}, or set export.target to where they are, before you start the server"
        )


def _facts(manifest: BackupManifest) -> dict[str, object]:
    return {
        "name": manifest.name,
        "version": manifest.version,
        "created_at": manifest.created_at,
        "last_seq": manifest.last_seq,
        "segments_upto": manifest.segments_upto,
        "files": len(manifest.files),
        "size": manifest.size,
    }
