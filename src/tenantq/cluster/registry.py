"""The rows that all members of a cluster share, and what a member needs to take part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tenantq.domain.cluster_view import Cluster, Heartbeats, Member, TenantPlacement


class PlacementRows(Protocol):
    """The tenant directory in a store that several processes share. Every method blocks: call it from a thread.

    Each raises StoreFailed if the store does not answer in time.
    """

    def place_tenant(self, tenant: str, placement: TenantPlacement) -> TenantPlacement:
        """Return the tenant's placement; write the given one if it has none. The first writer wins."""

    def move_tenant(self, tenant: str, placement: TenantPlacement, expected_version: int) -> TenantPlacement | None:
        """Replace a placement that has this version. Return None if it has another one."""

    def remove_tenant(self, tenant: str) -> None:
        """Delete a tenant's placement."""

    def placements(self) -> tuple[int, dict[str, TenantPlacement]]:
        """Return the directory and its version."""

    def placement_changes(self, since: int) -> tuple[int, dict[str, TenantPlacement | None]] | None:
        """Return what changed after a version, None for tenants that were removed; None: too long ago, read it all."""


class Registry(PlacementRows, Protocol):
    """The rows of a cluster in a shared store: the tenant directory, and what members agree on. Every method blocks, too."""

    def create(self, shards: int | None, regions: tuple[str, ...]) -> Cluster:
        """Create the cluster, or return the one that exists, with at least ``shards`` shards.

        Raises Invalid if it has more shards or other regions, or if members run with a setting of fewer shards, StoreFormat if
        it has another format.
        """

    def check_growth(self, shards: int) -> None:
        """Raise Invalid if ``create`` would refuse this number of shards. Changes nothing."""

    def check_join(self, member: Member) -> None:
        """Raise Invalid if a live member and this one cannot reach each other by their addresses. Changes nothing."""

    def find(self) -> Cluster | None:
        """Return the cluster; None if it does not exist. Changes nothing. Raises StoreFormat if it has another format."""

    def raise_format(self, format: str) -> None:
        """Have programs that do not read a format refuse the cluster. Raises Conflict if members do not read it."""

    def heartbeat(self, member: Member, assigner_ms: int) -> Heartbeats:
        """Write a member's row, take or renew the assigner's lease for ``assigner_ms`` if it is free, and return all rows.

        Raises StoreFormat, and writes nothing, if the store has another cluster than the one that ``create`` returned, or none.
        """

    def leave(self, member_id: str) -> None:
        """Delete a member's row, and give up the assigner's lease."""

    def request_drain(self, member_id: str, *, drain: bool) -> None:
        """Drain a member, or undo a drain."""

    def assign(self, assigner: str, changes: Mapping[int, str], forget: Sequence[str]) -> bool:
        """Change the assignment and delete the rows of members to ``forget``. Return False if another member assigns now."""

    def shared_value(self, name: str, value: bytes) -> bytes:
        """Return a small value that all members share; store the given one if there is none."""

    def shared_values(self) -> dict[str, bytes]:
        """Return all shared values by name."""

    def remove_shared(self, name: str) -> None:
        """Delete a shared value."""

    def close(self) -> None:
        """Disconnect."""


class ShardHolder(Protocol):
    """Opens and closes shards in this process."""

    def owned(self) -> dict[int, int]:
        """Return the owned shards with their epochs."""

    def loads(self) -> dict[int, float]:
        """Return the smoothed load of each owned shard."""

    def waiting(self) -> set[int]:
        """Return the shards that can be served here as soon as their last owners release them."""

    async def acquire(self, shard: int, is_assigned: Callable[[], bool]) -> None:
        """Own a shard and serve it. Raises StoreLocked while another member owns it.

        While ``is_assigned``, which may be called in another thread, returns False, the shard is claimed only after its last
        owner has reported that it was released to this process.
        """

    async def release(self, shard: int, successor: Member | None) -> float:
        """Stop serving a shard, without losing a call, and let the successor have it.

        Return since when calls are refused, on the clock of the event loop.
        """
