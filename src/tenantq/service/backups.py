"""Backups of the whole server: create and list them."""

from collections.abc import Sequence
from functools import partial

import msgspec

from tenantq.backup.backups import BackupItem, Backups, RestoreTest
from tenantq.backup.manifest import BackupManifest
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict
from tenantq.journal.record import entry_of
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards


class ServerBackups:
    """Creates and lists backups for the platform's administrators."""

    def __init__(self, shard: Shard, admission: Admission, other_shards: OtherShards, backups: Backups | None) -> None:
        self._shard, self._admission, self._other_shards = shard, admission, other_shards
        self._backups = backups  # None: no backup directory

    async def create(self, call: Call, name: str | None = None, *, segments: bool = True) -> BackupManifest:
        """Back up everything that was acknowledged before this call, on all shards, while the server keeps working."""
        caller = await self._admission.admit_platform(call, "create_backup")
        with self._admission.notes.noting_failure(caller, "", "create_backup"):
            create = partial(self.create_local, name, segments=segments)
            manifest, *parts = await self._other_shards.back_up(create, segments=segments)
            files = {f"{one.shard}/{name}": file for one in parts for name, file in one.files.items()}
            manifest = msgspec.structs.replace(manifest, files={**manifest.files, **files})
        details = (
            f"{manifest.name}: up to record {manifest.last_seq}, {len(manifest.files)} files, {manifest.size} bytes"
        )
        await self._shard.journal.note([entry_of("create_backup", "", caller, details)])
        return manifest

    async def create_local(self, name: str | None, *, segments: bool) -> BackupManifest:
        """Back up this shard, for a caller that was authorized."""
        self._admission.residency.check_backup()
        return await self._directory().create(name, segments=segments)

    async def test(self, call: Call, name: str) -> RestoreTest:
        """Restore a backup into a temporary directory, and journal whether that works. Raises NotFound."""
        caller = await self._admission.admit_platform(call, "test_backup")
        with self._admission.notes.noting_failure(caller, "", "test_backup"):
            test = await self._directory().test(name)
        entry = entry_of("test_backup", "", caller, f"{test.name}: {test.text}")
        entry.outcome = "ok" if test.ok else "failed"
        await self._shard.journal.note([entry])
        return test

    async def list(self, call: Call) -> Sequence[BackupItem]:
        caller = await self._admission.admit_platform(call, "list_backups")
        self._admission.notes.note_view(caller, "", "list_backups")
        return await self._other_shards.backups(await self.list_local())

    async def list_local(self) -> Sequence[BackupItem]:
        """Return this shard's backups, for a caller that was authorized."""
        return await self._directory().listed()

    def _directory(self) -> Backups:
        if self._backups is None:
            raise Conflict("backups are not configured on this server")
        return self._backups
