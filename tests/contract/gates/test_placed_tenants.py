"""What a shard does about directory rows that do not fit its tenants, and what a deletion does without the directory."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.cluster.placed_tenants import PlacedTenants
from tenantq.cluster.tenant_creation import TenantCreation
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.errors import Conflict, StoreFailed
from tenantq.service.erasure import RETRY_MS
from tenantq.store.placement_file import PlacementFile

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.cluster.shard_calls import CallsFromShard
    from tests.contract.gates.harness import ServiceHarness

REASON = "a test says so"


async def _delete(harness: ServiceHarness, tenant: str) -> None:
    await harness.service.erasures.delete_tenant(harness.admin, tenant, confirm=tenant, reason=REASON)


async def test_rows_of_deleted_tenants_go_and_misplaced_tenants_are_named(
    harness: ServiceHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash may have come between a deletion and the directory. Two shards with one tenant are an error in the log."""
    for name in ("deleted", "elsewhere", "here", "misplaced"):
        await harness.tenant(name)
    for name in ("deleted", "elsewhere"):
        await _delete(harness, name)
    with contextlib.closing(PlacementFile(tmp_path, create=True)) as stored:
        for name, shard in {"deleted": 0, "elsewhere": 1, "misplaced": 1, "new": 0}.items():
            stored.place_tenant(name, TenantPlacement(shard=shard))
        placements = TenantPlacements(stored, Cluster(id="", format="1", shards=2))
        await placements.refresh()
        tenants = PlacedTenants(0, harness.service, placements, cast("CallsFromShard", SimpleNamespace()))
        await tenants.open()
        await tenants.close()
        found = {name: row.shard for name, row in stored.placements()[1].items()}
    assert found == {"elsewhere": 1, "here": 0, "misplaced": 1, "new": 0}
    [error] = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert "tenant misplaced is not served by shard 0, which has it: the directory names shard 1" in error


async def test_a_deletion_ends_without_the_directory(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the certificate, and the name becomes free later."""
    announced: list[str] = []

    async def announce(name: str, _: object) -> None:
        announced.append(name)
        if len(announced) == 1:
            raise StoreFailed("busy")

    await harness.tenant("acme")
    monkeypatch.setattr(harness.service.erasures._other_shards, "announce", announce)
    await _delete(harness, "acme")
    assert harness.shard.erasure.certificates()[0].certified_at
    await harness.pass_time(RETRY_MS)
    await harness.pass_time(RETRY_MS)
    assert announced == ["acme", "acme"]


@pytest.mark.parametrize("known", [None, 1])
async def test_a_refused_creation_removes_the_row_of_an_unfinished_one(known: int | None) -> None:
    """The shard keeps it if it has the tenant."""
    asked: list[Any] = []

    async def call(_: int, method: str, *_arguments: object) -> None:
        if method == "tenants.put":
            raise Conflict("regions")

    async def query(shard: int, method: str, tenant: str) -> None:
        asked.append((shard, method, tenant))

    async def place(*_: object) -> int:
        return 1

    creation = TenantCreation(
        cast("Any", SimpleNamespace(find=lambda _: known, place=place)),
        cast("Any", SimpleNamespace(call=call, query=query)),
        cast("Any", SimpleNamespace(known_owner=lambda *_: known, number=0)),
        cast("Any", None),
        tuple,
    )
    with pytest.raises(Conflict):
        await creation.put(cast("Any", None), "acme", {})
    assert asked == [(1, "peer.unplace", "acme")]
