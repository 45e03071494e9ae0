"""Which remote store the local files of a data directory belong to."""

from pathlib import Path

from tenantq.errors import StoreFormat
from tenantq.runtime.durable_files import write_durably


def check_not_embedded(path: Path, address: object) -> None:
    """Raise StoreFormat if ``path`` is the data directory of an embedded store."""
    if (path / "format").exists():
        raise StoreFormat(f"{path} contains an embedded store. Use another data directory for the store {address}.")


def check_identity(path: Path, mark: str, address: object, id: str, *, read_only: bool) -> None:
    """Raise StoreFormat unless the store with this id belongs to the local files in ``path``, which name it in the file ``mark``."""
    check_not_embedded(path, address)
    file = path / mark
    known = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else None
    if known is None and read_only:
        return
    if known is None:
        write_durably(file, f"{id}\n".encode())
    elif known != id:
        raise StoreFormat(
            f"{path} was used with another store than the one at {address}: that store was emptied or replaced, and"
            " confirmed messages are not in it. To use it anyway, choose a new data directory."
        )
