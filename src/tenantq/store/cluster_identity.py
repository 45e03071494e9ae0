"""The checks of a cluster's row that all remote stores share."""

from collections.abc import Iterable

from tenantq.domain.cluster_view import Cluster, Member
from tenantq.errors import Invalid, StoreFormat


def check_format(address: object, name: str, found: str, supported: str) -> None:
    """Raise StoreFormat if the cluster ``name`` has another format."""
    if found != supported:
        raise StoreFormat(
            f"store {address}: cluster {name!r} has format {found or 'unknown'}; this program reads"
            f" format {supported}. Use the program version that created it."
        )


def check_settings(name: str, cluster: Cluster, shards: int | None, regions: tuple[str, ...]) -> None:
    """Raise Invalid if a member's settings contradict the existing cluster ``name``."""
    if shards is not None and shards < cluster.shards:
        raise Invalid(
            f"cluster.shards: cannot be reduced ({shards}, the cluster {name!r} has {cluster.shards})."
            " Remove the setting, or raise it."
        )
    if regions and regions != cluster.regions:
        raise Invalid(
            f"cluster.regions: differ from the cluster's ({', '.join(regions)};"
            f" the cluster {name!r} has {', '.join(cluster.regions) or 'none'})."
            " They are set when a cluster is created."
        )


def replaced(address: object, name: str, there: str, own: str) -> StoreFormat:
    """Return the failure of a member of cluster ``own`` whose store has the cluster ``there`` now, or none."""
    return StoreFormat(
        f"store {address}: {f'cluster {there}' if there else 'no cluster'} has the name {name!r}, but"
        f" this server belongs to cluster {own}. The store was emptied or replaced. Stop this server."
    )


def check_growth(members: Iterable[Member], shards: int) -> None:
    """Raise Invalid if the number of shards would be raised above the setting of a member."""
    lower = {one.id: one.shards for one in members if 0 < one.shards < shards}
    if lower:
        named = ", ".join(f"{id} has {count}" for id, count in sorted(lower.items()))
        raise Invalid(
            f"cluster.shards: cannot be raised to {shards} while members run with a lower setting ({named})."
            " Remove the setting there and restart them, or wait a minute if they were killed."
        )
