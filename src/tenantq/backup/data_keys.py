"""The wrapped data keys, in one file beside all backups and never inside one.

A backup is a state of the past; the file is always the newest. So the keys of a tenant that was deleted are in no backup, and
what it had sealed cannot be read again from any of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import Invalid, StoreDamaged
from tenantq.store.rocks import sync_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT: Final = 1


class DataKeyFile(msgspec.Struct, frozen=True):
    """All wrapped data keys of a store. They say nothing without the key management."""

    format: int
    written_at: int  # wall clock
    keys: dict[int, dict[int, bytes]]  # by tenant id and number


def data_key_file_name(key_id: str) -> str:
    """Return the file's name for the server whose audit key is ``key_id``."""
    return f"data-keys-{key_id}.json"


def write_data_keys(path: Path, keys: Mapping[int, Mapping[int, bytes]], now_ms: int) -> None:
    """Replace the file, durably and at once; where there are no keys, it is made only to take the place of an older one."""
    if not keys and not path.exists():
        return
    content = DataKeyFile(FORMAT, now_ms, {tenant: dict(numbers) for tenant, numbers in keys.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(msgspec.json.encode(content))
        stream.flush()
        os.fsync(stream.fileno())
    fresh.rename(path)
    sync_directory(path.parent)


def read_data_keys(path: Path) -> dict[int, dict[int, bytes]]:
    """Return the keys in the file by tenant id and number, or raise Invalid or StoreDamaged."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=DataKeyFile)
    except OSError as error:
        raise Invalid(f"data keys {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{path}: is no file of data keys: {error}") from error
    if content.format != FORMAT:
        raise Invalid(f"{path}: is of format {content.format}; this program reads format {FORMAT}")
    return content.keys
