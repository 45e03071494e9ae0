"""The backups of a running server: a state of the store at one moment, taken while it works.

The store hands over a checkpoint, hard links that cost nothing. Everything else happens on a thread, beside the work: the data
keys are taken out, the files copied and hashed, and the whole gets its name by one rename. Whatever goes wrong before that leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.backup.copying import copy_file, growing
from tenantq.backup.data_keys import data_key_file_name, drop_data_keys, tenant_mark, write_data_keys
from tenantq.backup.manifest import (
    FORMAT,
    MANIFEST,
    BackupFile,
    BackupManifest,
    check_backup_name,
    hash_file,
    read_backup_manifest,
)
from tenantq.cluster.layout import DIRECTORY, REMEMBERED
from tenantq.engine.data_key_rows import DATA_KEY_ROW
from tenantq.errors import Closed, Conflict, DiskFull, Invalid, TenantqError, Unavailable
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import HEAD, MANIFESTS, manifest_names, read_manifest
from tenantq.journal.signing import PUBLIC_FILE, retired_ids
from tenantq.runtime.durable_files import write_durably
from tenantq.store.scrub import scrub
from tenantq.store.sync_marker import SyncMarker

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tenantq.engine.shard import Shard, StoreCheckpoint
    from tenantq.journal.signing import SigningKey
    from tenantq.store.interface import Beat
    from tenantq.store.scrub import JournalEnds

JOURNAL: Final = "journal"
_PARTIAL: Final = "partial"


class BackupItem(msgspec.Struct, frozen=True):
    """A backup in the list; one that cannot be read has only a name and the reason."""

    name: str
    created_at: int | None = None
    last_seq: int | None = None
    size: int | None = None
    segments_upto: int | None = None
    version: str | None = None
    error: str = ""


class Backups:
    """Makes and lists the backups in one directory, which belongs to one server."""

    def __init__(
        self,
        shard: Shard,
        directory: Path,
        data_dir: Path,
        key: SigningKey,
        *,
        reserve_bytes: int = 0,
        home: Path | None = None,
    ) -> None:
        """Prepare; ``home`` is the data directory of all shards, where their exported journal and their audit key are.

        Raise Invalid if ``directory`` lies inside the data directory, where a lost disk would take both.
        """
        self.directory = directory.absolute()
        self._shard = shard
        self._data_dir = data_dir.absolute()
        self._home = (home or data_dir).absolute()
        self._key = key
        self._reserve_bytes = reserve_bytes
        self._lock = asyncio.Lock()
        self._keys_lock = asyncio.Lock()
        self._running: asyncio.Task[BackupManifest] | None = None
        self._stopping = threading.Event()
        if self.directory.resolve().is_relative_to(self._home.resolve()):
            raise Invalid("backup_dir: is inside the data directory; choose a place beside it, best on another disk")

    async def create(self, name: str | None = None, *, segments: bool = True) -> BackupManifest:
        """Make a backup of everything that was acknowledged before this call; return when it is whole and durable.

        Without ``segments`` the exported journal is left out. Raises Conflict where the name is taken or a backup is being
        made, DiskFull where there is no room. Who is cancelled while waiting here does not stop it.
        """
        name = check_backup_name(name) if name is not None else _time_name(self._shard.state.wall_ms())
        if self._lock.locked():
            raise Conflict("a backup is being made already; wait until it is done")
        async with self._lock:
            self._running = asyncio.create_task(self._create(self.directory / name, segments=segments))
            try:
                return await asyncio.shield(self._running)
            except asyncio.CancelledError:
                await asyncio.wait([self._running])  # the place is not free before it is done
                raise

    async def close(self) -> None:
        """Stop a backup that is being made; nothing of it is left."""
        self._stopping.set()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def listed(self) -> list[BackupItem]:
        """Return the backups that are there, oldest name first."""
        return await asyncio.to_thread(self._list)

    async def refresh_data_keys(self) -> None:
        """Write the wrapped data keys anew as they are now: a deleted tenant's leave every backup by that. Unavailable."""
        async with self._keys_lock:
            rows = {tenant: dict(numbers) for tenant, numbers in self._shard.state.data_keys.by_tenant.items()}
            tenants = {one.id: tenant_mark(one.name, one.since) for one in self._shard.state.catalog.tenants.values()}
            erased = {
                one.tenant_id for one in self._shard.erasure.certificates()
            } | self._shard.state.data_keys.destroyed
            try:
                await asyncio.to_thread(self._write_data_keys, rows, tenants, erased)
            except OSError as error:
                raise Unavailable(
                    f"{self.directory}: the data keys beside the backups cannot be written anew: {error.strerror}"
                ) from error

    async def _create(self, destination: Path, *, segments: bool) -> BackupManifest:
        archive = await asyncio.to_thread(self._archive, destination, segments=segments)
        checkpoint = await self._shard.checkpoint()
        try:
            manifest = await asyncio.to_thread(self._write, destination, checkpoint, archive)
        finally:
            await asyncio.to_thread(shutil.rmtree, checkpoint.stage, ignore_errors=True)
        await self.refresh_data_keys()
        return manifest

    # ---- on a thread ----

    def _write_data_keys(
        self, rows: dict[int, dict[int, bytes]], tenants: dict[int, str], erased: Collection[int]
    ) -> None:
        now_ms = self._shard.state.wall_ms()
        path = self.directory / data_key_file_name(self._key.public.id)
        write_data_keys(path, rows, now_ms, tenants=tenants, erased=erased)
        for key_id in retired_ids(self._home):  # backups from before it was restored without its audit key
            old = self.directory / data_key_file_name(key_id)
            if old.exists() and old != path:
                drop_data_keys(old, erased, now_ms)

    def _archive(self, destination: Path, *, segments: bool) -> _Archive:
        """Return the files of the exported journal as it is now, which is before the checkpoint and so never ahead of it."""
        if destination.exists():
            raise Conflict(f"there is a backup {destination.name} already; choose another name")
        if not segments:
            return _Archive([], b"", 0)
        target = DirectoryTarget(self._home / JOURNAL)
        manifests = manifest_names(target, self._shard.name)
        if not manifests:
            return _Archive([], b"", 0)
        head = f"{MANIFESTS}/shard={self._shard.name}/{HEAD}"
        read = [read_manifest(target, name) for name in manifests]
        names = [*manifests, *(one.file for one in read)]
        return _Archive(names, target.read(head) if (target.path / head).exists() else b"", read[-1].last_seq)

    def _write(self, destination: Path, checkpoint: StoreCheckpoint, archive: _Archive) -> BackupManifest:
        ends = scrub(checkpoint.stage, DATA_KEY_ROW)
        sources = {f"db/{path.name}": path for path in sorted(checkpoint.stage.iterdir()) if _is_data(path)}
        sources |= {f"{JOURNAL}/{name}": self._home / JOURNAL / name for name in archive.names}
        sources["format"] = self._data_dir / "format"
        if (self._data_dir / REMEMBERED).exists():
            sources[REMEMBERED] = self._data_dir / REMEMBERED
        self._check_room(destination, sum(path.stat().st_size for path in sources.values()))
        with growing(destination, _PARTIAL) as partial:
            files: dict[str, BackupFile] = {}
            for name, path in sources.items():
                if self._stopping.is_set():
                    raise Closed("the server stops; nothing of the backup is left")
                files[name] = copy_file(path, partial / name)
            if archive.head:
                name = f"{JOURNAL}/{MANIFESTS}/shard={self._shard.name}/{HEAD}"
                write_durably(partial / name, archive.head)
                files[name] = hash_file(partial / name)
            write_durably(partial / PUBLIC_FILE, self._key.public.pem())
            self._write_heart(partial, checkpoint.taken, ends)
            for name in ("heart", PUBLIC_FILE):
                files[name] = hash_file(partial / name)
            manifest = self._manifest(destination.name, checkpoint.taken, archive, ends, files)
            write_durably(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest, order="sorted")))
        return manifest

    def _write_heart(self, partial: Path, taken: Beat, ends: JournalEnds) -> None:
        """Write the heart of the copy: its journal ends where the checkpoint's does, its MANIFEST is the copied one."""
        (current,) = (partial / "db").glob("MANIFEST-*")
        heart = SyncMarker(partial / "heart")
        try:
            number, size = int(current.name.removeprefix("MANIFEST-")), current.stat().st_size
            end = {"seq": ends.last_seq, "clean": True, "manifest_number": number, "manifest_bytes": size}
            heart.beat(msgspec.structs.replace(taken, **end))
        finally:
            heart.close()

    def _manifest(
        self, name: str, taken: Beat, archive: _Archive, ends: JournalEnds, files: dict[str, BackupFile]
    ) -> BackupManifest:
        return BackupManifest(
            format=FORMAT,
            product="tenantq",
            version=version("tenantq"),
            name=name,
            shard=self._shard.name,
            created_at=taken.wall_ms,
            last_seq=ends.last_seq,
            last_link=ends.last_link.hex(),
            first_seq=ends.first_seq,
            segments_upto=archive.upto_seq,
            data_keys=data_key_file_name(self._key.public.id),
            files=files,
        ).signed(self._key)

    def _check_room(self, destination: Path, size: int) -> None:
        """Raise DiskFull where the backup would not fit, or leave less than the reserve of the store."""
        place = next(path for path in destination.parents if path.is_dir())
        info = os.statvfs(place)
        free = info.f_bavail * info.f_frsize
        if free < size + self._reserve_bytes:
            raise DiskFull(
                f"{destination.parent}: the backup takes {size:,} bytes, {free:,} are free and {self._reserve_bytes:,} are"
                " kept in reserve; nothing was written"
            )

    def _list(self) -> list[BackupItem]:
        items = []
        for path in sorted(self.directory.glob("[!.]*")):
            if not path.is_dir() or path.name == DIRECTORY:  # the backups of the other shards
                continue
            try:
                one = read_backup_manifest(path)
            except (TenantqError, OSError) as error:
                items.append(BackupItem(path.name, error=str(error)))
                continue
            items.append(BackupItem(path.name, one.created_at, one.last_seq, one.size, one.segments_upto, one.version))
        return items


class _Archive(msgspec.Struct, frozen=True):
    """Files of the exported journal, the head as it was, and the last record they hold."""

    names: list[str]
    head: bytes
    upto_seq: int


def _is_data(path: Path) -> bool:
    """Tell what belongs to a database from RocksDB's own log files and lock."""
    return path.is_file() and path.name != "LOCK" and not path.name.startswith("LOG")


def _time_name(wall_ms: int) -> str:
    at = datetime.fromtimestamp(wall_ms / 1_000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{wall_ms % 1_000:03}Z"
