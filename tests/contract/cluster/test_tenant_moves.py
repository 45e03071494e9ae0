"""A tenant moves to another shard while it is used: nothing is lost, delivered twice, reordered or refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from redis.crc import key_slot

from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.errors import Invalid, StoreFormat, TenantMoved
from tenantq.server.cluster_member import HostServer
from tenantq.service.call import Call
from tests.contract.cluster.hosts import SHARDS, TwoPrimaries, client_of, host_settings, hosting, registry_of, tenant_on
from tests.contract.cluster.test_members import SECRET, pair, until
from tests.postgres_servers import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.contract.cluster.hosts import SharedStore


async def placement(client: httpx.AsyncClient, tenant: str) -> dict[str, Any]:
    """Return the placement of a tenant."""
    reply = await client.get(f"/v1/cluster/tenants/{tenant}")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def wait_until_placed(client: httpx.AsyncClient, tenant: str, seconds: float = 30.0) -> int:
    """Wait until a tenant is not moving, and return its shard."""
    async with asyncio.timeout(seconds):
        while True:
            found = await placement(client, tenant)
            if not found["moves"]:
                shard: int = found["shard"]
                return shard
            await asyncio.sleep(0.05)


async def pin(client: httpx.AsyncClient, tenant: str, shard: int) -> None:
    """Start to move a tenant."""
    reply = await client.put(f"/v1/cluster/tenants/{tenant}", json={"shard": shard})
    assert reply.status_code == 200, reply.text


async def drained(client: httpx.AsyncClient, path: str) -> list[str]:
    """Return the bodies of all ready messages in order, and ack them."""
    got: list[str] = []
    while polled := (await client.post(f"{path}/poll", json={"max": 500})).json()["messages"]:
        got += [one["body"] for one in polled]
        acked = await client.post(f"{path}/ack", json={"receipts": [one["receipt"] for one in polled]})
        assert all(one["ok"] for one in acked.json()["results"])
    return got


async def test_tenant_moves_while_in_use(shared_store: SharedStore, tmp_path: Path) -> None:
    """Order, leases, receipts, credentials, idempotency keys, delays and polls survive, and no call fails."""
    async with AsyncExitStack() as stack:
        rules = [{"alert": "cross_tenant", "action": "suspend_key", "dry_run": False}]
        both = await pair(stack, tmp_path, shared_store, "moves", containment=rules)
        admin = both.clients[0]
        source, target = both.owned(0)[0], both.owned(1)[0]
        name = await tenant_on(admin, [source], "mover")
        key = (await admin.post(f"/v1/tenants/{name}/keys", json={"name": "key", "role": "tenant-admin"})).json()
        tenant = await stack.enter_async_context(client_of(both.servers[1], key["token"]))
        path, other, groups = (f"/v1/tenants/{name}/queues/{queue}" for queue in ("work", "other", "groups.fifo"))
        for queue in (other, groups):
            assert (await tenant.put(queue, json={})).status_code == 201
        assert (await tenant.put(f"/v1/tenants/{name}/templates/mail", json={"queues": {}})).status_code == 201
        curious = (await admin.post(f"/v1/tenants/{name}/keys", json={"name": "curious", "role": "producer"})).json()
        suspect = await stack.enter_async_context(client_of(both.servers[0], curious["token"]))
        async with asyncio.timeout(30):
            while (await suspect.get("/v1/tenants/default/usage")).json()["code"] != "key_suspended":
                pass
        first = {
            "messages": [{"body": "keyed", "key": "once"}, {"body": "leased"}, {"body": "late", "delay_ms": 3_000}]
        }
        ids = [one["id"] for one in (await tenant.post(f"{other}/messages", json=first)).json()["messages"]]
        leased = (await tenant.post(f"{other}/poll", json={"max": 2, "lease_ms": 60_000})).json()["messages"]
        assert len(leased) == 2
        ordered = {"messages": [{"body": str(number), "group": "a"} for number in range(3)]}
        await tenant.post(f"{groups}/messages", json=ordered)
        head = (await tenant.post(f"{groups}/poll", json={"max": 9})).json()["messages"]
        assert [one["body"] for one in head] == ["0"]
        long_poll = asyncio.ensure_future(
            tenant.post(f"/v1/tenants/{name}/queues/empty/poll", json={"wait_ms": 25_000})
        )
        added: list[str] = []
        done = asyncio.Event()

        async def keep_adding() -> None:
            while not done.is_set():
                bodies = [f"{len(added) + number}" for number in range(20)]
                batch = {"messages": [{"body": body} for body in bodies]}
                reply = await tenant.post(f"{path}/messages", json=batch)
                assert reply.status_code == 200, reply.text
                added.extend(bodies)

        adding = asyncio.ensure_future(keep_adding())
        await until(lambda: len(added) > 2_000)
        await pin(both.clients[1], name, target)
        assert await wait_until_placed(admin, name) == target
        count = len(added)
        await until(lambda: len(added) > count + 100 or adding.done())
        done.set()
        await adding
        templates = (await tenant.get(f"/v1/tenants/{name}/templates")).json()["templates"]
        assert [one["name"] for one in templates] == ["mail"]
        assert (await suspect.get("/v1/tenant")).json()["code"] == "key_suspended"
        [contained] = (await admin.get("/v1/containments")).json()["containments"]
        assert (await admin.delete(f"/v1/containments/{contained['id']}")).status_code == 200
        again = (await tenant.post(f"{other}/messages", json={"messages": [{"body": "keyed", "key": "once"}]})).json()
        assert [(one["id"], one["duplicate"]) for one in again["messages"]] == [(ids[0], True)]
        acked = await tenant.post(f"{other}/ack", json={"receipts": [one["receipt"] for one in leased]})
        assert [one["ok"] for one in acked.json()["results"]] == [True, True]
        assert (await tenant.post(f"{groups}/poll", json={"max": 9})).json()["messages"] == []
        await tenant.post(f"{groups}/ack", json={"receipts": [head[0]["receipt"]]})
        assert await drained(tenant, groups) == ["1", "2"]
        late = (await tenant.post(f"{other}/poll", json={"max": 2, "wait_ms": 5_000})).json()["messages"]
        assert [one["body"] for one in late] == ["late"]
        assert await drained(tenant, path) == added
        await tenant.post(f"/v1/tenants/{name}/queues/empty/messages", json={"messages": [{"body": "late"}]})
        assert [one["body"] for one in (await long_poll).json()["messages"]] == ["late"]
        rows = (await admin.get("/v1/audit", params={"action": "place_tenant"})).json()["rows"]
        assert [row["details"] for row in rows] == [f"pin to shard {target}"]
        own = (await tenant.get(f"/v1/tenants/{name}/audit", params={"action": "create_tenant,move_tenant"})).json()[
            "rows"
        ]
        assert {row["shard"] for row in own} == {str(source), str(target)}
        assert own[0]["op"] == "create_tenant"
        trace = (await tenant.get(f"{other}/messages/{ids[1]}/trace")).json()["rows"]
        assert [(row["op"], row["shard"]) for row in trace] == [
            ("add", f"{source}"),
            ("poll", f"{source}"),
            ("ack", f"{target}"),
        ]
        listed = [one["name"] for one in (await admin.get("/v1/tenants")).json()["tenants"]]
        assert listed.count(name) == 1
        threads = {shard: one.host.thread(shard) for one in both.servers if one.host for shard in one.host.owned()}
        left, came = threads[source], threads[target]
        assert left is not None
        assert came is not None
        number = came.shard.state.catalog.tenants[name].id
        with pytest.raises(TenantMoved):  # a late call over SQS, which names the tenant by its number
            await left.call("sqs_lookup.find_queue", Call(bearer=key["token"]), number, "ack", "work")
        await pin(admin, name, source)
        assert await wait_until_placed(admin, name) == source
        assert (await tenant.get(f"/v1/tenants/{name}/queues")).status_code == 200


async def test_slow_link_between_shards_does_not_reorder_messages(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target learns the difference of the clocks late; messages added there still come after those that moved."""
    ask = TenantMoves.ask

    async def delayed(self: TenantMoves, target: int, method: str, *arguments: Any) -> int:
        if method == "begin":
            await asyncio.sleep(0.4)  # the request is under way
        return await ask(self, target, method, *arguments)

    monkeypatch.setattr(TenantMoves, "ask", delayed)
    async with hosting(tmp_path, shared_store.url, "slow-link", **SECRET) as server, client_of(server) as client:
        source, target = 1, 2
        name = await tenant_on(client, [source], "ordered")
        path, added, done = f"/v1/tenants/{name}/queues/work", list[str](), asyncio.Event()

        async def keep_adding() -> None:
            while not done.is_set():
                body = str(len(added))
                reply = await client.post(f"{path}/messages", json={"messages": [{"body": body}]})
                assert reply.status_code == 200, reply.text
                added.append(body)

        adding = asyncio.ensure_future(keep_adding())
        await until(lambda: len(added) > 20)
        await pin(client, name, target)
        assert await wait_until_placed(client, name) == target
        count = len(added)
        await until(lambda: len(added) > count + 20 or adding.done())
        done.set()
        await adding
        assert await drained(client, path) == added


async def test_copy_ends_although_messages_are_added_all_the_time(shared_store: SharedStore, tmp_path: Path) -> None:
    """The copy does not follow the end of a queue: with a message added before each page is read, it still comes to an end."""
    async with hosting(tmp_path, shared_store.url, "steady", **SECRET) as server, client_of(server) as client:
        source, target = 1, 2
        name = await tenant_on(client, [source], "steady")
        path = f"/v1/tenants/{name}/queues/work"
        added = [str(number) for number in range(40)]
        first = {"messages": [{"body": body} for body in added]}
        assert (await client.post(f"{path}/messages", json=first)).status_code == 200
        ask, parts, main = TenantMoves.ask, 0, asyncio.get_running_loop()

        async def add_first(self: TenantMoves, shard: int, method: str, *arguments: Any) -> int:
            nonlocal parts
            parts += method == "receive"
            if self._progress[name].stage == "copying" and parts < 500:
                added.append(str(len(added)))
                add = client.post(f"{path}/messages", json={"messages": [{"body": added[-1]}]})
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(add, main))
            return await ask(self, shard, method, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TenantMoves, "ask", add_first)
            await pin(client, name, target)
            assert await wait_until_placed(client, name) == target
        assert parts < 100
        assert await drained(client, path) == added


STEPS = ("begin", "receive", "last rows", "activate")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_next_owner_completes_a_killed_move(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    """The server is killed around any step at the target; after a restart every message is there once."""
    name = f"killed-{STEPS.index(step)}-{is_done}".lower()
    ask, reached = TenantMoves.ask, asyncio.Event()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def stops(self: TenantMoves, target: int, method: str, *arguments: Any) -> int:
        is_last = method == "receive" and arguments[4]
        if ("last rows" if is_last else method) != step:
            return await ask(self, target, method, *arguments)
        if is_done:
            await ask(self, target, method, *arguments)
        reached.set()
        monkeypatch.setattr(TenantMoves, "_settle", hang)  # a killed process cleans up nothing
        await hang()
        return 0

    async with hosting(tmp_path, shared_store.url, name, **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "killed")
        path = f"/v1/tenants/{tenant}/queues/work"
        bodies = [str(number) for number in range(50)]
        await client.post(f"{path}/messages", json={"messages": [{"body": body} for body in bodies]})
        leased = (await client.post(f"{path}/poll", json={"max": 1, "lease_ms": 60_000})).json()["messages"]
        monkeypatch.setattr(TenantMoves, "ask", stops)
        await pin(client, tenant, 5)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(reached, "set", lambda: loop.call_soon_threadsafe(asyncio.Event.set, reached))
        await asyncio.wait_for(reached.wait(), 20)
    monkeypatch.undo()
    async with hosting(tmp_path, shared_store.url, name, **SECRET) as server, client_of(server) as client:
        assert await wait_until_placed(client, tenant) == 5
        acked = await client.post(f"{path}/ack", json={"receipts": [leased[0]["receipt"]]})
        assert acked.json()["results"][0]["ok"]
        assert await drained(client, path) == bodies[1:]
        await pin(client, tenant, 2)
        assert await wait_until_placed(client, tenant) == 2


async def test_cancelled_move_leaves_the_tenant_where_it_is(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpinned during the copy, it is served at its old shard, the target keeps nothing, and it can move later."""
    ask, copying = TenantMoves.ask, asyncio.Event()

    async def slow(self: TenantMoves, target: int, method: str, *arguments: Any) -> int:
        if method == "receive":
            await asyncio.sleep(0.2)
        return await ask(self, target, method, *arguments)

    monkeypatch.setattr(TenantMoves, "ask", slow)
    async with hosting(tmp_path, shared_store.url, "taken-back", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "stays")
        path = f"/v1/tenants/{tenant}/queues/work"
        bodies = [str(number) for number in range(2_000)]
        for first in range(0, len(bodies), 500):
            batch = [{"body": body} for body in bodies[first : first + 500]]
            await client.post(f"{path}/messages", json={"messages": batch})
        await pin(client, tenant, 5)
        async with asyncio.timeout(20):
            while not copying.is_set():
                moves = (await client.get("/v1/cluster")).json()["moves"]
                if moves and moves[0]["rows"] > 0:
                    copying.set()
        assert [(one["tenant"], one["source"], one["target"], one["stage"]) for one in moves] == [
            (tenant, 2, 5, "copying")
        ]
        reply = await client.put(f"/v1/cluster/tenants/{tenant}", json={"pinned": False})
        assert reply.json()["moves"] == []
        assert await wait_until_placed(client, tenant) == 2
        monkeypatch.undo()

        def rest() -> int:
            assert server.host is not None
            thread = server.host.thread(5)
            return len(thread.hosted.shard.state.catalog.arriving) if thread is not None else -1

        await until(lambda: rest() == 0)
        assert await drained(client, path) == bodies
        await pin(client, tenant, 5)
        assert await wait_until_placed(client, tenant) == 5


async def test_a_copy_that_the_target_has_deleted_is_made_again(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source does not delete its rows although the directory already names the target."""
    ask, sessions = TenantMoves.ask, list[object]()

    async def forgetful(self: TenantMoves, target: int, method: str, *arguments: Any) -> int:
        if method == "begin":
            sessions.append(arguments[3])
        if method == "activate" and len(sessions) == 1:
            await ask(self, target, "cancel", arguments[0], sessions[0])
        return await ask(self, target, method, *arguments)

    monkeypatch.setattr(TenantMoves, "ask", forgetful)
    async with hosting(tmp_path, shared_store.url, "forgetful", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "forgotten")
        path = f"/v1/tenants/{tenant}/queues/work"
        bodies = [str(number) for number in range(50)]
        await client.post(f"{path}/messages", json={"messages": [{"body": body} for body in bodies]})
        await pin(client, tenant, 5)
        assert await wait_until_placed(client, tenant) == 5
        assert len(sessions) == 2
        assert await drained(client, path) == bodies


async def test_a_target_with_an_old_directory_keeps_what_arrives(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at arrivals before it has read the row of the move, and reads it before it deletes any."""
    ask, look, given_up = TenantMoves.ask, TenantMoves.look, list[str]()

    async def slow(self: TenantMoves, target: int, method: str, *arguments: Any) -> int:
        done = await ask(self, target, method, *arguments)
        if method == "receive":
            await asyncio.sleep(0.5)
        return done

    def early(self: TenantMoves) -> None:
        if self._number != 5:
            look(self)
            return
        for name in list(self._shard.state.catalog.arriving):
            given_up.append(name)
            self._begin(name, self._end_arrival(name))

    monkeypatch.setattr(TenantMoves, "ask", slow)
    monkeypatch.setattr(TenantMoves, "look", early)
    async with hosting(tmp_path, shared_store.url, "early-look", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "early")
        path = f"/v1/tenants/{tenant}/queues/work"
        await client.post(f"{path}/messages", json={"messages": [{"body": "a"}]})
        await pin(client, tenant, 5)
        assert await wait_until_placed(client, tenant) == 5
        assert tenant in given_up
        assert await drained(client, path) == ["a"]


async def test_operators_get_clear_errors_about_placement(shared_store: SharedStore, tmp_path: Path) -> None:
    """Covers unknown tenants and shards, wrong regions, regions without servers, dedicated shards, and 'default'."""
    settings: dict[str, Any] = {
        "cluster": {**SECRET["cluster"], "regions": ("eu", "us")},
        "shard": {"durability": "os", "region": "eu"},
    }
    async with hosting(tmp_path, shared_store.url, "errors", **settings) as server, client_of(server) as client:
        assert (await client.put("/v1/tenants/acme", json={"regions": ["eu"]})).status_code == 201
        assert (await client.put("/v1/tenants/free", json={})).status_code == 201

        async def refused(tenant: str, body: dict[str, Any]) -> tuple[int, str]:
            reply = await client.put(f"/v1/cluster/tenants/{tenant}", json=body)
            return reply.status_code, reply.json()["detail"]

        assert (await refused("nobody", {"shard": 1}))[0] == 404
        assert await refused("acme", {"shard": 99}) == (
            422,
            f"shard: unknown (99, the cluster has shards 0 to {SHARDS - 1}).",
        )
        assert await refused("acme", {"shard": 1}) == (
            422,
            "shard: shard 1 is in us, but the tenant allows only eu.",
        )
        assert await refused("free", {"shard": 3}) == (
            409,
            "shard 3 is in region us, and no server of that region is running. Start one first.",
        )
        for body in ({"dedicated": True}, {"spread": SHARDS // 2}):  # the empty shards of that region are not chosen
            planned = await client.put("/v1/cluster/tenants/free", json={**body, "dry_run": True})
            assert (planned.status_code, planned.json()["region"]) == (200, "eu")
            assert all(shard % 2 == 0 for shard in planned.json()["shards"])
        assert (await refused("default", {"shard": 1}))[0] == 409
        assert (await refused("acme", {}))[0] == 422
        assert (await refused("acme", {"pinned": False, "dedicated": True}))[0] == 422
        assert (await refused("acme", {"shard": 0, "dedicated": True}))[0] == 409


async def test_server_refuses_invalid_settings_and_changes_nothing(shared_store: SharedStore, tmp_path: Path) -> None:
    """Covers a larger shard count while others run, a missing secret, and a shard of another format."""
    more = {"cluster": {**SECRET["cluster"], "shards": 2 * SHARDS}}
    other = {"cluster": {"secret": "of another cluster", "shards": 2 * SHARDS}}
    async with hosting(tmp_path / "a", shared_store.url, "refused", **SECRET):
        with pytest.raises(Invalid, match=f"cannot be raised to {2 * SHARDS} while members run with a lower setting"):
            await HostServer(host_settings(tmp_path / "b", shared_store.url, "refused", **more)).start()
    with pytest.raises(Invalid, match="differs from the secret"):
        await HostServer(host_settings(tmp_path / "c", shared_store.url, "refused", **other)).start()
    registry = registry_of(shared_store, "refused")
    found = await asyncio.to_thread(registry.find)
    registry.close()
    assert found is not None
    assert found.shards == SHARDS
    if isinstance(shared_store, PostgresServer):
        shared_store.execute("UPDATE refused.format SET format = '9'")
    else:
        assert isinstance(shared_store, TwoPrimaries)
        state = "t:{refused:3}:s"
        shared_store.nodes[key_slot(state.encode()) // 8_192].client().hset(state, "format", "9")
    with pytest.raises(StoreFormat, match="format 9"):
        await HostServer(host_settings(tmp_path / "a", shared_store.url, "refused", **SECRET)).start()


@pytest.mark.parametrize("dry_run", [True, False])
async def test_dry_run_of_a_growth_makes_the_checks_of_the_growth(
    shared_store: SharedStore,
    tmp_path: Path,
    dry_run: bool,  # noqa: FBT001  # as given above
) -> None:
    """Too few, too many, or more than a member's setting. The current number is accepted."""
    name = "dry-run" if dry_run else "real-run"
    async with hosting(tmp_path, shared_store.url, name, **SECRET) as server, client_of(server) as client:

        async def grow(shards: int) -> tuple[int, str]:
            reply = await client.put("/v1/cluster/shards", json={"shards": shards, "dry_run": dry_run})
            return reply.status_code, reply.json().get("detail", "")

        assert await grow(2) == (422, f"shards: cannot be reduced (2, the cluster has {SHARDS}).")
        assert await grow(1_025) == (422, "shards: above the maximum (1025, at most 1024).")
        status, detail = await grow(SHARDS + 1)
        assert status == 422
        assert detail.startswith(
            f"cluster.shards: cannot be raised to {SHARDS + 1} while members run with a lower setting"
        )
        assert await grow(SHARDS) == (200, "")


async def test_cluster_grows_and_a_tenant_gets_a_dedicated_shard(shared_store: SharedStore, tmp_path: Path) -> None:
    """Others move away, new tenants are placed elsewhere, and the outcome equals the dry run."""
    settings = {"cluster": {"secret": SECRET["cluster"]["secret"]}}
    async with hosting(tmp_path / "a", shared_store.url, "extended", **SECRET):
        pass
    async with hosting(tmp_path / "a", shared_store.url, "extended", **settings) as server, client_of(server) as client:
        names = [await tenant_on(client, [3], f"on-three-{number}") for number in range(2)]
        body = {"dedicated": True, "shard": 3}
        planned = await client.put(f"/v1/cluster/tenants/{names[0]}", json={**body, "dry_run": True})
        assert [(one["tenant"], one["source"]) for one in planned.json()["moves"]] == [(names[1], 3)]
        assert (await placement(client, names[1]))["shard"] == 3
        done = await client.put(f"/v1/cluster/tenants/{names[0]}", json=body)
        assert done.json()["moves"] == planned.json()["moves"]
        assert await wait_until_placed(client, names[1]) == planned.json()["moves"][0]["target"] != 3
        for number in range(30):
            await client.put(f"/v1/tenants/later-{number}", json={})
            assert (await placement(client, f"later-{number}"))["shard"] != 3
        refused = await client.put(f"/v1/cluster/tenants/{names[1]}", json={"shard": 3})
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            f"shard 3 is dedicated to tenant {names[0]}. Unpin that tenant first.",
        )
        assert (await client.put("/v1/cluster/shards", json={"shards": SHARDS + 4})).status_code == 200
        await until(lambda: server.host is not None and len(server.host.owned()) == SHARDS + 4)
        await pin(client, names[1], SHARDS + 3)
        assert await wait_until_placed(client, names[1]) == SHARDS + 3
