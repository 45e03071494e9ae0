"""``tenantq export``: all data of a tenant, as a file or a directory."""

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.export_file import ExportFile
from tenantq.cli.output import Output
from tenantq.cli.progress import byte_bar
from tenantq.domain.formatting import plural
from tenantq.errors import Conflict, Invalid

_NOUNS: Final = {
    "queues": "queue",
    "messages": "message",
    "results": "result",
    "idempotency": "idempotency key",
    "keys": "API key",
    "grants": "grant",
    "audit": "audit row",
}


@server_command()
@click.argument("name", metavar="TENANT")
@click.option("--out", "place", required=True, metavar="FILE", help="Tar file to create, or an empty directory (or a name ending in '/') for separate files.")  # fmt: skip
def export(connection: ServerConnection, *, name: str, place: str) -> Output:
    """Export a tenant: settings, queues, messages, results, audit trail, and keys and grants without secrets.

    The export is a consistent snapshot, written completely or not at all. Import it with 'tenantq import'.

    \b
    tenantq export acme --out acme.tar
    """
    out = Path(place)
    as_directory = out.is_dir() or place.endswith(os.sep)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} already exists; choose another name")
    if not out.absolute().parent.is_dir():
        raise Invalid(f"out: no such directory: {out.absolute().parent}")
    partial = out.absolute().with_name(f".{out.name}.partial")
    try:
        with byte_bar() as bar:
            _download(connection, name, partial, bar)
            with ExportFile(partial) as written:
                manifest = written.manifest
                written.verify(lambda done, total: bar("verifying", done, total))
        size = partial.stat().st_size
        if as_directory:
            _unpack(partial, out.absolute())
        else:
            partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    counts = ", ".join(plural(manifest.counts[kind], noun) for kind, noun in _NOUNS.items() if kind in manifest.counts)
    return Output(
        {"file": str(out), "export": manifest.export, "size": size, "counts": manifest.counts},
        f"exported {name} to {out}: {counts}; {size:,} bytes",
    )


def _download(connection: ServerConnection, name: str, partial: Path, bar: Callable[[str, int, int], None]) -> None:
    done = 0
    partial.unlink(missing_ok=True)  # of an export that was killed
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:

        def sink(piece: bytes) -> None:
            nonlocal done
            stream.write(piece)
            done += len(piece)
            bar("exporting", done, 0)

        connection.client.tenant(name).export(sink)
        stream.flush()
        os.fsync(stream.fileno())


def _unpack(archive: Path, out: Path) -> None:
    """Unpack into a temporary directory, and rename it when it is complete."""
    fresh = out.with_name(f".{out.name}.unpacking")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        with tarfile.open(archive, "r:") as tar:
            tar.extractall(fresh, filter="data")
        if out.is_dir():
            out.rmdir()
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
