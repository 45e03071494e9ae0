"""``tenantq export``: everything a tenant has, as a file or a directory."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenantq.cli.connection import Connection, connected
from tenantq.cli.export_file import ExportFile
from tenantq.cli.output import json_option, print_json
from tenantq.cli.progress import ByteBar
from tenantq.errors import Conflict, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command()
@click.argument("name", metavar="TENANT")
@click.option(
    "--out",
    "place",
    required=True,
    metavar="FILE",
    help="A file to make (a tar); or an empty directory, or a name ending in '/', to have its files there.",
)
@json_option
@connected
def export(connection: Connection, *, name: str, place: str, as_json: bool) -> None:
    """Write everything a tenant has: configuration, queues, messages, results, keys and grants without secrets, audit trail.

    It is of one moment, and complete or not there at all. Import it elsewhere with 'tenantq import'.

    \b
    tenantq export acme --out acme.tar
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    out = Path(place)
    as_directory = out.is_dir() or place.endswith(os.sep)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} is there already; choose another name")
    if not out.absolute().parent.is_dir():
        raise Invalid(f"out: there is no directory {out.absolute().parent}")
    partial = out.absolute().with_name(f".{out.name}.partial")
    try:
        with ByteBar() as bar:
            _download(connection, name, partial, bar)
            with ExportFile(partial) as whole:
                manifest = whole.manifest
                whole.verify(lambda done, total: bar("verifying", done, total))
        size = partial.stat().st_size
        if as_directory:
            _unpack(partial, out.absolute())
        else:
            partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    if as_json:
        print_json({"file": str(out), "export": manifest.export, "size": size, "counts": manifest.counts})
        return
    counts = ", ".join(f"{count:,} {kind}" for kind, count in manifest.counts.items() if kind != "tenant")
    click.echo(f"exported {name} to {out}: {counts}; {size:,} bytes")


def _download(connection: Connection, name: str, partial: Path, bar: Callable[[str, int, int], None]) -> None:
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
    """Put the files into a directory that gets its name when all are there."""
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
