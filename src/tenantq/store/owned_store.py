"""What the open stores of all remote kinds share: a server has the rows, and this process owns the shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tenantq.errors import StoreFailed
from tenantq.store.change_batch import NUMBER, ChangeBatch
from tenantq.store.interface import Beat, Families, Family
from tenantq.store.keys import FAMILIES
from tenantq.store.shard_lease import ShardLease


class LeasedShard(Protocol):
    """The claim of this process on one shard."""

    lease: ShardLease

    def give_up(self) -> None:
        """Give the shard up, so that another server can own it at once."""


_Owner = TypeVar("_Owner", bound=LeasedShard)


def remote_families() -> dict[str, Family]:
    """Return the families of a remote store: batches use their numbers, and reads their names."""
    return {name: Family(name, NUMBER[name], name) for name in FAMILIES}


class OwnedStore(Families, Generic[_Owner]):
    """A ``Store`` on a server. Its subclass sets ``_owner`` once it owns the shard."""

    def __init__(self, address: object) -> None:
        super().__init__(remote_families())
        self._address = address
        self._owner: _Owner | None = None

    def _own(self) -> _Owner:
        if self._owner is None:
            raise StoreFailed(f"store {self._address}: the store is closed")
        return self._owner

    def _give_up(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.give_up()

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Call ``lost``, from a thread, when another server has taken the shard over."""
        self._own().lease.watch(lost)

    @property
    def is_doubtful(self) -> bool:
        """Whether the lease may have expired, because the store does not respond."""
        return self._owner is None or self._owner.lease.may_have_ended

    @property
    def sync_marker(self) -> ShardLease | None:
        return self._own().lease

    def last_beat(self) -> Beat | None:
        return self._own().lease.last

    def new_batch(self) -> ChangeBatch:
        return ChangeBatch()

    # ---- what the server does by itself ----

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Do nothing: the server reclaims the space of deleted rows."""

    def forget_deletions(self) -> bool:
        """Do nothing: the server has no file that only records deletions."""
        return False

    def manifest(self) -> tuple[int, int]:
        """Return zeros: only RocksDB has a MANIFEST."""
        return 0, 0
