"""Restores a server of several shards from each shard's part of a backup. Atomic."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.backup.backups import JOURNAL
from tenantq.backup.durable_copy import atomic_directory
from tenantq.backup.manifest import verify_backup
from tenantq.backup.restore import Restored, check_empty, public_part, restore_backup
from tenantq.cluster.layout import HOME, REMEMBERED, remember_count, shard_count, shard_dir
from tenantq.doctor.report import StoreFigures
from tenantq.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.journal.signing import PublicKey


_FIRST: Final = "first"


def parts_of(source: Path) -> list[Path]:
    """Return the directory of each shard's part, in order. Raises NotFound if one is missing."""
    parts = [shard_dir(source.absolute().parent, number) / source.name for number in range(shard_count(source))]
    parts[HOME] = source
    for number, part in enumerate(parts):
        if number != HOME and not part.is_dir():
            raise NotFound(f"{source}: is of {len(parts)} shards, and shard {number}'s part is not at {part}")
    return parts


def restore_server(
    source: Path,
    data_dir: Path,
    *,
    audit_key: Path | None = None,
    key_maker: Path | None = None,
    public_key: PublicKey | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **how: Any,
) -> Restored:
    """Restore a backup of one or several shards: see ``restore_backup``. Atomic.

    Returns the sums of all shards, with the manifest of the first.
    """
    parts = parts_of(source)
    if len(parts) == 1:
        return restore_backup(
            source, data_dir, audit_key=audit_key, key_maker=key_maker, public_key=public_key, progress=progress, **how
        )
    if audit_key is not None and public_key is None:
        public_key = public_part(audit_key)
    for part in parts[1:]:
        verify_backup(part, public_key)  # before anything is written
    check_empty(data_dir)
    with atomic_directory(
        data_dir.absolute(), "restoring"
    ) as whole:  # a part of the shards must never look like a server
        first = whole / _FIRST
        done = [
            restore_backup(
                source, first, audit_key=audit_key, key_maker=key_maker, public_key=public_key, progress=progress,
                skip={REMEMBERED}, **how,
            )
        ]  # fmt: skip
        for file in first.iterdir():
            file.rename(whole / file.name)
        first.rmdir()
        for number, part in enumerate(parts[1:], HOME + 1):
            place = shard_dir(whole, number)
            place.parent.mkdir(exist_ok=True)
            own = {**how, "data_keys": None}  # each shard has its own file
            done.append(restore_backup(part, place, public_key=public_key, progress=progress, **own))
            _join_journal(place, whole)
        remember_count(whole, len(parts))
    return _combined(done)


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
        for name in StoreFigures.__struct_fields__:
            setattr(figures, name, getattr(figures, name) + getattr(one.figures, name))
    return msgspec.structs.replace(
        done[0],
        figures=figures,
        data_keys=sum(one.data_keys for one in done),
        segments=sum(one.segments for one in done),
        keys_found=all(one.keys_found for one in done),
    )
