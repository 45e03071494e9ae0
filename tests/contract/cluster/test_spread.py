"""A tenant whose queues are spread over shards: one tenant for its callers, with exact limits."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.spread_changes import SpreadChanges
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.domain.placement import spread_shard
from tenantq.engine.ops.move import ActivateTenant
from tenantq.errors import ShardDown
from tenantq.kms.keyring import KeyringFile, Unlock
from tenantq.kms.server_keyring import create_keyring
from tests.contract.cluster.hosts import client_of, hosting, tenant_on
from tests.contract.cluster.spreading import add_one, added_status, spread, wait_until_spread
from tests.contract.cluster.test_members import SECRET, pair
from tests.contract.cluster.test_tenant_moves import drained, pin, wait_until_placed

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tenantq.engine.operation import Operation
    from tests.contract.cluster.hosts import SharedStore, TwoPrimaries


async def test_queues_are_spread_and_come_back(shared_store: SharedStore, tmp_path: Path) -> None:
    """Every call works through any server; messages, leases and settings survive each change of the spread."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "spread-wide")
        admin = both.clients[0]
        name = await tenant_on(admin, [2], "wide")
        key = (await admin.post(f"/v1/tenants/{name}/keys", json={"name": "key", "role": "tenant-admin"})).json()
        clients = [await stack.enter_async_context(client_of(one, key["token"])) for one in both.servers]
        queues = [f"q{number}" for number in range(12)]
        base = f"/v1/tenants/{name}/queues"
        leased = {}
        for number, queue in enumerate(queues):
            bodies = [{"body": f"{queue}-{at}"} for at in range(5)]
            added = await clients[number % 2].post(f"{base}/{queue}/messages", json={"messages": bodies})
            assert added.status_code == 200, added.text
            got = (await clients[0].post(f"{base}/{queue}/poll", json={"max": 1, "lease_ms": 60_000})).json()[
                "messages"
            ]
            leased[queue] = got[0]["receipt"]
        shards = await spread(admin, name, 4)
        assert shards[0] == 2
        assert len(set(shards)) == 4
        listed = (await clients[1].get(base)).json()["queues"]
        assert sorted(one["name"] for one in listed) == sorted([*queues, "work"])
        assert {one["name"]: one["ready"] for one in listed} == {**dict.fromkeys(queues, 4), "work": 0}
        for number, queue in enumerate(queues):
            client = clients[number % 2]
            acked = await client.post(f"{base}/{queue}/ack", json={"receipts": [leased[queue]]})
            assert [one["ok"] for one in acked.json()["results"]] == [True], acked.text
            assert await drained(client, f"{base}/{queue}") == [f"{queue}-{at}" for at in range(1, 5)]
        for number in range(12):
            new = f"new{number}"
            assert (
                await clients[0].post(f"{base}/{new}/messages", json={"messages": [{"body": new}]})
            ).status_code == 200
            assert await drained(clients[1], f"{base}/{new}") == [new]
        usage = (await clients[0].get(f"/v1/tenants/{name}/usage")).json()
        assert usage["quotas"]["queues"]["used"] == 25
        assert await spread(admin, name, 2) == shards[:2]
        assert len((await clients[1].get(base)).json()["queues"]) == 25
        assert await spread(admin, name, 1) == [2]
        assert len((await clients[1].get(base)).json()["queues"]) == 25
        usage = (await clients[0].get(f"/v1/tenants/{name}/usage")).json()
        assert usage["quotas"]["queues"]["used"] == 25
        assert usage["quotas"]["messages_per_hour"]["used"] == 72


async def test_settings_hold_on_all_shards_at_once(shared_store: SharedStore, tmp_path: Path) -> None:
    """Grants, suspension, legal hold, encryption, rate limits and deletion apply to queues of every shard."""
    async with AsyncExitStack() as stack:
        keyring, master_key = tmp_path / "keyring.json", tmp_path / "master.key"  # all servers need them
        create_keyring(keyring, master_key)
        kms = {"local": {"keyring": str(keyring), "master_key_file": str(master_key)}}
        KeyringFile(keyring, Unlock("master_key", master_key.read_bytes())).add_key("shared", 0)
        both = await pair(stack, tmp_path, shared_store, "settings", kms=kms)
        admin, other = both.clients
        name = await tenant_on(admin, [4], "settled")
        guest = await tenant_on(admin, [5], "guest")
        base = f"/v1/tenants/{name}"
        queues = [f"{base}/queues/q{number}" for number in range(8)]
        await spread(admin, name, 3)
        key = (await admin.post(f"/v1/tenants/{guest}/keys", json={"name": "key", "role": "producer"})).json()
        stranger = await stack.enter_async_context(client_of(both.servers[1], key["token"]))
        one = {"messages": [{"body": "secret"}]}

        async def statuses(client: httpx.AsyncClient) -> set[int]:
            return {(await client.post(f"{path}/messages", json=one)).status_code for path in queues}

        assert await statuses(stranger) == {403}
        principal = f"key:{key['key_id']}"
        granted = await other.put(f"{base}/grants/{principal}", json={"role": "producer"})
        assert granted.status_code in {200, 201}, granted.text
        assert await statuses(stranger) == {200}
        assert (await other.delete(f"{base}/grants/{principal}")).status_code in {200, 204}
        assert await statuses(stranger) == {403}
        assert (await other.post(f"{base}/suspend", json={"reason": "not paid"})).status_code == 200
        assert await statuses(admin) == {403}
        assert (await admin.post(f"{base}/resume", json={})).status_code == 200
        assert await statuses(other) == {200}
        enabled = await other.put(base, json={"encryption": {"enabled": True, "key": "local:shared"}})
        assert enabled.status_code == 200, enabled.text
        assert await statuses(admin) == {200}
        rotated = await admin.post(f"{base}/encryption/rotate", json={})
        assert rotated.status_code == 200, rotated.text
        assert await statuses(other) == {200}
        for path in queues:
            assert await drained(other, path) == ["secret"] * 4
        assert (await admin.put(f"{base}/hold", json={"reason": "a lawsuit is expected"})).status_code in {200, 201}
        purges = [await other.post(f"{path}/purge", json=_confirmed(path)) for path in queues]
        assert {reply.json()["code"] for reply in purges} == {"legal_hold"}
        released = await admin.request("DELETE", f"{base}/hold", json={"reason": "the lawsuit is over"})
        assert released.status_code in {200, 204}, released.text
        limited = await admin.put(base, json={"limits": {"write": {"ops_per_sec": 1, "burst": 5}}})
        assert limited.status_code == 200, limited.text
        burst = await asyncio.gather(
            *(client.post(f"{path}/messages", json=one) for client in both.clients for path in queues)
        )
        passed = sum(reply.status_code == 200 for reply in burst)
        assert 5 <= passed <= 10  # some tokens arrive meanwhile
        assert {reply.json()["code"] for reply in burst if reply.status_code != 200} == {"rate_limited"}
        proof = (await admin.get(f"{base}/residency")).json()
        assert len(proof["shards"]) == 3
        rows = (await admin.get(f"{base}/audit", params={"action": "create_queue", "limit": 100})).json()["rows"]
        assert {row["queue"] for row in rows} >= {f"q{number}" for number in range(8)}
        deleted = await other.request("DELETE", base, json={"confirm": name, "reason": "the contract has ended"})
        assert deleted.status_code == 200, deleted.text
        assert deleted.json()["counts"]["queues"] == 9
        assert await statuses(admin) == {404}
        again = await admin.put(base, json={})
        assert again.status_code == 201, again.text
        assert (await admin.get(f"{base}/queues")).json()["queues"] == []


def _confirmed(path: str) -> dict[str, str]:
    return {"confirm": path.rpartition("/")[2], "reason": "this is only a test"}


async def test_dead_letters_stay_with_their_queue(shared_store: SharedStore, tmp_path: Path) -> None:
    """A message that used up its attempts is in the dead-letter queue of its shard, and comes back from there."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "letters")
        admin, other = both.clients
        name = await tenant_on(admin, [6], "letters")
        base = f"/v1/tenants/{name}/queues"
        await spread(admin, name, 4)
        for number in range(6):
            path = f"{base}/mail{number}"
            assert (await admin.put(path, json={"max_attempts": 1})).status_code == 201
            await other.post(f"{path}/messages", json={"messages": [{"body": "bad"}]})
            [got] = (await admin.post(f"{path}/poll", json={})).json()["messages"]
            await other.post(f"{path}/nack", json={"receipts": [got["receipt"]]})
            [dead] = (await other.post(f"{path}-dlq/peek", json={})).json()["messages"]
            assert dead["body"] == "bad"
        assert await spread(admin, name, 2)
        for number in range(6):
            path = f"{base}/mail{number}"
            redriven = await other.post(f"{path}/redrive", json={})
            assert redriven.status_code in {200, 202}, redriven.text
            async with asyncio.timeout(10):
                while not (got := (await admin.post(f"{path}/poll", json={"wait_ms": 1_000})).json()["messages"]):
                    pass
            assert [one["body"] for one in got] == ["bad"]
        wrong = await admin.put(f"{base}/mail0", json={"dead_letter": "elsewhere"})
        assert wrong.status_code == 422, wrong.text
        assert "mail0-dlq" in wrong.json()["detail"]


STEPS = ("parts.prepare", "parts.units", "parts.switch", "arrivals.begin", "arrivals.receive", "arrivals.activate")
LEAVING = ("rights.leave", "parts.drop")


@pytest.mark.parametrize("step", [*STEPS, *LEAVING])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_next_owner_completes_a_killed_change(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    """The server is killed around any step; after a restart every message is there once, and no quota is lost."""
    name = f"spread-killed-{[*STEPS, *LEAVING].index(step)}-{is_done}".lower()
    query, reached = CallsFromShard.query, asyncio.Event()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def stops(self: CallsFromShard, owner: int, path: str, /, *arguments: Any, **options: Any) -> Any:
        if path != step:
            return await query(self, owner, path, *arguments, **options)
        if is_done:
            await query(self, owner, path, *arguments, **options)
        loop.call_soon_threadsafe(reached.set)
        monkeypatch.setattr(TenantMoves, "_settle", hang)  # a killed process cleans up nothing
        await hang()
        return 0

    loop, wanted = asyncio.get_running_loop(), 1 if step in LEAVING else 3
    bodies = [str(number) for number in range(20)]
    async with hosting(tmp_path, shared_store.url, name, **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "killed")
        base = f"/v1/tenants/{tenant}"
        await client.put(base, json={"quotas": {"backlog": 100, "messages_per_day": 200}})
        for number in range(4):
            added = {"messages": [{"body": body} for body in bodies]}
            assert (await client.post(f"{base}/queues/q{number}/messages", json=added)).status_code == 200
        if step in LEAVING:
            await spread(client, tenant, 3)
        monkeypatch.setattr(CallsFromShard, "query", stops)
        reply = await client.put(f"/v1/cluster/tenants/{tenant}", json={"spread": wanted})
        assert reply.status_code == 200, reply.text
        await asyncio.wait_for(reached.wait(), 30)
    monkeypatch.undo()
    async with hosting(tmp_path, shared_store.url, name, **SECRET) as server, client_of(server) as client:
        assert len(await wait_until_spread(client, tenant)) == wanted
        used = (await client.get(f"{base}/usage")).json()["quotas"]
        assert (used["backlog"]["used"], used["messages_per_day"]["used"]) == (80, 80)
        more = [await add_one(client, f"{base}/queues/q{number % 6}", "more") for number in range(24)]
        assert more == [True] * 20 + [False] * 4
        got = [await drained(client, f"{base}/queues/q{number}") for number in range(6)]
        assert [one[:20] for one in got[:4]] == [bodies] * 4
        await spread(client, tenant, 1)
        for number in range(100):
            assert await add_one(client, f"{base}/queues/q{number % 6}", "last")
        assert not await add_one(client, f"{base}/queues/q0", "one too many")


async def test_queues_whose_move_is_decided_are_not_lost_before_they_are_served(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home keeps the row that decides a move until the new shard serves the queue, however long that takes."""
    query, attempt, clean_up = CallsFromShard.query, TenantMoves._attempt, SpreadChanges._clean_up
    cleaned = threading.Event()

    async def stops(self: CallsFromShard, owner: int, path: str, /, *arguments: Any, **options: Any) -> Any:
        if path == "arrivals.activate":
            raise ShardDown("the shard is slow.")
        return await query(self, owner, path, *arguments, **options)

    async def waits(self: TenantMoves, operation: Operation[None]) -> None:
        if cleaned.is_set() or not isinstance(operation, ActivateTenant):
            await attempt(self, operation)

    async def notes(self: SpreadChanges, name: str) -> None:
        units = self._placements.units(name).values()
        decided = bool(units) and all(known.moving_to is None for known in units)
        try:
            await clean_up(self, name)
        finally:
            if decided:
                cleaned.set()

    async with hosting(tmp_path, shared_store.url, "decided", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "decided")
        base = f"/v1/tenants/{tenant}/queues"
        queues = [f"q{number}" for number in range(3)]
        for queue in queues:
            assert await add_one(client, f"{base}/{queue}", queue)
        monkeypatch.setattr(CallsFromShard, "query", stops)
        monkeypatch.setattr(TenantMoves, "_attempt", waits)
        monkeypatch.setattr(SpreadChanges, "_clean_up", notes)
        reply = await client.put(f"/v1/cluster/tenants/{tenant}", json={"spread": 4})
        assert reply.status_code == 200, reply.text
        assert await asyncio.to_thread(cleaned.wait, 30)
        monkeypatch.undo()
        await wait_until_spread(client, tenant)
        listed = (await client.get(base)).json()["queues"]
        assert {one["name"]: one["ready"] for one in listed} == {**dict.fromkeys(queues, 1), "work": 0}


def cut_off_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no settings reach a part."""
    query = CallsFromShard.query

    async def cut_off(self: CallsFromShard, owner: int, path: str, /, *arguments: Any, **options: Any) -> Any:
        if path == "parts.apply":
            raise ShardDown("the shard is cut off.")
        return await query(self, owner, path, *arguments, **options)

    monkeypatch.setattr(CallsFromShard, "query", cut_off)


async def test_a_change_that_a_part_has_not_got_is_not_acknowledged(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets 503, and the part gets the change once it can be reached."""
    async with hosting(tmp_path, shared_store.url, "cut-off", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [3], "cut-off")
        base = f"/v1/tenants/{tenant}"
        shards = await spread(client, tenant, 2)
        away = next(f"q{at}" for at in range(50) if spread_shard(tenant, f"q{at}", shards) != 3)
        cut_off_settings(monkeypatch)
        refused = await client.post(f"{base}/suspend", json={"reason": "not paid"})
        assert refused.status_code == 503
        assert refused.json()["detail"].startswith("stored, but not all shards of this tenant have the change yet")
        assert (await client.get(base)).json()["status"] == "suspended"
        monkeypatch.undo()
        async with asyncio.timeout(20):
            while await added_status(client, f"{base}/queues/{away}") != 403:  # noqa: ASYNC110  # home sends it again
                await asyncio.sleep(0.05)


async def test_a_part_out_of_reach_concerns_no_other_tenant(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls about the platform, and about other tenants, do not wait for the settings of a tenant to arrive."""
    async with hosting(tmp_path, shared_store.url, "apart", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [0], "apart")
        await spread(client, tenant, 2)
        cut_off_settings(monkeypatch)
        refused = await client.post(f"/v1/tenants/{tenant}/suspend", json={"reason": "not paid"})
        assert refused.status_code == 503, refused.text
        made = await client.post("/v1/platform/keys", json={"name": "key", "role": "platform-admin"})
        assert made.status_code == 201, made.text
        other = await client.put("/v1/tenants/default", json={"weight": 2})
        assert other.status_code == 200, other.text


async def test_keys_of_a_tenant_have_its_name_wherever_they_are(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """Operators find the same keys with SCAN after a move and after a spread, on the new shards only."""

    def keys(id: int) -> dict[str, int]:
        """Return the keys of a tenant's queues, each with its shard. All have its name."""
        pattern = re.compile(rf"t:{{names:(\d+)}}:(.*:{id:x}\.[0-9a-f]+:.*)")
        texts = [
            key.decode() for node in primaries.nodes for key in node.client().scan_iter("t:{names:*", count=10_000)
        ]
        found = {match[2]: int(match[1]) for text in texts if (match := pattern.fullmatch(text)) is not None}
        assert all(name.startswith(f"{tenant}:") for name in found)
        scanned = [
            key for node in primaries.nodes for key in node.client().scan_iter(f"t:{{*}}:{tenant}:*", count=10_000)
        ]
        assert len(scanned) == len(found)
        return found

    async with hosting(tmp_path, primaries.url, "names", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "names")
        id = (await client.get(f"/v1/tenants/{tenant}")).json()["id"]
        for number in range(4):
            path = f"/v1/tenants/{tenant}/queues/q{number}"
            messages = [{"body": "a", "group": "g", "key": "k"}, {"body": "b", "delay_ms": 60_000}, {"body": "c"}]
            assert (await client.post(f"{path}/messages", json={"messages": messages})).status_code == 200
            leased = (await client.post(f"{path}/poll", json={"lease_ms": 60_000})).json()["messages"]
            assert len(leased) == 1
        before = keys(id)
        assert len(before) > 20
        assert set(before.values()) == {2}

        async def moved(*shards: int) -> None:
            async with asyncio.timeout(20):
                while set((found := keys(id)).values()) != set(shards) or found.keys() != before.keys():  # noqa: ASYNC110  # the source still deletes
                    await asyncio.sleep(0.1)

        await pin(client, tenant, 5)
        assert await wait_until_placed(client, tenant) == 5
        await moved(5)
        shards = await spread(client, tenant, 3)
        used = {spread_shard(tenant, queue, shards) for queue in ("work", *(f"q{number}" for number in range(4)))}
        assert len(used) > 1
        await moved(*{spread_shard(tenant, f"q{number}", shards) for number in range(4)})
