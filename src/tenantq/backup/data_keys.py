"""The file of wrapped data keys, next to all backups and never inside one.

Backups are old states, but this file is always current. So no backup has the keys of a deleted tenant, and its messages cannot be
decrypted from any backup.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tenantq.errors import Invalid, StoreDamaged
from tenantq.runtime.durable_files import write_durably
from tenantq.vault.stored_keys import is_key

FORMAT: Final = 1


class DataKeyFile(msgspec.Struct, frozen=True):
    """All wrapped data keys of a store. Only the key management system can unwrap them."""

    format: int
    written_at: int  # wall clock
    keys: dict[int, dict[int, bytes]]  # by tenant id and number
    tenants: dict[int, str] = {}  # the mark of the tenant with that id, from ``tenant_mark``


def data_key_file_name(key_id: str) -> str:
    """Return the file's name for the server whose audit key is ``key_id``."""
    return f"data-keys-{key_id}.json"


def tenant_mark(name: str, since: int) -> str:
    """Return a mark that distinguishes tenants that had the same id in different histories."""
    return f"{name}/{since}"


def write_data_keys(
    path: Path,
    keys: Mapping[int, Mapping[int, bytes]],
    now_ms: int,
    *,
    tenants: Mapping[int, str],
    erased: Collection[int] = (),
) -> None:
    """Replace the file durably and atomically. Without keys it is only written if an older one exists.

    Its keys are kept unless their tenant is in ``erased`` or its id now belongs to another tenant: a server that was restored without
    data keys, or has damaged rows, must not remove them. ``tenants`` has the marks of all current tenants.
    """
    exists = path.exists()
    if not exists and not keys:
        return
    before = _read(path) if exists else DataKeyFile(FORMAT, now_ms, {})
    merged = {tenant: dict(numbers) for tenant, numbers in keys.items()}
    marks = {id: tenants[id] for id in keys if id in tenants}
    for tenant, numbers in before.keys.items():
        mark = before.tenants.get(tenant, "")
        if tenant not in erased and mark == tenants.get(tenant, mark):
            now = merged.get(tenant, {})
            kept = {number for number, row in numbers.items() if is_key(row) and not is_key(now.get(number, b""))}
            merged[tenant] = {**numbers, **{number: row for number, row in now.items() if number not in kept}}
            marks[tenant] = mark
    _write(path, DataKeyFile(FORMAT, now_ms, merged, marks))


def drop_data_keys(path: Path, erased: Collection[int], now_ms: int) -> None:
    """Remove the keys of erased tenants from an old file."""
    before = _read(path)
    if not before.keys.keys().isdisjoint(erased):
        kept = {tenant: numbers for tenant, numbers in before.keys.items() if tenant not in erased}
        _write(path, DataKeyFile(FORMAT, now_ms, kept, before.tenants))


def _write(path: Path, content: DataKeyFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, msgspec.json.encode(content), 0o600)


def read_data_keys(path: Path) -> dict[int, dict[int, bytes]]:
    """Return the keys by tenant id and number. Raises Invalid or StoreDamaged."""
    return _read(path).keys


def _read(path: Path) -> DataKeyFile:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=DataKeyFile)
    except OSError as error:
        raise Invalid(f"data keys {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{path}: not a data key file: {error}") from error
    if content.format != FORMAT:
        raise Invalid(f"{path}: unsupported format {content.format} (supported: {FORMAT})")
    return content
