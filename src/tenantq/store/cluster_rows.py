"""What all remote stores share of a cluster's rows: their encoding, and the checks before they are changed."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tenantq.domain.cluster_view import FORMATS, Cluster, Member, TenantPlacement
from tenantq.domain.urls import is_loopback
from tenantq.errors import Conflict, Invalid, StoreDamaged, StoreFormat

CHANGES_KEPT: Final = 10_000
"""Directory changes that a member can catch up with; one that missed more reads the whole directory."""
PATIENCE_MS: Final = 2_000
"""How long a call retries. Members repeat their heartbeats anyway."""
encode: Final = msgspec.json.Encoder().encode
decode_member: Final = msgspec.json.Decoder(Member).decode
_decode_placement: Final = msgspec.json.Decoder(TenantPlacement).decode


def decode_placement(version: int, row: bytes) -> TenantPlacement:
    """Return a stored placement; its version is stored apart from it."""
    return msgspec.structs.replace(_decode_placement(row), version=version)


def unversioned(placement: TenantPlacement) -> TenantPlacement:
    """Return a placement as it is stored."""
    return msgspec.structs.replace(placement, version=0)


def parse_cluster(address: object, name: str, row: Mapping[str, str]) -> Cluster:
    """Return the cluster of this name from its row. Raises StoreFormat or StoreDamaged."""
    check_format(address, name, row.get("format", ""))
    try:
        regions = tuple(row["regions"].split(",")) if row["regions"] else ()
        return Cluster(id=row["id"], format=row["format"], shards=int(row["shards"]), regions=regions)
    except (KeyError, ValueError) as error:
        raise StoreDamaged(f"store {address}: the row of cluster {name!r} is damaged.") from error


def check_format(address: object, name: str, found: str) -> None:
    """Raise StoreFormat if the cluster ``name`` has a format that this program does not read."""
    if found not in FORMATS:
        raise StoreFormat(
            f"store {address}: cluster {name!r} has format {found or 'unknown'}; this program reads"
            f" format {' and '.join(FORMATS)}. Use the program version of the other servers."
        )


def check_readers(members: Iterable[Member], format: str) -> None:
    """Raise Conflict if a member does not read a format of the cluster's rows."""
    older = {one.id: one.version for one in members if int(one.format) < int(format)}
    if older:
        named = ", ".join(f"{id} has {version or 'an unknown version'}" for id, version in sorted(older.items()))
        raise Conflict(
            f"spread: servers run a version that cannot serve a part of a tenant ({named})."
            " Upgrade them first, or wait a minute if they were killed."
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


def check_loopback(members: Iterable[Member], joining: Member) -> None:
    """Raise Invalid if a member on another machine has a loopback address, or the joining one has."""
    for one in members:
        if not one.machine or one.machine == joining.machine:
            continue
        if _is_on_loopback(joining):
            raise Invalid(
                f"cluster.peer: member {one.id} runs on another machine and cannot reach this server at"
                f" {joining.peer_address}. Set an address that other servers can reach."
            )
        if _is_on_loopback(one):
            raise Invalid(
                f"cluster.peer: this server cannot reach member {one.id} at {one.peer_address} on another machine."
                " Set cluster.peer there and restart it, or wait a minute if it was killed."
            )


def _is_on_loopback(member: Member) -> bool:
    return is_loopback(member.peer_address.rpartition(":")[0].strip("[]"))


def check_growth(members: Iterable[Member], shards: int) -> None:
    """Raise Invalid if the number of shards would be raised above the setting of a member."""
    lower = {one.id: one.shards for one in members if 0 < one.shards < shards}
    if lower:
        named = ", ".join(f"{id} has {count}" for id, count in sorted(lower.items()))
        raise Invalid(
            f"cluster.shards: cannot be raised to {shards} while members run with a lower setting ({named})."
            " Remove the setting there and restart them, or wait a minute if they were killed."
        )
