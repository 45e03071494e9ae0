"""Quotas of a tenant whose queues are spread over shards: exact over all of them."""

from __future__ import annotations

import asyncio
import functools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tenantq.cluster.tenant_parts import PartQueries
from tenantq.errors import ShardDown
from tests.contract.cluster.hosts import client_of, hosting, tenant_on
from tests.contract.cluster.spreading import add_one, spread
from tests.contract.cluster.test_members import SECRET, pair, until
from tests.contract.cluster.test_tenant_moves import drained

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.cluster.hosts import SharedStore


async def test_quotas_are_exact_over_all_shards(shared_store: SharedStore, tmp_path: Path) -> None:
    """64 callers through two servers add exactly as many messages as each quota allows, on whichever shard."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "quotas")
        admin = both.clients[0]
        name = await tenant_on(admin, [1], "limited")
        base = f"/v1/tenants/{name}"
        assert len(await spread(admin, name, 4)) == 4
        changed = await admin.put(base, json={"quotas": {"backlog": 300}})
        assert changed.status_code == 200, changed.text
        queues = [f"{base}/queues/q{number}" for number in range(16)]

        async def flood(caller: int, limit: int) -> int:
            """Add until a quota refuses twice in a row."""
            count = refused = 0
            while refused < 2 and count < limit:
                path = queues[(caller + count) % len(queues)]
                is_added = await add_one(both.clients[caller % 2], path, f"{caller}-{count}")
                count += is_added
                refused = 0 if is_added else refused + 1
            return count

        assert sum(await asyncio.gather(*(flood(caller, 1_000) for caller in range(64)))) == 300
        used = (await admin.get(f"{base}/usage")).json()["quotas"]
        assert used["backlog"]["used"] == 300
        emptied = queues[0]
        freed = len(await drained(both.clients[1], emptied))
        assert freed > 0
        assert sum(await asyncio.gather(*(flood(caller, 1_000) for caller in range(64)))) == freed
        lowered = await admin.put(base, json={"quotas": {"backlog": 250}})
        assert lowered.status_code == 200, lowered.text
        assert sum(await asyncio.gather(*(flood(caller, 1_000) for caller in range(8)))) == 0
        raised = await admin.put(base, json={"quotas": {"backlog": None, "messages_per_day": 500 + freed}})
        assert raised.status_code == 200, raised.text
        assert sum(await asyncio.gather(*(flood(caller, 1_000) for caller in range(64)))) == 200
        assert await spread(admin, name, 1) == [1]
        used = (await admin.get(f"{base}/usage")).json()["quotas"]
        assert used["messages_per_day"]["used"] == 500 + freed
        assert used["backlog"]["used"] == 500
        assert not await add_one(admin, queues[3], "one too many")


async def test_quota_alerts_compare_the_usage_of_all_shards(shared_store: SharedStore, tmp_path: Path) -> None:
    """No shard alone uses 80 % of the quota; together they do. The alert ends when they do not any more."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "quota-alerts", alerts={"every_ms": 1_000})
        admin = both.clients[0]
        name = await tenant_on(admin, [2], "alerted")
        base = f"/v1/tenants/{name}"
        settings = {"quotas": {"backlog": 20}, "alerts": {"quota_percent": 80}}
        assert (await admin.put(base, json=settings)).status_code == 200
        await spread(admin, name, 4)
        queues = [f"{base}/queues/q{number}" for number in range(16)]
        assert all([await add_one(admin, path, "one") for path in queues])

        async def wait_for_alerts(*wanted: str) -> None:
            found: list[str] | None = None
            while found != [*wanted]:
                await asyncio.sleep(0.1)
                found = [one["text"] for one in (await admin.get(f"{base}/alerts")).json()["alerts"]]

        async with asyncio.timeout(30):
            await wait_for_alerts("quota backlog: 16 of 20 in use (threshold 80 %)")
            for path in queues[:8]:
                await drained(admin, path)
            await wait_for_alerts()


async def test_quota_warnings_are_journaled_for_all_shards_together(shared_store: SharedStore, tmp_path: Path) -> None:
    """One row at the soft limit and one at the limit, also after the home shard has another owner."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "quota-rows")
        admin, other = both.clients
        name = await tenant_on(admin, [2], "warned")
        base = f"/v1/tenants/{name}"
        assert (await admin.put(base, json={"quotas": {"backlog": 20}})).status_code == 200
        await spread(admin, name, 4)
        queues = [f"{base}/queues/q{number}" for number in range(16)]

        async def wait_for_rows(wanted: list[str]) -> None:
            found: list[str] | None = None
            while found != wanted:
                await asyncio.sleep(0.1)
                found = []
                for action in ("quota_warning", "quota_critical"):
                    reply = await other.get(f"{base}/audit", params={"action": action})
                    found += [f"{row['op']} {row['details']}" for row in reply.json()["rows"]]

        assert all([await add_one(admin, path, "one") for path in queues])
        warning = "quota_warning backlog: 16 of 20"
        async with asyncio.timeout(30):
            await wait_for_rows([warning])
        for path in queues[:3]:
            assert await add_one(other, path, "two")
        old = next(number for number in range(2) if 2 in both.owned(number))
        membership = both.servers[old].membership
        assert membership is not None
        assert (await admin.post(f"/v1/cluster/members/{membership.id}/drain", json={})).status_code == 200
        await until(lambda: 2 in both.owned(1 - old))
        assert [await add_one(other, path, "three") for path in queues[:2]] == [True, False]
        async with asyncio.timeout(30):
            await wait_for_rows([warning, "quota_critical backlog: 20 of 20"])


@pytest.mark.parametrize("failing", ["usage", "has_part"])
async def test_part_out_of_reach_does_not_stop_quota_warnings_of_other_tenants(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Neither while usage is asked for, nor while lost parts are replaced."""
    unreachable, method = set[int](), getattr(PartQueries, failing)

    @functools.wraps(method)
    def fail(self: PartQueries, id: int) -> object:
        if id in unreachable:
            raise ShardDown("this shard has no owner")
        return method(self, id)

    monkeypatch.setattr(PartQueries, failing, fail)
    async with (
        hosting(tmp_path, shared_store.url, f"reach-{failing}".replace("_", "-"), **SECRET) as server,
        client_of(server) as admin,
    ):
        names = [await tenant_on(admin, [2], prefix) for prefix in ("first", "second", "third")]
        for name in names:
            assert (await admin.put(f"/v1/tenants/{name}", json={"quotas": {"backlog": 10}})).status_code == 200
            await spread(admin, name, 3)
        assert server.host is not None
        home = server.host.thread(2)
        assert home is not None
        ids = [home.shard.state.catalog.tenants[name].id for name in names]
        unreachable.update(ids if failing == "has_part" else ids[:2])
        for name in reversed(names):
            for number in range(8):
                assert await add_one(admin, f"/v1/tenants/{name}/queues/q{number}", "one")
        rows: list[str] = []
        async with asyncio.timeout(30):
            while not rows:
                await asyncio.sleep(0.1)
                reply = await admin.get(f"/v1/tenants/{names[2]}/audit", params={"action": "quota_warning"})
                rows = [row["details"] for row in reply.json()["rows"]]
        assert rows == ["backlog: 8 of 10"]


async def test_leases_and_queues_are_limited_over_all_shards(shared_store: SharedStore, tmp_path: Path) -> None:
    """Polls of all shards together lease no more than ``in_flight``, and waiting polls get leases that others free."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "leases")
        admin = both.clients[0]
        name = await tenant_on(admin, [3], "leased")
        base = f"/v1/tenants/{name}"
        await spread(admin, name, 3)
        queues = [f"{base}/queues/q{number}" for number in range(9)]
        for path in queues:
            await admin.post(f"{path}/messages", json={"messages": [{"body": str(at)} for at in range(5)]})
        limits = {"quotas": {"in_flight": 7, "queues": 12}}
        assert (await admin.put(base, json=limits)).status_code == 200
        got: list[tuple[str, str]] = []
        for _ in range(2):
            for at, path in enumerate(queues):
                reply = await both.clients[at % 2].post(f"{path}/poll", json={"max": 2})
                if reply.status_code == 200:
                    got += [(path, one["receipt"]) for one in reply.json()["messages"]]
                else:
                    assert reply.json()["code"] == "quota_exceeded", reply.text
        assert len(got) == 7
        assert (await admin.get(f"{base}/usage")).json()["quotas"]["in_flight"]["used"] == 7
        path, receipt = got[0]
        assert (await admin.post(f"{path}/ack", json={"receipts": [receipt]})).json()["results"][0]["ok"]
        again = await both.clients[1].post(f"{queues[8]}/poll", json={"max": 2, "wait_ms": 5_000})
        assert again.status_code == 200, again.text
        assert len(again.json()["messages"]) == 1
        made = [await both.clients[at % 2].put(f"{base}/queues/more{at}", json={}) for at in range(6)]
        assert sorted(one.status_code for one in made) == [201, 201, 429, 429, 429, 429]
