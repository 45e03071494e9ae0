"""The files of a remote store, which are those of its server."""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, NoReturn

from tenantq.errors import Invalid
from tenantq.store.interface import Family

UNBOUNDED: Final = 1 << 50
"""Free bytes if the server has no limit, or tells clients none: more than any reserve."""


class ServerFiles(ABC):
    """The ``StoreFiles`` of a server. It reclaims the space of deleted rows by itself."""

    own_backups: ClassVar[str]
    """How the server is backed up."""

    @abstractmethod
    def rewrite(self) -> bool:
        """Have the server write its files without deleted rows.

        Return False if something can still see deleted rows. Raises StoreFailed unless the server confirms it.
        """

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the free space for rows."""

    def scrub(self, family: Family, lower: bytes, upper: bytes) -> None:  # noqa: ARG002  # files are rewritten as a whole
        self.rewrite()

    def erase(self, lower: bytes, upper: bytes) -> bool:  # noqa: ARG002  # as above
        return self.rewrite()

    def compact(self, lower: bytes, upper: bytes) -> None:  # noqa: B027  # the server does it
        """Do nothing."""

    def forget_deletions(self) -> bool:
        """Do nothing: no file only records deletions."""
        return False

    def flush(self) -> None:  # noqa: B027  # as above
        """Do nothing."""

    def manifest(self) -> tuple[int, int]:
        return 0, 0

    def checkpoint(self) -> NoReturn:
        """Raise Invalid: the server has its own backups."""
        raise Invalid(self.own_backups)
