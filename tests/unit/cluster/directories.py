"""Directories of several shards, for tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from tenantq.cluster.tenant_directory import TenantDirectory, TenantPlacements
from tenantq.domain.cluster_view import Cluster, TenantPlacement

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.cluster.registry import PlacementRows
    from tenantq.domain.placement import Topology


def directory_of(
    number: int, topology: Topology, homes: dict[str, int], runs: Callable[[int], bool] = lambda _: True
) -> TenantDirectory:
    """Return the directory as a shard sees it. A tenant that is added to ``homes`` is known after a refresh."""
    rows = SimpleNamespace(
        placement_changes=lambda _: None,
        placements=lambda: (1, {name: TenantPlacement(shard=shard) for name, shard in homes.items()}),
    )
    regions = tuple(one.region for one in topology.shards)
    cluster = Cluster(id="", format="1", shards=len(regions), regions=regions if any(regions) else ())
    placements = TenantPlacements(cast("PlacementRows", rows), cluster)
    placements.read(0.0)
    return TenantDirectory(placements, lambda: number, lambda: topology, tuple, runs)
