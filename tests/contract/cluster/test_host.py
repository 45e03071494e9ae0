"""One process owns many shards: each request reaches its shard, and a hanging store delays only its own shards."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster.error_codec import NotOwner
from tenantq.cluster.settings import ClusterSettings
from tenantq.domain.placement import jump_hash, tenant_key
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Invalid
from tenantq.server.cluster_member import HostServer
from tenantq.store.postgres.store import PostgresStore
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.store import RedisStore
from tests.administration import put_tenant
from tests.contract.cluster.hosts import SHARDS, TOKEN, client_of, host_settings, hosting, tenant_on
from tests.postgres_servers import OnPostgres, PostgresServer
from tests.redis_servers import OnRedis
from tests.shards import message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from tests.contract.cluster.hosts import SharedStore, TwoPrimaries

SECRET = "known to all servers"  # noqa: S105  # for these tests only


async def test_tenants_are_spread_over_the_shards_of_one_process(shared_store: SharedStore, tmp_path: Path) -> None:
    """Each shard serves its tenants, the platform sees all, and a restart finds everything again."""
    names = []
    async with hosting(tmp_path, shared_store.url, "spread") as server, client_of(server) as client:
        for shard in range(SHARDS):
            name = await tenant_on(client, [shard], f"shard-{shard}")
            names.append(name)
            added = await client.post(f"/v1/tenants/{name}/queues/work/messages", json={"messages": [{"body": name}]})
            assert added.status_code == 200
        listed = (await client.get("/v1/tenants")).json()["tenants"]
        assert {one["name"] for one in listed} == {"default", *names}
        assert len({one["id"] >> 26 for one in listed}) == SHARDS
        keys = await client.post(f"/v1/tenants/{names[5]}/keys", json={"name": "key", "role": "tenant-admin"})
        async with client_of(server, keys.json()["token"]) as tenant:
            own = await tenant.post("/v1/queues/work/poll", json={"max": 9, "lease_ms": 1_000})
            assert [one["body"] for one in own.json()["messages"]] == [names[5]]
            other = await tenant.post(f"/v1/tenants/{names[4]}/queues/work/poll", json={})
            assert other.status_code == 403
        unknown = await client.get("/v1/tenants", headers={"Authorization": "Bearer tq_nobody_has_this_token"})
        assert unknown.status_code == 401
        codes: set[str] = set()
        cursor: dict[str, str] = {}
        while codes != {"forbidden", "unauthenticated"}:  # refusals are journaled a little later
            page = (await client.get("/v1/audit", params={"result": "DENIED", **cursor})).json()
            codes |= {one["error_code"] for one in page["rows"]}
            cursor = {"cursor": page["cursor"]} if page.get("cursor") else {}
    async with hosting(tmp_path, shared_store.url, "spread") as server, client_of(server) as client:
        polled = await client.post(f"/v1/tenants/{names[3]}/queues/work/poll", json={"max": 9})
        assert [one["body"] for one in polled.json()["messages"]] == [names[3]]


async def test_a_hanging_primary_delays_only_the_shards_on_it(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """Shards on the other primary serve, as do health, readiness and metrics; afterwards all shards serve again."""
    async with hosting(tmp_path, primaries.url, "hang") as server, client_of(server) as client:
        well = await tenant_on(client, primaries.shards_on(0, "hang"), "well")
        ill = await tenant_on(client, primaries.shards_on(1, "hang"), "ill")
        message = {"messages": [{"body": "a"}]}
        with primaries.hanging(1):
            waiting = asyncio.ensure_future(client.post(f"/v1/tenants/{ill}/queues/work/messages", json=message))
            for _ in range(5):
                added = await client.post(f"/v1/tenants/{well}/queues/work/messages", json=message)
                assert added.status_code == 200
                for path in ("/healthz", "/readyz", "/metrics"):
                    assert (await client.get(path)).status_code == 200
            polled = await client.post(f"/v1/tenants/{well}/queues/work/poll", json={"max": 9})
            assert len(polled.json()["messages"]) == 5
            assert not waiting.done()
        assert (await waiting).status_code == 200
        polled = await client.post(f"/v1/tenants/{ill}/queues/work/poll", json={"max": 9})
        assert len(polled.json()["messages"]) == 1


async def test_fleet_polls_all_shards_in_one_call(shared_store: SharedStore, tmp_path: Path) -> None:
    """It gets messages in weighted shares, and any shard wakes a waiting one."""
    async with hosting(tmp_path, shared_store.url, "fleet") as server, client_of(server) as client:
        tenants = [await tenant_on(client, [shard], f"fleet-{shard}") for shard in range(4)]
        waiting = asyncio.ensure_future(client.post("/v1/poll", json={"queue": "work", "max": 8, "wait_ms": 20_000}))
        await asyncio.sleep(0)
        await client.put(f"/v1/tenants/{tenants[0]}", json={"weight": 3})
        add = {"messages": [{"body": "a"} for _ in range(20)]}
        await client.post(f"/v1/tenants/{tenants[2]}/queues/work/messages", json={"messages": [{"body": "first"}]})
        assert [one["body"] for one in (await waiting).json()["messages"]] == ["first"]
        for tenant in tenants[:2]:
            await client.post(f"/v1/tenants/{tenant}/queues/work/messages", json=add)
        got: dict[str, int] = {}
        for _ in range(5):
            for one in (await client.post("/v1/poll", json={"queue": "work", "max": 4})).json()["messages"]:
                got[one["tenant"]] = got.get(one["tenant"], 0) + 1
        assert got == {tenants[0]: 15, tenants[1]: 5}
        key = await client.post(f"/v1/tenants/{tenants[3]}/keys", json={"name": "key", "role": "auditor"})
        async with client_of(server, key.json()["token"]) as auditor:
            assert (await auditor.post("/v1/poll", json={"queue": "work"})).status_code == 403


async def test_servers_with_the_same_secret_share_their_keys(shared_store: SharedStore, tmp_path: Path) -> None:
    """A server on another host gets them from the store; one with another secret gets an error."""

    def settings(**cluster: Any) -> Any:
        return {"cluster": ClusterSettings(shards=SHARDS, **cluster)}

    keys = ("key_maker", "audit_key")
    for host in ("a", "b"):
        async with hosting(tmp_path / host, shared_store.url, "keys", **settings(secret=SECRET)):
            pass
    assert all((tmp_path / "a" / key).read_bytes() == (tmp_path / "b" / key).read_bytes() for key in keys)
    for other in ({"secret": "another secret of others"}, {}):
        with pytest.raises(Invalid, match=r"cluster\.secret"):
            async with hosting(tmp_path / "c", shared_store.url, "keys", **settings(**other)):
                pass


async def test_secret_is_replaced_while_servers_run(shared_store: SharedStore, tmp_path: Path) -> None:
    """First every server accepts both secrets, in any order and with restarts in between, then only the new one."""
    old, new = SECRET, "a new secret of the servers"
    both = {"secret": new, "previous_secrets": (old,)}

    def server(host: str, **cluster: Any) -> contextlib.AbstractAsyncContextManager[HostServer]:
        settings = {"cluster": ClusterSettings(shards=SHARDS, **cluster)}
        return hosting(tmp_path / host, shared_store.url, "rotation", **settings)

    async with server("a", secret=old) as running:
        async with client_of(running) as client:
            tenant = await tenant_on(client, list(range(SHARDS)))
        async with server("b", **both) as first, client_of(first) as client:
            assert (await client.get(f"/v1/tenants/{tenant}/queues/work")).status_code == 200
        async with server("c", secret=old), server("d", **both):
            pass
    async with server("a", **both), server("b", secret=new), server("e", secret=new):
        pass
    for outdated in ("a", "f"):
        with pytest.raises(Invalid, match="differs from the secret"):
            async with server(outdated, secret=old):
                pass
    keys = {(tmp_path / host / "key_maker").read_bytes() for host in "abcde"}
    assert len(keys) == 1


async def test_server_without_the_keys_leaves_nothing_in_the_store(shared_store: SharedStore, tmp_path: Path) -> None:
    """It may have a secret before the cluster's servers get one. Theirs then counts."""

    def server(host: str, secret: str | None) -> HostServer:
        cluster = ClusterSettings(shards=SHARDS, secret=secret)
        return HostServer(host_settings(tmp_path / host, shared_store.url, "late-secret", cluster=cluster))

    async with server("a", None):
        pass
    with pytest.raises(Invalid, match=r"cluster\.secret"):
        async with server("b", SECRET):
            pass
    for host in ("a", "b"):
        async with server(host, SECRET):
            pass
    assert (tmp_path / "a" / "key_maker").read_bytes() == (tmp_path / "b" / "key_maker").read_bytes()


async def test_shared_admin_token_replaces_a_secret(shared_store: SharedStore, tmp_path: Path) -> None:
    """All servers must start with the same one; a later token changes nothing for servers that have the keys."""
    for host in ("a", "b"):
        async with HostServer(host_settings(tmp_path / host, shared_store.url, "token"), admin_token=TOKEN):
            pass
    assert (tmp_path / "a" / "key_maker").read_bytes() == (tmp_path / "b" / "key_maker").read_bytes()
    later = "the administrator of later days"
    async with HostServer(
        host_settings(tmp_path / "a", shared_store.url, "token"), admin_token=later.replace(" ", "-")
    ):
        pass
    with pytest.raises(Invalid, match=r"cluster\.secret"):
        async with HostServer(host_settings(tmp_path / "c", shared_store.url, "token")):
            pass


async def test_shard_count_is_kept_in_the_store(shared_store: SharedStore, tmp_path: Path) -> None:
    """It cannot be reduced, and need not be given again."""
    async with hosting(tmp_path, shared_store.url, "count"):
        pass
    with pytest.raises(Invalid, match="cannot be reduced"):
        async with hosting(tmp_path, shared_store.url, "count", cluster=ClusterSettings(shards=SHARDS - 1)):
            pass
    async with hosting(tmp_path, shared_store.url, "count", cluster=ClusterSettings()) as server:
        assert server.host is not None
        assert len(server.host.owned()) == SHARDS


async def test_store_of_one_shard_grows_to_a_cluster(shared_store: SharedStore, tmp_path: Path) -> None:
    """Its tenants stay on their shard, and new ones are spread."""
    on = OnPostgres if isinstance(shared_store, PostgresServer) else OnRedis
    opener = on(shared_store, tmp_path, name="grown")
    async with Shard(tmp_path, open_store=opener, settings=ShardSettings(disk_reserve_bytes=0)) as shard:
        await put_tenant(shard, "tenant-1")
        await shard.add("tenant-1", "work", [message("old")])
    async with hosting(tmp_path, shared_store.url, "grown") as server, client_of(server) as client:
        polled = await client.post("/v1/tenants/tenant-1/queues/work/poll", json={"max": 9})
        assert [one["body"] for one in polled.json()["messages"]] == ["old"]
        made = await client.put("/v1/tenants/tenant-2", json={})
        assert made.json()["id"] >> 26 == jump_hash(tenant_key("tenant-2"), SHARDS)


async def test_deleted_tenant_can_be_created_again(shared_store: SharedStore, tmp_path: Path) -> None:
    """Its name is free as soon as the deletion returns."""
    async with hosting(tmp_path, shared_store.url, "again") as server, client_of(server) as client:
        name = await tenant_on(client, [3])
        body = {"confirm": name, "reason": "their contract has ended"}
        gone = await client.request("DELETE", f"/v1/tenants/{name}", json=body)
        assert gone.status_code == 200, gone.text
        assert (await client.get(f"/v1/tenants/{name}")).status_code == 404
        assert (await client.put(f"/v1/tenants/{name}", json={})).status_code == 201
        assert (await client.get(f"/v1/tenants/{name}")).status_code == 200


@pytest.mark.timeout(60)
def claim(store: SharedStore, path: Path, name: str, shard: str) -> PostgresStore | RedisStore:
    """Own a shard of a cluster, which must be free."""
    if isinstance(store, PostgresServer):
        return OnPostgres(store, path, name=name).open(shard)
    return RedisStore(path, parse_address(store.url), RedisSettings(name=name), shard, durability="os")


async def test_a_released_shard_is_free_before_its_thread_has_ended(shared_store: SharedStore, tmp_path: Path) -> None:
    """The successor need not wait for work that has nothing to do with ownership."""
    async with hosting(tmp_path, shared_store.url, "early") as server:
        assert server.host is not None
        thread = server.host.thread(3)
        assert thread is not None
        blocked = threading.Event()
        thread.run(lambda: thread.loop.run_in_executor(None, blocked.wait))
        try:
            await server.host.release(3)
            assert not thread.ended.done()
            store = await asyncio.to_thread(claim, shared_store, tmp_path / "successor", "early", "3")
            store.close()
        finally:
            blocked.set()


async def test_stopping_server_does_not_delay_a_handover_by_exports(shared_store: SharedStore, tmp_path: Path) -> None:
    """The successor exports the rest of the journal. Calls would wait for it otherwise."""
    async with hosting(tmp_path, shared_store.url, "no-exports") as server, client_of(server) as client:
        host = server.host
        assert host is not None
        for shard in (3, 4):
            await tenant_on(client, [shard], f"journaled-{shard}")
        for journal in [one.shard.journal for one in host.threads()]:
            async with asyncio.timeout(30):
                while journal.synced_span != journal.span:  # noqa: ASYNC110  # its thread syncs after an interval
                    await asyncio.sleep(0.02)
        thread = host.thread(3)
        assert thread is not None
        host.successors[3] = (thread.epoch, "successor")
        thread.begin_close(exports=False, successor="successor")
        await asyncio.gather(*(host.release(shard, exports=True) for shard in (3, 4)))
        assert thread.not_owner().owner == "successor"
        assert list((tmp_path / "journal").rglob("shard=4/*.parquet"))
        assert not list((tmp_path / "journal").rglob("shard=3/*.parquet"))


async def test_reader_of_a_shard_whose_loop_ends_gets_an_error(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the loop ends before it begins the work, so that nothing ever completes it."""

    def leave_out(work: Coroutine[Any, Any, Any], _: asyncio.AbstractEventLoop) -> concurrent.futures.Future[Any]:
        work.close()
        return concurrent.futures.Future()

    async with hosting(tmp_path, shared_store.url, "ending") as server:
        assert server.host is not None
        thread = server.host.thread(3)
        assert thread is not None
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "run_coroutine_threadsafe", leave_out)
            reading = asyncio.create_task(thread.await_on_loop(thread.hosted.prepare_close))
            await asyncio.sleep(0)
        thread.begin_close(exports=False)
        async with asyncio.timeout(20):
            with pytest.raises(NotOwner):
                await reading
