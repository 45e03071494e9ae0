"""A batch for a remote store: its changes in memory, sent when it is written."""

from typing import Final

from tenantq.store.interface import Family
from tenantq.store.keys import FAMILIES

NUMBER: Final = {name: number for number, name in enumerate(FAMILIES)}
"""The handle of each family."""


def remote_families() -> list[Family]:
    """Return the families of a remote store: batches use their numbers, and reads their names."""
    return [Family(name, NUMBER[name], name) for name in FAMILIES]


class ChangeBatch:
    """A ``Batch``. Deleting a range also drops earlier changes inside it, so ranges come before single rows."""

    __slots__ = ("changed", "ranges")

    def __init__(self) -> None:
        self.changed: list[dict[bytes, bytes | None]] = [{} for _ in FAMILIES]  # None: deleted
        self.ranges: list[tuple[int, bytes, bytes]] = []

    def put(self, key: bytes, value: bytes, handle: int, /) -> None:
        self.changed[handle][key] = value

    def delete(self, key: bytes, handle: int, /) -> None:
        self.changed[handle][key] = None

    def delete_range(self, lower: bytes, upper: bytes, handle: int, /) -> None:
        rows = self.changed[handle]
        for key in [key for key in rows if lower <= key < upper]:
            del rows[key]
        self.ranges.append((handle, lower, upper))

    def is_empty(self) -> bool:
        return not self.ranges and not any(self.changed)
