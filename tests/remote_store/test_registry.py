"""The rows of a cluster in a remote store: identity, members, assignment, tenant directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tenantq.domain.cluster_view import FORMATS, SPREAD_FORMAT, Member, TenantPlacement
from tenantq.errors import Conflict, Invalid, StoreFailed, StoreFormat
from tenantq.store import cluster_rows
from tenantq.store.postgres import registry as postgres_registry
from tenantq.store.postgres.address import parse_postgres_address
from tenantq.store.postgres.registry import PostgresRegistry
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.redis import registry as redis_registry
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings
from tests.postgres_servers import PostgresServer
from tests.redis_servers import RedisServer

LEASE_MS = 60_000
RemoteRegistry = RedisRegistry | PostgresRegistry
Open = Callable[..., RemoteRegistry]


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> RedisServer | PostgresServer:
    """Return an empty server that keeps what it confirms."""
    found: RedisServer | PostgresServer = request.getfixturevalue(f"durable_{request.param}")
    found.clear()
    return found


@pytest.fixture
def open_registry(server: RedisServer | PostgresServer) -> Iterator[Open]:
    """Open registries of one cluster."""
    opened: list[RemoteRegistry] = []

    def open_one(name: str = "fleet", **settings: object) -> RemoteRegistry:
        found: RemoteRegistry
        if isinstance(server, RedisServer):
            found = RedisRegistry(parse_address(server.url), RedisSettings(name=name, **settings))  # type: ignore[arg-type]  # each by its name
        else:
            address = parse_postgres_address(server.url)
            found = PostgresRegistry(address, PostgresSettings(name=name, **settings))  # type: ignore[arg-type]  # each by its name
        opened.append(found)
        return found

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def registry(open_registry: Open) -> RemoteRegistry:
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


def test_the_check_of_a_growth_refuses_what_growing_refuses(open_registry: Open) -> None:
    """It changes nothing."""
    registry = open_registry()
    registry.create(16, ())
    registry.heartbeat(member("a", shards=16), LEASE_MS)
    for shards, refusal in (
        (32, r"cannot be raised to 32 .* \(a has 16\)"),
        (8, r"cannot be reduced \(8, .* has 16\)"),
    ):
        with pytest.raises(Invalid, match=refusal):
            registry.check_growth(shards)
        with pytest.raises(Invalid, match=refusal):
            registry.create(shards, ())
    registry.check_growth(16)
    registry.leave("a")
    registry.check_growth(32)
    assert registry.create(None, ()).shards == 16


def test_regions_are_fixed_when_a_cluster_is_created(open_registry: Open) -> None:
    """Other regions would move shards between regions."""
    assert open_registry().create(None, ("eu", "us")).region_of(1) == "us"
    with pytest.raises(Invalid, match=r"cluster.regions: differ"):
        open_registry().create(None, ("us",))


def test_a_newer_format_waits_for_members_and_keeps_older_programs_out(
    open_registry: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that does not read it prevents it. Afterwards the cluster still grows, and older programs refuse it."""
    registry = open_registry()
    registry.create(4, ())
    registry.heartbeat(member("old", version="1.0"), LEASE_MS)
    registry.heartbeat(member("new", format=SPREAD_FORMAT), LEASE_MS)
    with pytest.raises(Conflict, match=r"cannot serve a part of a tenant \(old has 1.0\). Upgrade them first"):
        registry.raise_format(SPREAD_FORMAT)
    registry.leave("old")
    registry.raise_format(SPREAD_FORMAT)
    registry.raise_format(SPREAD_FORMAT)
    assert registry.heartbeat(member("new", format=SPREAD_FORMAT), LEASE_MS).cluster.format == SPREAD_FORMAT
    assert open_registry().create(8, ()).shards == 8
    monkeypatch.setattr(cluster_rows, "FORMATS", FORMATS[:1])
    with pytest.raises(StoreFormat, match="has format 2; this program reads format 1"):
        open_registry().create(None, ())
    with pytest.raises(StoreFormat, match="has format 2"):
        registry.heartbeat(member("old"), LEASE_MS)


def test_unknown_cluster_format_is_refused_and_left_unchanged(
    open_registry: Open, server: RedisServer | PostgresServer
) -> None:
    """No row of the cluster changes."""
    open_registry().create(4, ())

    def row() -> object:
        if isinstance(server, RedisServer):
            return server.client().hgetall("t:{fleet}:cluster")
        return server.execute("SELECT * FROM fleet.cluster")

    if isinstance(server, RedisServer):
        server.client().hset("t:{fleet}:cluster", "format", "9")
    else:
        server.execute("UPDATE fleet.cluster SET format = '9'")
    before = row()
    with pytest.raises(StoreFormat, match="has format 9"):
        open_registry().create(64, ())
    assert row() == before


def test_a_heartbeat_returns_all_members_and_elects_one_assigner(registry: RemoteRegistry) -> None:
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


def test_only_the_assigner_assigns(registry: RemoteRegistry) -> None:
    """A paused assigner whose lease ended changes nothing."""
    registry.heartbeat(member("a"), LEASE_MS)
    registry.heartbeat(member("b"), LEASE_MS)
    assert registry.assign("a", {0: "a", 1: "b"}, [])
    assert not registry.assign("b", {0: "b"}, ["a"])
    assert registry.heartbeat(member("b"), LEASE_MS).assignment == {0: "a", 1: "b"}
    assert registry.assign("a", {}, ["b"])
    assert list(registry.heartbeat(member("a"), LEASE_MS).members) == ["a"]


def test_an_emptied_store_is_an_error(
    registry: RemoteRegistry, open_registry: Open, server: RedisServer | PostgresServer
) -> None:
    """A heartbeat must not silently recreate half a cluster, nor join the next one under its name."""
    server.clear()
    with pytest.raises(StoreFormat, match=r"no cluster has the name 'fleet'|tables are gone"):
        registry.heartbeat(member("a"), LEASE_MS)
    other = open_registry()
    assert other.find() is None
    there = other.create(None, ())
    with pytest.raises(StoreFormat, match=f"cluster {there.id} has the name 'fleet'"):
        registry.heartbeat(member("a"), LEASE_MS)
    assert list(other.heartbeat(member("b"), LEASE_MS).members) == ["b"]


def test_the_first_placement_of_a_tenant_wins(registry: RemoteRegistry) -> None:
    """Two servers that create one tenant agree on its shard."""
    assert registry.place_tenant("acme", TenantPlacement(shard=3)) == TenantPlacement(shard=3, version=1)
    assert registry.place_tenant("acme", TenantPlacement(shard=4)).shard == 3


def test_placement_moves_only_from_the_version_that_was_read(registry: RemoteRegistry) -> None:
    """Sending the same move twice is one move."""
    registry.place_tenant("acme", TenantPlacement(shard=3))
    assert registry.move_tenant("acme", TenantPlacement(shard=9), 1) == TenantPlacement(shard=9, version=2)
    assert registry.move_tenant("acme", TenantPlacement(shard=9), 1) == TenantPlacement(shard=9, version=2)
    assert registry.move_tenant("acme", TenantPlacement(shard=5), 1) is None
    assert registry.move_tenant("nobody", TenantPlacement(shard=5), 0) is None


def test_members_follow_the_directory_incrementally(registry: RemoteRegistry) -> None:
    """Changes since a version, removed tenants included, lead to the same directory as reading it all."""
    registry.place_tenant("acme", TenantPlacement(shard=3, regions=("eu",)))
    version, rows = registry.placements()
    registry.place_tenant("globex", TenantPlacement(shard=5))
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
    registry: RemoteRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of changes is bounded."""
    monkeypatch.setattr(redis_registry, "CHANGES_KEPT", 1)
    monkeypatch.setattr(postgres_registry, "CHANGES_KEPT", 1)
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


def _place_many(registry: RemoteRegistry) -> None:
    """Place tenants until it fails: PostgreSQL uses a changed setting a moment later."""
    for number in range(10_000):
        registry.place_tenant(f"tenant-{number}", TenantPlacement(shard=1))


def _end_waits(server: PostgresServer) -> None:
    """Cancel commits that wait for a standby: others see them then."""
    server.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    server.until("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")


def test_change_confirmed_by_too_few_replicas_is_an_error(
    open_registry: Open, server: RedisServer | PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the replica or standby that is asked for, the directory cannot be changed durably."""
    if isinstance(server, RedisServer):
        monkeypatch.setattr(redis_registry, "PATIENCE_MS", 300)
        with pytest.raises(StoreFailed, match="0 of 1 replicas confirmed"):
            open_registry(replicas=1).create(None, ())
        return
    open_registry().create(None, ())
    open_registry().shared_value("pepper", b"one")
    monkeypatch.setattr(postgres_registry, "PATIENCE_MS", 300)
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.execute("SELECT pg_reload_conf()")
    try:
        with pytest.raises(StoreFailed, match="Nothing of this round is confirmed"):
            _place_many(open_registry())
        for _ in range(2):  # the repetition finds the change that no standby has confirmed
            _end_waits(server)
            with pytest.raises(StoreFailed, match="Nothing of this round is confirmed"):
                open_registry().request_drain("a", drain=True)
            _end_waits(server)
            with pytest.raises(StoreFailed, match="Nothing of this round is confirmed"):
                open_registry().remove_shared("pepper")
    finally:
        server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        server.execute("SELECT pg_reload_conf()")
