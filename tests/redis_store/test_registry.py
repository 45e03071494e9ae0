"""The rows of a cluster in Redis: identity, members, assignment, tenant directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tenantq.domain.cluster_view import Member, TenantPlacement
from tenantq.errors import Invalid, StoreFailed, StoreFormat
from tenantq.store.redis import registry as registry_module
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings
from tests.redis_servers import RedisServer

LEASE_MS = 60_000
Open = Callable[..., RedisRegistry]


@pytest.fixture
def open_registry(durable_server: RedisServer) -> Iterator[Open]:
    """Open registries of one cluster."""
    opened: list[RedisRegistry] = []

    def open_one(name: str = "fleet", **settings: object) -> RedisRegistry:
        found = RedisRegistry(parse_address(durable_server.url), RedisSettings(name=name, **settings))  # type: ignore[arg-type]  # each by its name
        opened.append(found)
        return found

    yield open_one
    for one in opened:
        one.close()
    durable_server.client().flushall()


@pytest.fixture
def registry(open_registry: Open) -> RedisRegistry:
    """Open the registry of a new cluster."""
    found = open_registry()
    found.create(None, ())
    return found


def member(id: str, **facts: object) -> Member:
    """Describe a member."""
    return Member(id=id, peer_address="127.0.0.1:1", **facts)  # type: ignore[arg-type]  # each by its name


def test_a_cluster_is_created_once(open_registry: Open) -> None:
    """The second server finds the first one's cluster."""
    first, second = open_registry().create(None, ()), open_registry().create(None, ())
    assert first == second
    assert first.shards == 64


def test_a_cluster_can_grow_and_never_shrinks(open_registry: Open) -> None:
    """A running member sees the new number with its next heartbeat."""
    old = open_registry()
    old.create(16, ())
    assert open_registry().create(32, ()).shards == 32
    assert old.heartbeat(member("a"), LEASE_MS).cluster.shards == 32
    with pytest.raises(Invalid, match=r"cluster.shards: cannot be reduced \(16, .* has 32\)"):
        open_registry().create(16, ())
    assert open_registry().create(None, ()).shards == 32


def test_regions_are_fixed_when_a_cluster_is_created(open_registry: Open) -> None:
    """Other regions would move shards between regions."""
    assert open_registry().create(None, ("eu", "us")).region_of(1) == "us"
    with pytest.raises(Invalid, match=r"cluster.regions: differ"):
        open_registry().create(None, ("us",))


def test_unknown_cluster_format_is_refused_and_left_unchanged(open_registry: Open, durable_server: RedisServer) -> None:
    """No row of the cluster changes."""
    durable_server.client().hset("t:{fleet}:cluster", mapping={"format": "9", "shards": "4"})
    before = durable_server.client().hgetall("t:{fleet}:cluster")
    with pytest.raises(StoreFormat, match="has format 9"):
        open_registry().create(64, ())
    assert durable_server.client().hgetall("t:{fleet}:cluster") == before


def test_a_heartbeat_returns_all_members_and_elects_one_assigner(registry: RedisRegistry) -> None:
    """The first member assigns until it leaves."""
    a = member("a", owned={3: 7}, loads={3: 0.5}, acquiring=(4,))
    assert registry.heartbeat(a, LEASE_MS).assigner == "a"
    rows = registry.heartbeat(member("b"), LEASE_MS)
    assert rows.members == {"a": a, "b": member("b")}
    assert rows.assigner == "a"
    assert registry.heartbeat(a, LEASE_MS).beats == {"a": 2, "b": 1}
    registry.leave("a")
    rows = registry.heartbeat(member("b"), LEASE_MS)
    assert (rows.assigner, list(rows.members)) == ("b", ["b"])


def test_only_the_assigner_assigns(registry: RedisRegistry) -> None:
    """A paused assigner whose lease ended changes nothing."""
    registry.heartbeat(member("a"), LEASE_MS)
    registry.heartbeat(member("b"), LEASE_MS)
    assert registry.assign("a", {0: "a", 1: "b"}, [])
    assert not registry.assign("b", {0: "b"}, ["a"])
    assert registry.heartbeat(member("b"), LEASE_MS).assignment == {0: "a", 1: "b"}
    assert registry.assign("a", {}, ["b"])
    assert list(registry.heartbeat(member("a"), LEASE_MS).members) == ["a"]


def test_an_emptied_store_is_an_error(
    registry: RedisRegistry, open_registry: Open, durable_server: RedisServer
) -> None:
    """A heartbeat must not silently recreate half a cluster, nor join the next one under its name."""
    durable_server.client().flushall()
    with pytest.raises(StoreFailed, match="no cluster has the name 'fleet'"):
        registry.heartbeat(member("a"), LEASE_MS)
    assert durable_server.client().keys() == []
    other = open_registry()
    there = other.create(None, ())
    with pytest.raises(StoreFailed, match=f"cluster {there.id} has the name 'fleet'"):
        registry.heartbeat(member("a"), LEASE_MS)
    assert list(other.heartbeat(member("b"), LEASE_MS).members) == ["b"]


def test_the_first_placement_of_a_tenant_wins(registry: RedisRegistry) -> None:
    """Two servers that create the same tenant agree on its shard."""
    assert registry.place_tenant("acme", TenantPlacement(shard=3)) == TenantPlacement(shard=3, version=1)
    assert registry.place_tenant("acme", TenantPlacement(shard=4)).shard == 3


def test_placement_moves_only_from_the_version_that_was_read(registry: RedisRegistry) -> None:
    """Sending the same move twice has one effect."""
    registry.place_tenant("acme", TenantPlacement(shard=3))
    assert registry.move_tenant("acme", TenantPlacement(shard=9), 1) == TenantPlacement(shard=9, version=2)
    assert registry.move_tenant("acme", TenantPlacement(shard=9), 1) == TenantPlacement(shard=9, version=2)
    assert registry.move_tenant("acme", TenantPlacement(shard=5), 1) is None
    assert registry.move_tenant("nobody", TenantPlacement(shard=5), 0) is None


def test_members_follow_the_directory_incrementally(registry: RedisRegistry) -> None:
    """Applying the changes since a version, removals included, gives the same directory as a full read."""
    registry.place_tenant("acme", TenantPlacement(shard=3, regions=("eu",)))
    version, rows = registry.placements()
    registry.place_tenant("globex", TenantPlacement(shard=5, spread=2))
    registry.remove_tenant("acme")
    registry.remove_tenant("acme")
    changes = registry.placement_changes(version)
    assert changes is not None
    version, changed = changes
    merged = {name: row for name, row in {**rows, **changed}.items() if row is not None}
    assert (version, merged) == registry.placements()
    assert registry.placement_changes(version) == (version, {})
    assert registry.heartbeat(member("a"), LEASE_MS).directory_version == version


def test_a_member_that_missed_too_many_changes_reads_the_whole_directory(
    registry: RedisRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of changes is bounded."""
    monkeypatch.setattr(registry_module, "CHANGES_KEPT", 1)
    for number in range(300):
        registry.place_tenant(f"tenant-{number}", TenantPlacement(shard=0))
    assert registry.placement_changes(0) is None


def test_all_members_share_small_values(open_registry: Open) -> None:
    """The first writer wins."""
    open_registry().create(None, ())
    assert open_registry().shared_value("pepper", b"one") == b"one"
    assert open_registry().shared_value("pepper", b"two") == b"one"
    assert open_registry().shared_values()["pepper"] == b"one"
    open_registry().remove_shared("pepper")
    assert "pepper" not in open_registry().shared_values()


def test_two_clusters_share_a_redis_under_different_names(open_registry: Open) -> None:
    """Neither sees the rows of the other."""
    blue, green = open_registry("blue"), open_registry("green")
    assert blue.create(8, ()).id != green.create(16, ()).id
    blue.heartbeat(member("a"), LEASE_MS)
    assert list(green.heartbeat(member("b"), LEASE_MS).members) == ["b"]


def test_change_confirmed_by_too_few_replicas_is_an_error(open_registry: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """With redis.replicas = 1 and no replica, the directory cannot be changed durably."""
    monkeypatch.setattr(registry_module, "PATIENCE_MS", 300)
    with pytest.raises(StoreFailed, match="0 of 1 replicas confirmed"):
        open_registry(replicas=1).create(None, ())
