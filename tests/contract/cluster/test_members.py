"""Several servers on one store: each accepts every request, and shards move between them without an error."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster import membership, shard_thread
from tenantq.cluster.host import ShardHost
from tenantq.gates.authenticate import REMOTE_TRUST_MS
from tenantq.store.shard_lease import CLAIM_S
from tests.contract.cluster.hosts import SHARDS, client_of, host_settings, hosting, tenant_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from tenantq.cluster.membership import Membership
    from tenantq.server.cluster_member import HostServer
    from tests.contract.cluster.hosts import SharedStore

SECRET = {"cluster": {"shards": SHARDS, "secret": "known to all servers"}}


class Pair:
    """Two servers of one cluster, and a client of each."""

    def __init__(self, servers: list[HostServer], clients: list[httpx.AsyncClient]) -> None:
        self.servers = servers
        self.clients = clients

    def owned(self, server: int) -> list[int]:
        """Return the shards that a server owns."""
        host = self.servers[server].host
        assert host is not None
        return sorted(host.owned())


async def pair(stack: AsyncExitStack, tmp_path: Path, store: SharedStore, name: str, **settings: Any) -> Pair:
    """Start two servers, one after the other, and wait until each owns half of the shards. They stop without a handover."""
    settings = {"grace_ms": 0, **SECRET, **settings}
    servers = [
        await stack.enter_async_context(hosting(tmp_path / str(number), store.url, name, **settings))
        for number in range(2)
    ]
    clients = [await stack.enter_async_context(client_of(server)) for server in servers]
    found = Pair(servers, clients)
    with balancing_at_once():
        await until(lambda: len(found.owned(0)) == len(found.owned(1)) == SHARDS // 2)
    return found


@contextmanager
def balancing_at_once() -> Iterator[None]:
    """Let shards move to a new member without the delay that spares them a rolling start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "JOIN_DELAY_MS", 0)
        patch.setattr(membership, "COOLDOWN_MS", 0)
        yield


async def until(holds: Any, seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # several servers bring it about
            await asyncio.sleep(0.02)


async def address_shown(client: httpx.AsyncClient, path: str, address: str) -> None:
    """Wait until replies have this owner address. Servers forward calls before they know each other's address."""
    async with asyncio.timeout(30):
        while (await client.get(path)).headers.get("tenantq-shard", "") != address:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.05)


async def test_every_server_serves_every_shard(shared_store: SharedStore, tmp_path: Path) -> None:
    """Messages, keys, exports and lists work through any server, and replies have the owner's address."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "both")
        first, second = both.clients
        for owner in range(2):
            shard = both.owned(owner)[0]
            name = await tenant_on(first, [shard], f"owner-{owner}")
            for number, client in enumerate(both.clients):
                added = await client.post(
                    f"/v1/tenants/{name}/queues/work/messages", json={"messages": [{"body": f"{number}"}]}
                )
                assert added.status_code == 200, added.text
                address = "" if number == owner else f"http://127.0.0.1:{both.servers[owner].port}"
                await address_shown(client, f"/v1/tenants/{name}/queues/work", address)
            polled = await second.post(f"/v1/tenants/{name}/queues/work/poll", json={"max": 9})
            assert sorted(one["body"] for one in polled.json()["messages"]) == ["0", "1"]
            receipts = [one["receipt"] for one in polled.json()["messages"]]
            acked = await first.post(f"/v1/tenants/{name}/queues/work/ack", json={"receipts": receipts})
            assert all(one["ok"] for one in acked.json()["results"])
            key = await second.post(f"/v1/tenants/{name}/keys", json={"name": "key", "role": "tenant-admin"})
            for server in both.servers:
                async with client_of(server, key.json()["token"]) as tenant:
                    assert (await tenant.get("/v1/queues")).status_code == 200
                    exported = await tenant.get(f"/v1/tenants/{name}/export")
                    assert exported.status_code == 200
                    assert exported.content
            revoked = await first.delete(f"/v1/tenants/{name}/keys/{key.json()['key_id']}")
            assert revoked.status_code < 300
        for client in both.clients:
            names = {one["name"] for one in (await client.get("/v1/tenants")).json()["tenants"]}
            assert {"owner-0-0", "owner-1-0"} <= {name[:7] + "-0" for name in names} | names
            assert len((await client.get("/v1/topology")).json()["shards"]) == SHARDS


async def test_refusal_reaches_the_audit_trail_of_a_new_tenant(shared_store: SharedStore, tmp_path: Path) -> None:
    """This holds even if the refusing server has not read the tenant's placement yet."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "moment")
        home = 0 if 0 in both.owned(0) else 1  # serves calls about all tenants
        near, far = both.clients[1 - home], both.clients[home]
        name = await tenant_on(near, both.owned(1 - home), "new")
        key = await near.post(f"/v1/tenants/{name}/keys", json={"name": "key", "role": "producer"})
        placements = both.servers[home]._context.placements
        placements._rows.pop(name, None)  # as if it was created after the last read
        placements.version = 0
        headers = {"X-Request-Id": "too-curious"}
        async with client_of(both.servers[home], key.json()["token"]) as tenant:
            assert (await tenant.get("/v1/tenants", headers=headers)).status_code == 403

        async def seen() -> list[str]:
            rows = (await far.get(f"/v1/tenants/{name}/audit", params={"limit": 100})).json()["rows"]
            return [row["error_code"] for row in rows if row["request_id"] == "too-curious"]

        async with asyncio.timeout(10):
            while not await seen():  # noqa: ASYNC110  # the row is written in the background
                await asyncio.sleep(0.05)
        assert await seen() == ["forbidden"]


async def test_fleet_polls_the_shards_of_all_servers(shared_store: SharedStore, tmp_path: Path) -> None:
    """One call at either server suffices, also while it waits."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "fleets")
        names = [await tenant_on(both.clients[0], [both.owned(owner)[0]], f"fleet-{owner}") for owner in range(2)]
        for client in both.clients:
            for name in names:
                waiting = asyncio.ensure_future(
                    client.post("/v1/poll", json={"queue": "work", "max": 4, "wait_ms": 20_000})
                )
                await asyncio.sleep(0.05)
                await both.clients[0].post(
                    f"/v1/tenants/{name}/queues/work/messages", json={"messages": [{"body": "a"}, {"body": "b"}]}
                )
                got = (await waiting).json()["messages"]
                while len(got) < 2:
                    got += (await client.post("/v1/poll", json={"queue": "work", "max": 4})).json()["messages"]
                assert [one["tenant"] for one in got] == [name, name]


@pytest.mark.parametrize("leaving", [0, 1])
async def test_stopping_server_hands_over_its_shards_without_errors(
    shared_store: SharedStore, tmp_path: Path, leaving: int
) -> None:
    """Calls at the other server neither fail nor lose anything, and a long poll continues at the new owner."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, f"stop-{leaving}", grace_ms=30_000)
        client = both.clients[1 - leaving]
        name = await tenant_on(client, both.owned(leaving), "moving")
        path = f"/v1/tenants/{name}/queues/work"
        other = f"/v1/tenants/{name}/queues/other"
        await client.put(other, json={})
        long_poll = asyncio.ensure_future(client.post(f"{other}/poll", json={"wait_ms": 30_000}))
        added: list[str] = []
        done = asyncio.Event()

        async def keep_adding() -> None:
            while not done.is_set():
                body = str(len(added))
                reply = await client.post(f"{path}/messages", json={"messages": [{"body": body}]})
                assert reply.status_code == 200, reply.text
                added.append(body)

        adding = asyncio.ensure_future(keep_adding())
        await until(lambda: len(added) > 5)
        await both.servers[leaving].close()
        await until(lambda: len(both.owned(1 - leaving)) == SHARDS)
        count = len(added)
        await until(lambda: len(added) > count + 5 or adding.done())
        done.set()
        await adding
        await client.post(f"{other}/messages", json={"messages": [{"body": "late"}]})
        polled = await long_poll
        assert polled.status_code == 200, polled.text
        assert [one["body"] for one in polled.json()["messages"]] == ["late"]
        got: list[str] = []
        while len(got) < len(added):
            rest = (await client.post(f"{path}/poll", json={"max": 100})).json()["messages"]
            assert rest
            got += [one["body"] for one in rest]
        assert got == added


async def test_credentials_are_found_through_a_third_server(shared_store: SharedStore, tmp_path: Path) -> None:
    """A server cut off from the owner of a key asks another one to forward the question."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "third")
        owner = 0 if 0 in both.owned(0) else 1  # of the administrator's key
        client, server = both.clients[1 - owner], both.servers[1 - owner]
        name = await tenant_on(client, both.owned(1 - owner), "cut-off")
        await stack.enter_async_context(hosting(tmp_path / "third", shared_store.url, "third", **SECRET))
        links, owners_links = server._links, both.servers[owner]._links
        assert links is not None
        assert owners_links is not None
        await until(lambda: len(links.members()) == 2 and len(owners_links.members()) == 2)
        for one, other in ((links, owners_links), (owners_links, links)):
            await one._links[other.id].close()
        for _ in range(3):
            added = await client.post(
                f"/v1/tenants/{name}/queues/work/messages", json={"messages": [{"body": "through the third"}]}
            )
            assert added.status_code == 200, added.text
            await asyncio.sleep(REMOTE_TRUST_MS / 1_000)  # the answer is not trusted for longer


async def test_shard_serves_while_its_release_waits_for_an_export(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers wait only for calls in progress, not for an export to a slow target."""
    monkeypatch.setattr(shard_thread, "PREPARE_MS", 60_000)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(hosting(tmp_path / "one", shared_store.url, "export", **SECRET))
        client = await stack.enter_async_context(client_of(server))
        assert server.host is not None
        shard = next(number for number in server.host.owned() if number)
        name = await tenant_on(client, [shard])
        thread = server.host.thread(shard)
        assert thread is not None

        async def begin_export() -> asyncio.Event:
            ended = asyncio.Event()
            thread.hosted._runtime.exporter._running = asyncio.ensure_future(ended.wait())  # type: ignore[attr-defined]
            return ended

        ended = await thread.await_on_loop(begin_export)
        releasing = asyncio.ensure_future(server.host.release(shard))
        for _ in range(5):
            added = await client.post(f"/v1/tenants/{name}/queues/work/messages", json={"messages": [{"body": "a"}]})
            assert added.status_code == 200, added.text
        assert not releasing.done()
        thread.run(ended.set)
        await releasing


async def test_a_shard_on_its_way_to_a_draining_server_is_not_taken_by_it(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread still waits for the shard when the owner releases it to the next successor, where calls wait then."""
    monkeypatch.setattr(membership, "JOIN_DELAY_MS", 600_000)
    async with AsyncExitStack() as stack:
        found: dict[str, tuple[Membership, ShardHost]] = {}
        for number in range(3):
            settings: dict[str, Any] = {"grace_ms": 0, **SECRET}
            directory = tmp_path / str(number)
            server = await stack.enter_async_context(hosting(directory, shared_store.url, "redirected", **settings))
            assert server.membership is not None
            assert server.host is not None
            found[server.membership.id] = server.membership, server.host
        (owner, owned), *others = found.values()
        await until(lambda: len(owned.owned()) == SHARDS and len(owner.view.members) == 3)
        for _, host in others:
            monkeypatch.setattr(host, "waiting", set)
        await owner.request_drain(owner.id, drain=True)
        await until(lambda: owner.view.moves)
        ((shard, target),) = owner.view.moves.items()
        first, first_host = found[target]
        (last_host,) = (host for member, host in others if member is not first)
        await until(lambda: shard in ShardHost.waiting(first_host))
        may_claim, acquire = asyncio.Event(), last_host.acquire

        async def acquire_late(*arguments: Any) -> None:
            await may_claim.wait()
            await acquire(*arguments)

        monkeypatch.setattr(last_host, "acquire", acquire_late)
        monkeypatch.setattr(last_host, "waiting", lambda: {shard})
        epoch = owned.owned()[shard]
        await first.request_drain(first.id, drain=True)
        await until(lambda: owner.handovers)
        await asyncio.sleep(5 * CLAIM_S)
        may_claim.set()
        await until(lambda: last_host.owned().get(shard) or first_host.owned().get(shard))
        assert last_host.owned().get(shard) == epoch + 1


async def test_servers_of_two_clusters_do_not_communicate(shared_store: SharedStore, tmp_path: Path) -> None:
    """A process without the keys of a cluster cannot call its shards."""
    async with hosting(tmp_path / "a", shared_store.url, "one-cluster") as server:
        assert server.membership is not None
        port = int(server.membership.view.members[server.membership.id].peer_address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(2_000))
        assert await reader.read() == b""
        writer.close()
    cluster = {**SECRET["cluster"], "previous_secrets": ["known to all servers before"]}
    settings = host_settings(tmp_path, "redis://a", "b", cluster=cluster)
    assert not any(secret in repr(settings) for secret in settings.cluster.secrets)


async def test_operators_see_members_and_shards_and_drain_a_member(shared_store: SharedStore, tmp_path: Path) -> None:
    """Any member can be asked; the drain is journaled and can be undone, and an unknown member is an error."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "drained")
        first, second = both.clients
        await until(lambda: len(both.owned(0)) + len(both.owned(1)) == SHARDS and not is_moving(both.servers[1]))
        found = (await second.get("/v1/cluster")).json()
        assert [one["url"] for one in found["members"]] == [f"http://127.0.0.1:{one.port}" for one in both.servers]
        assert {one["owner"] for one in found["shards"]} == {one["id"] for one in found["members"]}
        leaving = next(one["id"] for one in found["members"] if one["id"] != found["this_member"])
        drained = await second.post(f"/v1/cluster/members/{leaving}/drain", json={})
        assert drained.status_code == 200, drained.text
        await until(lambda: len(both.owned(1)) == SHARDS and not any(is_moving(one) for one in both.servers))
        assert not both.owned(0)
        given = both.servers[0].membership
        assert given is not None
        await until(lambda: given.handovers_took.total == given.handovers > 0)
        metrics = (await first.get("/metrics")).text
        assert f"tenantq_cluster_handover_seconds_count {given.handovers}.0" in metrics
        shown = (await first.get("/v1/cluster")).json()["members"]
        assert [(one["draining"], one["shards"]) for one in shown] == [(True, 0), (False, SHARDS)]
        rows = (await first.get("/v1/audit", params={"action": "drain_member"})).json()["rows"]
        assert [row["details"] for row in rows] == [f"member {leaving}: drain"]
        await first.post(f"/v1/cluster/members/{leaving}/drain", json={"drain": False})
        with balancing_at_once():
            await until(lambda: len(both.owned(0)) > 0)
        unknown = await first.post("/v1/cluster/members/nobody/drain", json={})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        async with client_of(both.servers[0], "nobody-in-particular") as stranger:
            assert (await stranger.get("/v1/cluster")).status_code == 401


def is_moving(server: HostServer) -> bool:
    """Return whether, from a server's view, a shard has no owner or is being handed over."""
    assert server.membership is not None
    view = server.membership.view
    return bool(view.moves) or any(view.owner_of(shard) is None for shard in range(SHARDS))


async def test_a_server_does_not_join_another_cluster_under_its_name(
    shared_store: SharedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was emptied while it ran, and another cluster was created there. That one works."""
    async with hosting(tmp_path / "a", shared_store.url, "emptied") as left, AsyncExitStack() as stack:
        await asyncio.to_thread(shared_store.clear)
        other = await stack.enter_async_context(hosting(tmp_path / "b", shared_store.url, "emptied"))
        client = await stack.enter_async_context(client_of(other))
        await until(lambda: "this server does not take part in its cluster" in caplog.text)
        await until(lambda: other.host is not None and len(other.host.owned()) == SHARDS)
        assert other.membership is not None
        assert list(other.membership.view.members) == [other.membership.id]
        assert (await client.put("/v1/tenants/fresh", json={})).status_code == 201
        before = left.membership
        assert before is not None
        await until(lambda: other.cluster.id in before.problem)
