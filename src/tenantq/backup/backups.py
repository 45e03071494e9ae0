"""Backups of a running server: consistent copies of the store.

The store provides a checkpoint of hard links, which is cheap. Everything else runs on a thread: the data keys are removed from the
copy, the files are copied and hashed, and one rename completes the backup. A failure before that leaves nothing behind.

The exported journal is listed after the checkpoint. A record is exported before it is trimmed, so each record that the checkpoint
lacks is in a listed segment, even if the exporter continues meanwhile. Segments that end after the checkpoint are left out: the checkpoint
has their records.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import msgspec

from tenantq.backup.data_keys import data_key_file_name, drop_data_keys, tenant_mark, write_data_keys
from tenantq.backup.durable_copy import atomic_directory, copy_file
from tenantq.backup.manifest import (
    FORMAT,
    JOURNAL,
    MANIFEST,
    BackupFile,
    BackupManifest,
    check_backup_name,
    hash_file,
    read_backup_manifest,
)
from tenantq.backup.scrub import JournalEnds, scrub
from tenantq.engine.data_key_rows import DATA_KEY_ROW
from tenantq.engine.shard import Shard, StoreCheckpoint
from tenantq.errors import Closed, Conflict, DiskFull, Invalid, NotFound, TenantqError, Unavailable
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import ExportHead, Manifest, manifest_names, read_manifest
from tenantq.journal.segment_retention import removed_name
from tenantq.journal.signing import PUBLIC_FILE, PublicKeys, SignedDocument, SigningKey, retired_ids
from tenantq.runtime.durable_files import write_durably
from tenantq.store.interface import Beat
from tenantq.store.shard_directories import DIRECTORY, REMEMBERED
from tenantq.store.sync_marker import SyncMarkerFile

_PARTIAL: Final = "partial"
_RESTORE_TEST: Final = "restore_test.json"
_TEXT_CHARS_MAX: Final = 1_000


class BackupItem(msgspec.Struct, frozen=True):
    """A backup in the list. An unreadable one has only a name and an error."""

    name: str
    created_at: int | None = None
    last_seq: int | None = None
    size: int | None = None
    segments_upto: int | None = None
    version: str | None = None
    error: str = ""
    lacks_segments: bool = False  # a restore needs segments that are not in it


class RestoreTest(SignedDocument, frozen=True, kw_only=True):
    """The result of restoring a backup into a temporary directory."""

    signature_prefix = b"tenantq restore test\n"

    name: str
    ok: bool
    text: str
    at: int  # wall clock


class Backups:
    """Creates and lists the backups in one directory, which belongs to one server."""

    def __init__(
        self,
        shard: Shard,
        directory: Path,
        data_dir: Path,
        key: SigningKey,
        *,
        reserve_bytes: int = 0,
        home: Path | None = None,
        store_backs_up: bool = False,
    ) -> None:
        """``home`` is the data directory of all shards, with their exported journal and their audit key.

        ``store_backs_up``: the store has its own backups. Raises Invalid if ``directory`` is inside the data directory, because a lost disk would take both.
        """
        self.directory = directory.absolute()
        self._shard = shard
        self._data_dir = data_dir.absolute()
        self._home = (home or data_dir).absolute()
        self._key = key
        self.store_backs_up = store_backs_up
        self._reserve_bytes = reserve_bytes
        self._lock = asyncio.Lock()
        self._keys_lock = asyncio.Lock()
        self.segments_lock = asyncio.Lock()  # held while segments are copied or removed
        self._running: asyncio.Task[BackupManifest] | None = None
        self._stopping = threading.Event()
        if self.directory.resolve().is_relative_to(self._home.resolve()):
            raise Invalid("backup_dir: must not be inside the data directory. Choose a directory on another disk.")

    async def create(self, name: str | None = None, *, segments: bool = True) -> BackupManifest:
        """Back up everything that was acknowledged before this call. Returns when the backup is complete and durable.

        Without ``segments`` the exported journal is left out. Raises Conflict if the name exists or another backup is running, and
        DiskFull if there is not enough space. Cancelling the caller does not stop the backup.
        """
        name = check_backup_name(name) if name is not None else _time_name(self._shard.state.wall_ms())
        if self._lock.locked():
            raise Conflict("another backup is running. Wait until it is complete.")
        async with self._lock:
            self._running = asyncio.create_task(self._create(self.directory / name, segments=segments))
            try:
                return await asyncio.shield(self._running)
            except asyncio.CancelledError:
                await asyncio.wait([self._running])  # keep the lock until it is done
                raise

    async def close(self) -> None:
        """Stop a running backup. Nothing of it is left."""
        self._stopping.set()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def listed(self) -> list[BackupItem]:
        """Return all backups, sorted by name."""
        return await asyncio.to_thread(self._list)

    async def test(self, name: str) -> RestoreTest:
        """Restore a backup of all shards into a temporary directory, in another process. The doctor checks it there.

        Raises NotFound if the backup does not exist, and Conflict if a backup or test is running.
        """
        try:
            source = self.directory / check_backup_name(name)
        except Invalid as error:
            raise NotFound(f"no such backup: {error.message}") from error
        size = (await asyncio.to_thread(read_backup_manifest, source)).size
        if self._lock.locked():
            raise Conflict("a backup or restore test is running. Wait until it is complete.")
        async with self._lock:
            await asyncio.to_thread(self._check_space, source, size)
            place = Path(mkdtemp(prefix=".restore-test-", dir=self.directory))
            command = ("-m", "tenantq", "backup", "restore", "--from", source, "--data-dir", place / "data")
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, "--public-key", self._home / PUBLIC_FILE,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            try:
                _, errors = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        ok = process.returncode == 0
        text = "restored and checked" if ok else errors.decode(errors="replace").strip()[-_TEXT_CHARS_MAX:]
        test = RestoreTest(name=name, ok=ok, text=text, at=self._shard.state.wall_ms()).signed(self._key)
        await asyncio.to_thread(write_durably, self.directory / _RESTORE_TEST, msgspec.json.encode(test))
        return test

    async def last_test(self) -> RestoreTest | None:
        """Return the last restore test with a valid signature of this server, or None."""
        try:
            raw = await asyncio.to_thread((self.directory / _RESTORE_TEST).read_bytes)
            test = RestoreTest.parse(raw, "restore test")
        except (OSError, Invalid):
            return None
        return test if test.is_signed_by(PublicKeys.of(self._home)) else None

    async def needs_segments(self) -> bool:
        """Return whether a backup lacks exported segments that its restore needs."""
        return any(one.error or one.lacks_segments for one in await self.listed())

    async def refresh_data_keys(self) -> None:
        """Write the current wrapped data keys, which removes those of deleted tenants from every backup. Raises Unavailable."""
        async with self._changing_data_keys():
            rows = {tenant: dict(numbers) for tenant, numbers in self._shard.state.data_keys.by_tenant.items()}
            current = self._shard.state.catalog.tenants.values()
            tenants = {one.id: tenant_mark(one.name, one.since) for one in current}
            erased = {one.tenant_id for one in self._shard.erasure.certificates()}
            erased |= {one.id for one in current if one.erasing is not None}
            await asyncio.to_thread(self._write_data_keys, rows, tenants, erased)

    async def drop_data_keys(self, tenant_id: int) -> None:
        """Remove the data keys of a tenant that lived here before and was erased on another shard. Raises Unavailable."""
        async with self._changing_data_keys():
            key_ids = (self._key.public.id, *retired_ids(self._home))
            await asyncio.to_thread(self._drop_data_keys, key_ids, (tenant_id,), self._shard.state.wall_ms())

    @asynccontextmanager
    async def _changing_data_keys(self) -> AsyncIterator[None]:
        """Change the file of data keys inside the block. Raises Unavailable."""
        async with self._keys_lock:
            try:
                yield
            except OSError as error:
                raise Unavailable(
                    f"{self.directory}: cannot update the data key file next to the backups: {error.strerror}"
                ) from error

    async def _create(self, destination: Path, *, segments: bool) -> BackupManifest:
        if await asyncio.to_thread(destination.exists):
            raise Conflict(f"backup {destination.name} already exists. Choose another name.")
        checkpoint = await self._shard.checkpoint()
        try:
            async with self.segments_lock:
                manifest = await asyncio.to_thread(self._write, destination, checkpoint, segments=segments)
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
        retired = [one for one in retired_ids(self._home) if one != self._key.public.id]
        self._drop_data_keys(retired, erased, now_ms)

    def _drop_data_keys(self, key_ids: Collection[str], erased: Collection[int], now_ms: int) -> None:
        """Remove keys from files; the retired ones belong to backups from before a restore without the audit key."""
        for key_id in key_ids:
            path = self.directory / data_key_file_name(key_id)
            if path.exists():
                drop_data_keys(path, erased, now_ms)

    def _exported(self) -> list[Manifest]:
        target = DirectoryTarget(self._home / JOURNAL)
        return [read_manifest(target, name) for name in manifest_names(target, self._shard.name)]

    def _write(self, destination: Path, checkpoint: StoreCheckpoint, *, segments: bool) -> BackupManifest:
        exported = self._exported() if segments else []  # after the checkpoint
        ends = scrub(checkpoint.stage, DATA_KEY_ROW, (one.last_seq for one in exported))
        archive = [one for one in exported if one.last_seq <= ends.last_seq]
        if archive and ends.links.get(archive[-1].last_seq, b"").hex() != archive[-1].last_link:
            archive = []  # an old archive, or one of another server: the journal is exported to another target
        sources = {f"db/{path.name}": path for path in sorted(checkpoint.stage.iterdir()) if _is_data(path)}
        names = [name for one in archive for name in (one.name, one.file)]
        if archive and archive[0].first_seq > 1:  # the statement that the server has removed the segments before it
            names.append(removed_name(self._shard.name))
        sources |= {f"{JOURNAL}/{name}": self._home / JOURNAL / name for name in names}
        sources["format"] = self._data_dir / "format"
        if (self._data_dir / REMEMBERED).exists():
            sources[REMEMBERED] = self._data_dir / REMEMBERED
        self._check_space(destination, sum(path.stat().st_size for path in sources.values()))
        with atomic_directory(destination, _PARTIAL) as partial:
            files: dict[str, BackupFile] = {}
            for name, path in sources.items():
                if self._stopping.is_set():
                    raise Closed("the server is stopping. The backup was cancelled and removed.")
                files[name] = copy_file(path, partial / name)
            if archive:
                end = archive[-1]
                head = ExportHead(shard=end.shard, last_seq=end.last_seq, last_link=end.last_link).signed(self._key)
                write_durably(partial / JOURNAL / head.name, msgspec.json.encode(head, order="sorted"))
                files[f"{JOURNAL}/{head.name}"] = hash_file(partial / JOURNAL / head.name)
            write_durably(partial / PUBLIC_FILE, self._key.public.pem())
            self._write_sync_marker(partial, checkpoint.taken, ends)
            for name in ("heart", PUBLIC_FILE):
                files[name] = hash_file(partial / name)
            manifest = self._manifest(destination.name, checkpoint.taken, archive, ends, files)
            write_durably(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest, order="sorted")))
        return manifest

    def _write_sync_marker(self, partial: Path, taken: Beat, ends: JournalEnds) -> None:
        """Write the sync marker of the copy, with the end of its journal and its MANIFEST."""
        (current,) = (partial / "db").glob("MANIFEST-*")
        number, size = int(current.name.removeprefix("MANIFEST-")), current.stat().st_size
        end = {"seq": ends.last_seq, "clean": True, "manifest_number": number, "manifest_bytes": size}
        with closing(SyncMarkerFile(partial / "heart")) as marker:
            marker.beat(msgspec.structs.replace(taken, **end))

    def _manifest(
        self, name: str, taken: Beat, archive: list[Manifest], ends: JournalEnds, files: dict[str, BackupFile]
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
            segments_upto=archive[-1].last_seq if archive else 0,
            segments_link=archive[-1].last_link if archive else "",
            data_keys=data_key_file_name(self._key.public.id),
            files=files,
        ).signed(self._key)

    def _check_space(self, destination: Path, size: int) -> None:
        """Raise DiskFull if the backup does not fit or would use the store's reserve."""
        parent = next(path for path in destination.parents if path.is_dir())
        free = shutil.disk_usage(parent).free
        if free < size + self._reserve_bytes:
            raise DiskFull(
                f"{destination.parent}: not enough space for the backup ({size:,} bytes needed, {free:,} free,"
                f" {self._reserve_bytes:,} reserved). Nothing was written."
            )

    def _list(self) -> list[BackupItem]:
        items = []
        for path in sorted(self.directory.glob("[!.]*")):
            if not path.is_dir() or path.name == DIRECTORY:  # backups of the other shards
                continue
            try:
                one = read_backup_manifest(path)
            except (TenantqError, OSError) as error:
                items.append(BackupItem(path.name, error=str(error)))
                continue
            lacks = one.segments_upto + 1 < one.first_seq
            items.append(
                BackupItem(
                    path.name, one.created_at, one.last_seq, one.size, one.segments_upto, one.version,
                    lacks_segments=lacks,
                )
            )  # fmt: skip
        return items


def _is_data(path: Path) -> bool:
    """Return whether a file is part of the database, not a log or lock of RocksDB."""
    return path.is_file() and path.name != "LOCK" and not path.name.startswith("LOG")


def _time_name(wall_ms: int) -> str:
    at = datetime.fromtimestamp(wall_ms / 1_000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{wall_ms % 1_000:03}Z"
