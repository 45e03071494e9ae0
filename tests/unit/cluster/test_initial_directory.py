"""The directory of a data directory that has none, from the catalogs of its shards."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from tenantq.cluster.node import ClusterNode
from tenantq.cluster.supervision import initial_directory
from tenantq.cluster.supervision.initial_directory import build_directory, placements_of
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.domain.config import TenantConfig
from tenantq.domain.placement import spread_shard
from tenantq.engine.catalog import MovedRow, TenantRow
from tenantq.engine.part_state import PartState
from tenantq.errors import StoreFailed
from tenantq.store.placement_file import PlacementFile

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.engine.catalog import Catalog


def _tenant(name: str, id: int, queues: tuple[str, ...] = (), part: PartState | None = None) -> Any:
    config = SimpleNamespace(regions=("eu",))
    return SimpleNamespace(name=name, id=id, config=config, part=part, queues=dict.fromkeys(queues))


def _catalog(*tenants: Any, **moved: MovedRow) -> Catalog:
    by_name = {one.name: one for one in tenants}
    by_id = {one.id: one for one in tenants}
    return cast("Catalog", SimpleNamespace(tenants=by_name, tenants_by_id=by_id, moved=moved))


def test_of_two_tenants_of_one_name_the_lower_shards_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """The other is named in the log. Tenants that every shard has for itself have one row, or none."""
    common = (_tenant("default", 1), _tenant("tenantq-probe-a", 2))
    catalogs = {2: _catalog(_tenant("both", 3), *common), 0: _catalog(_tenant("both", 4), *common), 1: _catalog()}
    assert placements_of(catalogs) == {
        "both": TenantPlacement(shard=0, regions=("eu",)),
        "default": TenantPlacement(shard=0, regions=("eu",)),
    }
    assert "only those on the lower shard are served: both" in caplog.text


def test_a_fenced_tenant_belongs_to_its_source_until_the_target_serves_it() -> None:
    """A killed process may have left it in neither catalog. A tenant that has left is nowhere else."""
    row = msgspec.msgpack.encode(TenantRow("fenced", TenantConfig(regions=("eu",)), 1))
    fenced, left = MovedRow(7, 1, row), MovedRow(8, 1)
    source, target = _catalog(fenced=fenced, left=left), _catalog()
    assert placements_of({0: source, 1: target}) == {"fenced": TenantPlacement(shard=0, regions=("eu",))}
    serving = _catalog(_tenant("fenced", 7))
    assert placements_of({0: source, 1: serving}) == {"fenced": TenantPlacement(shard=1, regions=("eu",))}


def test_a_fenced_group_of_queues_moves_on(caplog: pytest.LogCaptureFixture) -> None:
    """Else it would stay where its hash does not say, and callers would look for it elsewhere. Parts are no second tenant."""
    shards = (0, 1)
    group = next(name for name in map(str, range(9)) if spread_shard("wide", name, shards) == 1)
    source = _catalog(_tenant("wide", 5, (), PartState(0, 0, shards)), **{f"wide/{group}": MovedRow(5, 1, b"row")})
    target = _catalog(_tenant("wide", 5, (), PartState(1, 0, shards)))
    assert placements_of({0: source, 1: target}) == {
        "wide": TenantPlacement(shard=0, shards=shards, regions=("eu",)),
        f"wide/{group}": TenantPlacement(shard=0, moving_to=1),
    }
    assert not caplog.records


def test_queues_of_a_spread_tenant_are_found_where_they_are() -> None:
    """Those that are not where their hash says have rows, and move there. A part that is not needed leaves."""
    shards = (0, 1)
    here = [name for name in (f"q{number}" for number in range(9)) if spread_shard("wide", name, shards) == 0]
    parts = [PartState(number, 0, shards) for number in range(3)]
    catalogs = {
        0: _catalog(_tenant("wide", 5, (here[0],), parts[0])),
        1: _catalog(_tenant("wide", 5, (here[1], f"{here[1]}-dlq"), parts[1])),
        2: _catalog(_tenant("wide", 5, (), parts[2])),
    }
    assert placements_of(catalogs) == {
        "wide": TenantPlacement(shard=0, shards=shards, leaving=(2,), regions=("eu",)),
        f"wide/{here[1]}": TenantPlacement(shard=1, moving_to=0),
    }


@pytest.mark.parametrize("shards", [1, 2])
def test_a_rebuilt_directory_has_no_pins_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    """Not if the server had one shard until now, and only once."""
    catalogs = {number: _catalog(_tenant(f"tenant-{number}", number)) for number in range(shards)}
    monkeypatch.setattr(initial_directory, "_catalogs", lambda *_: catalogs)
    for _ in range(2):
        build_directory(tmp_path, 2)
    logged = [record for record in caplog.records if "No tenant is pinned" in record.message]
    assert [record.levelname for record in logged] == (["WARNING"] if shards > 1 else [])
    assert all("topology dedicate" in record.message for record in logged)


def test_a_starting_server_allows_moves_again(tmp_path: Path) -> None:
    """A shard that was killed during a backup may not exist any more."""
    build_directory(tmp_path, 1)
    stored = PlacementFile(tmp_path)
    assert not stored.is_new()
    row = stored.place_tenant("acme", TenantPlacement(shard=0))
    stored.hold_moves(7)
    build_directory(tmp_path, 2)
    assert stored.move_tenant("acme", TenantPlacement(shard=0, moving_to=1), row.version) is not None
    stored.close()


async def test_a_shard_does_not_start_with_a_directory_that_nobody_has_built(tmp_path: Path) -> None:
    """Without rows it would take its moving tenants for deleted."""
    with closing(PlacementFile(tmp_path, create=True)) as stored:
        placements = TenantPlacements(stored, Cluster(id="", format="1", shards=2))
        node = SimpleNamespace(_stored=stored, _placements=placements, _spec=SimpleNamespace(number=0))
        read = partial(ClusterNode.read_directory, cast("ClusterNode", node))
        with pytest.raises(StoreFailed, match="is empty"):
            await read()
        stored.fill({})  # a server without tenants
        await read()
