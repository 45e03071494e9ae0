"""Restores a verified backup, of one shard or several, to a data directory that the doctor has checked. Atomic."""

import functools
import shutil
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from tenantq.backup.data_keys import read_data_keys
from tenantq.backup.durable_copy import atomic_directory, copy_file
from tenantq.backup.manifest import JOURNAL, BackupManifest, check_segments, verify_backup
from tenantq.doctor.report import StoreFigures
from tenantq.doctor.store_check import examine
from tenantq.engine.catalog import TENANT_ROW, TenantRow
from tenantq.engine.data_key_rows import DataKeyRows
from tenantq.errors import Conflict, Invalid, NotFound, StoreDamaged
from tenantq.gates.key_maker import KEY_FILE as KEY_MAKER
from tenantq.gates.key_maker import read_root
from tenantq.journal.export_target import DirectoryTarget, ExportTarget
from tenantq.journal.manifest import manifest_names, read_manifest
from tenantq.journal.segment_retention import read_removed, removed_name
from tenantq.journal.signing import KEY_FILE, PUBLIC_FILE, PublicKey, SigningKey, retired_name
from tenantq.runtime.durable_files import write_durably
from tenantq.store.rocks import RocksStore
from tenantq.store.row_pages import rows_under
from tenantq.store.shard_directories import HOME, REMEMBERED, remember_count, shard_count, shard_dir
from tenantq.vault.stored_keys import used_up, wrapped_by

_FIRST: Final = "first"
RESTORED: Final = "restored.json"
"""File in a restored data directory until the first start has journaled the restore."""
KEY_NUMBERS_SKIPPED: Final = 1 << 16
"""More data keys than a tenant can create after the file of data keys was written."""


class RestoreNote(msgspec.Struct, frozen=True):
    """The backup that a data directory was restored from."""

    backup: str
    created_at: int
    last_seq: int


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    manifest: BackupManifest
    figures: StoreFigures
    data_keys: int  # restored wrapped data keys
    segments: int  # restored segments
    audit_key: bool  # whether the server keeps its signing key
    key_maker: bool  # whether older API keys can sign requests
    signature_checked: bool  # whether the backup's signature was verified
    keys_found: bool  # whether a file of data keys existed
    wrapped_by: tuple[str, ...] = ()  # keys that the server needs to unwrap the data keys, such as local:tenant-acme


def restore_backup(
    source: Path,
    data_dir: Path,
    *,
    audit_key: Path | None = None,
    key_maker: Path | None = None,
    public_key: PublicKey | None = None,
    data_keys: Path | None = None,
    segments: ExportTarget | None = None,
    skip: Collection[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Restored:
    """Restore the backup ``source`` to ``data_dir``, which must be missing or empty. Atomic.

    ``audit_key`` is the server's private signing key; without it the server creates a new one. The backup must be signed by it, or by
    ``public_key``. With neither, only its hashes are checked, which an attacker could have changed too. ``key_maker`` is the secret
    from which API keys are derived; without it, older keys cannot sign Amazon SQS requests. ``data_keys`` is the file of wrapped keys,
    by default the one next to the backup. ``segments`` is the target of the exported journal, if it is not in the backup. Files in
    ``skip`` are left out. Raises StoreDamaged if the backup was changed, part of the journal is missing, or the doctor finds anything,
    and Conflict if the directory is in use.
    """
    check_empty(data_dir)
    if audit_key is not None:
        own_key = public_part(audit_key)
        if own_key.id != PublicKey.load(source / PUBLIC_FILE).id:
            raise Invalid(f"audit key {audit_key}: not the key that signed this backup")
        public_key = public_key or own_key
    maker = _checked_key_maker(key_maker) if key_maker is not None else None
    manifest = verify_backup(source, public_key, _part(progress, "verifying"), segments_elsewhere=segments is not None)
    default_file = source.absolute().parent / manifest.data_keys
    if data_keys is None and default_file.exists():
        data_keys = default_file
    keys = read_data_keys(data_keys) if data_keys is not None else {}
    with atomic_directory(data_dir.absolute(), "restoring") as partial:
        copying, done = _part(progress, "copying"), 0
        for name, file in manifest.files.items():
            if name != PUBLIC_FILE and name not in skip:
                copy_file(source / name, partial / name)
            done += file.size
            if copying is not None:
                copying(done, manifest.size)
        _put_audit_key(partial, source, audit_key)
        if maker is not None:
            write_durably(partial / KEY_MAKER, maker, 0o600)
        put_back = _put_data_keys(partial, keys)
        fetched = _put_segments(partial, segments, manifest) if segments is not None else 0
        if segments is not None and manifest.first_seq > 1:
            check_segments(partial / JOURNAL, manifest)
        report = examine(partial, lambda where, rows: progress(f"examining {where}", rows, 0) if progress else None)
        findings = [one for one in report.findings if one.kind != "keys"]  # keys may have been destroyed since
        if findings:
            first = findings[0]
            raise StoreDamaged(
                f"{source}: the doctor reports {report.findings_total} findings in the restored data, the first: {first.text}"
                " Nothing was restored. Use another backup."
            )
        note = RestoreNote(manifest.name, manifest.created_at, manifest.last_seq)
        write_durably(partial / RESTORED, msgspec.json.encode(note))
    held = sum(1 for name in manifest.files if name.startswith(f"{JOURNAL}/") and name.endswith(".parquet"))
    return Restored(
        manifest, report.figures, put_back, held + fetched, audit_key is not None, maker is not None, public_key is not None,
        data_keys is not None, wrapped_by(row for numbers in keys.values() for row in numbers.values()),
    )  # fmt: skip


def parts_of(source: Path) -> list[Path]:
    """Return the directory of each shard's part, in order. Raises NotFound if one is missing."""
    parts = [shard_dir(source.absolute().parent, number) / source.name for number in range(shard_count(source))]
    parts[HOME] = source
    for number, part in enumerate(parts):
        if number != HOME and not part.is_dir():
            raise NotFound(
                f"{source}: a backup of {len(parts)} shards, but the part of shard {number} is missing ({part})"
            )
    return parts


def restore_server(
    source: Path,
    data_dir: Path,
    *,
    audit_key: Path | None = None,
    key_maker: Path | None = None,
    public_key: PublicKey | None = None,
    data_keys: Path | None = None,
    segments: ExportTarget | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Restored:
    """Restore a backup of one or several shards: see ``restore_backup``. Atomic.

    Returns the sums of all shards, with the manifest of the first.
    """
    parts = parts_of(source)
    if audit_key is not None and public_key is None:
        public_key = public_part(audit_key)
    restore = functools.partial(restore_backup, public_key=public_key, segments=segments, progress=progress)
    restore_home = functools.partial(restore, source, audit_key=audit_key, key_maker=key_maker, data_keys=data_keys)
    if len(parts) == 1:
        return restore_home(data_dir)
    for part in parts[1:]:  # before anything is written
        verify_backup(part, public_key, segments_elsewhere=segments is not None)
    check_empty(data_dir)
    # Atomic as a whole: a part of the shards must never look like a server.
    with atomic_directory(data_dir.absolute(), "restoring") as staging:
        first = staging / _FIRST
        done = [restore_home(first, skip={REMEMBERED})]
        for file in first.iterdir():
            file.rename(staging / file.name)
        first.rmdir()
        for number, part in enumerate(parts[1:], HOME + 1):
            place = shard_dir(staging, number)
            place.parent.mkdir(exist_ok=True)
            done.append(restore(part, place))  # with the file of data keys next to the part
            _join_journal(place, staging)
        remember_count(staging, len(parts))
    return _combined(done)


def take_note(data_dir: Path) -> RestoreNote | None:
    """Return the note of a restore that was not journaled yet."""
    try:
        return msgspec.json.decode((data_dir / RESTORED).read_bytes(), type=RestoreNote)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def check_empty(data_dir: Path) -> None:
    """Raise Conflict unless the directory is missing or empty."""
    if data_dir.exists() and not data_dir.is_dir():
        raise Conflict(f"{data_dir}: is a file. Choose an empty or missing directory.")
    if data_dir.is_dir() and any(data_dir.iterdir()):
        raise Conflict(f"{data_dir}: not empty. Choose an empty or missing directory.")


def public_part(audit_key: Path) -> PublicKey:
    """Return the public key of a private key file. Raises Invalid or StoreDamaged."""
    try:
        return SigningKey.parse(audit_key.read_bytes(), audit_key).public
    except OSError as error:
        raise Invalid(f"audit key {audit_key}: {error.strerror}") from error


def _checked_key_maker(file: Path) -> bytes:
    """Return the content of a key maker file. Raises Invalid."""
    try:
        if read_root(file) is not None:
            return file.read_bytes()
    except OSError as error:
        raise Invalid(f"key maker {file}: {error.strerror}") from error
    raise Invalid(f"key maker {file}: not a {KEY_MAKER} file of a server")


def _put_audit_key(partial: Path, source: Path, audit_key: Path | None) -> None:
    """Restore the signing key, or keep the public key that verifies older signatures."""
    public = (source / PUBLIC_FILE).read_bytes()
    if audit_key is None:
        write_durably(partial / retired_name(PublicKey.load(source / PUBLIC_FILE).id), public)
        return
    write_durably(partial / PUBLIC_FILE, public)
    write_durably(partial / KEY_FILE, audit_key.read_bytes(), 0o600)


def _put_data_keys(partial: Path, keys: dict[int, dict[int, bytes]]) -> int:
    """Restore the wrapped keys of tenants in the backup; a later tenant with the same id is not one of them.

    They decrypt but never encrypt again, because their number of uses since the file was written is unknown. For the same reason
    new keys start KEY_NUMBERS_SKIPPED later: no number is used for two keys.
    """
    with closing(RocksStore(partial)) as store:
        rows, batch, count = DataKeyRows(store), store.new_batch(), 0
        for row_key, row in rows_under(store, store.meta, TENANT_ROW):
            tenant = msgspec.msgpack.decode(row, type=TenantRow)
            tenant_id = int.from_bytes(row_key[len(TENANT_ROW) :])
            numbers = keys.get(tenant_id, {})
            for number, value in numbers.items():
                rows.put(batch, tenant_id, number, used_up(value))
                count += 1
            if numbers or tenant.next_data_key:
                following = max(tenant.next_data_key, *(number + 1 for number in numbers), 0) + KEY_NUMBERS_SKIPPED
                moved = msgspec.structs.replace(tenant, next_data_key=following)
                batch.put(row_key, msgspec.msgpack.encode(moved), store.meta.handle)
        store.write(batch)
        store.sync()
        store.files.flush()
    return count


def _put_segments(partial: Path, segments: ExportTarget, manifest: BackupManifest) -> int:
    """Fetch the exported segments that end before the backup's end; the restored journal has the rest.

    The head is left out, because it is newer; the server writes it with its next export.
    """
    here, count = DirectoryTarget(partial / JOURNAL), 0
    for name in manifest_names(segments, manifest.shard):
        one = read_manifest(segments, name)
        if one.last_seq > manifest.last_seq or (partial / JOURNAL / name).exists():
            continue
        here.write(one.file, segments.read(one.file))
        here.write(name, segments.read(name))
        count += 1
    if read_removed(segments, manifest.shard) is not None:
        here.write(removed_name(manifest.shard), segments.read(removed_name(manifest.shard)))
    return count


def _part(progress: Callable[[str, int, int], None] | None, what: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: progress(what, done, total)) if progress is not None else None


def _join_journal(place: Path, data_dir: Path) -> None:
    """Move a shard's exported segments to the common directory."""
    journal = place / JOURNAL
    for file in sorted(journal.rglob("*")):
        if file.is_file():
            target = data_dir / JOURNAL / file.relative_to(journal)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
    shutil.rmtree(journal, ignore_errors=True)


def _combined(done: list[Restored]) -> Restored:
    figures = StoreFigures()
    for one in done:
        figures.add(one.figures)
    return msgspec.structs.replace(
        done[0],
        figures=figures,
        data_keys=sum(one.data_keys for one in done),
        segments=sum(one.segments for one in done),
        keys_found=all(one.keys_found for one in done),
        wrapped_by=tuple(sorted({name for one in done for name in one.wrapped_by})),
    )
