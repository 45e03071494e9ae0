"""``tenantq topology spread``, and fleets that poll a queue which the hash puts on any shard of its tenant."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenantq.cli import exit_codes
from tenantq.domain.cluster_view import SPREAD_FORMAT, Member
from tests.contract.cluster.hosts import SHARDS, TOKEN, client_of, hosting, registry_of, tenant_on
from tests.contract.cluster.spreading import add_one, spread
from tests.contract.cluster.test_members import SECRET, pair, until
from tests.contract.cluster.test_spread_transports import spread_away

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.domain.cluster_view import ClusterView
    from tenantq.server.cluster_member import HostServer
    from tests.contract.cluster.hosts import SharedStore


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


async def tenantq(*arguments: str, **environment: str) -> Ended:
    """Run a command of the program."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenantq", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def command(port: int, *arguments: str) -> Ended:
    """Run ``tenantq topology spread``."""
    return await tenantq("topology", "spread", *arguments, TENANTQ_URL=f"http://127.0.0.1:{port}", TENANTQ_TOKEN=TOKEN)


async def test_the_command_spreads_a_tenant_and_refuses_what_cannot_be(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """It returns when all queues have moved; wrong input gets one sentence and its exit code, and changes nothing."""
    async with hosting(tmp_path, shared_store.url, "command", **SECRET) as server, client_of(server) as client:
        tenant, port = await tenant_on(client, [5], "commanded"), server.port
        planned = await command(port, tenant, "3", "--dry-run", "--json")
        assert planned.code == exit_codes.OK, planned.err
        placement = msgspec.json.decode(planned.out)["placement"]
        assert (placement["spread"], len(placement["shards"])) == (3, 3)
        assert (await client.get(f"/v1/cluster/tenants/{tenant}")).json()["spread"] == 1
        first, second = await asyncio.gather(command(port, tenant, "3", "--json"), command(port, tenant, "2", "--json"))
        assert sorted((first.code, second.code)) in (
            [exit_codes.OK, exit_codes.OK], [exit_codes.OK, exit_codes.CONFLICT],
        ), (first, second)  # fmt: skip
        done = await command(port, tenant, "3", "--json")
        assert done.code == exit_codes.OK, done.err
        placement = msgspec.json.decode(done.out)["placement"]
        assert (placement["spread"], placement["changing"], placement["shards"][0]) == (3, False, 5)
        shown = await command(port, tenant, "1")
        assert shown.code == exit_codes.OK, shown.err
        wrong = {
            (tenant, "0"): exit_codes.USAGE,
            (tenant, "-1"): exit_codes.USAGE,
            (tenant, "many"): exit_codes.USAGE,
            (tenant, str(SHARDS + 1)): exit_codes.USAGE,
            ("nobody", "2"): exit_codes.NOT_FOUND,
            ("default", "2"): exit_codes.CONFLICT,
        }
        for arguments, code in wrong.items():
            ended = await command(port, *arguments)
            assert ended.code == code, (arguments, ended)
            assert "Traceback" not in ended.err
        assert str(SHARDS) in (await command(port, tenant, str(SHARDS + 1))).err
        assert (await client.get(f"/v1/cluster/tenants/{tenant}")).json()["spread"] == 1
        assert (await client.put(f"/v1/cluster/tenants/{tenant}", json={"spread": 0})).status_code == 422


async def test_no_tenant_is_spread_while_an_older_server_runs(shared_store: SharedStore, tmp_path: Path) -> None:
    """The command names the server and changes nothing; afterwards older servers cannot join."""
    registry = registry_of(shared_store, "upgrade")
    async with hosting(tmp_path, shared_store.url, "upgrade", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [5], "upgraded")
        older = Member(id="older", peer_address="127.0.0.1:1", version="0.1", draining=True)
        await asyncio.to_thread(registry.create, None, ())
        await asyncio.to_thread(registry.heartbeat, older, 1)
        before = (await client.get(f"/v1/cluster/tenants/{tenant}")).json()
        refused = await command(server.port, tenant, "3")
        assert refused.code == exit_codes.CONFLICT, refused
        assert "cannot serve a part of a tenant (older has 0.1). Upgrade them first" in refused.err
        assert (await client.get(f"/v1/cluster/tenants/{tenant}")).json() == before
        await asyncio.to_thread(registry.leave, "older")
        await until(lambda: "older" not in joined(server).members)
        assert len(await spread(client, tenant, 3)) == 3
        await until(lambda: joined(server).cluster.format == SPREAD_FORMAT)
    await asyncio.to_thread(registry.close)


def joined(server: HostServer) -> ClusterView:
    """Return the cluster as a server sees it."""
    assert server.membership is not None
    return server.membership.view


async def test_the_doctor_knows_parts(shared_store: SharedStore, tmp_path: Path) -> None:
    """A tenant that several shards have a part of is one tenant, and no finding."""
    async with hosting(tmp_path / "one", shared_store.url, "examined", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [3], "examined")
        await spread(client, tenant, 3)
        for number in range(6):
            assert await add_one(client, f"/v1/tenants/{tenant}/queues/q{number}", "body")
    environment = {
        "TENANTQ_STORE": shared_store.url, "TENANTQ_REDIS__NAME": "examined", "TENANTQ_SHARD__DURABILITY": "os",
    }  # fmt: skip
    done = await tenantq("doctor", "--json", "--data-dir", str(tmp_path / "one"), **environment)
    report = msgspec.json.decode(done.out)
    assert report["findings"] == [], done.err
    assert report["figures"]["tenants"] == SHARDS + 1  # each shard has the tenant "default"


async def test_fleets_get_messages_of_queues_that_are_not_at_home(shared_store: SharedStore, tmp_path: Path) -> None:
    """Also within the quota of leases of the whole tenant, with and without its name, waiting or not."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "spread-fleet")
        admin, other = both.clients
        name = await spread_away(admin, "jobs", "fleet")
        base = f"/v1/tenants/{name}/queues/jobs"

        async def poll(**options: object) -> list[dict[str, str]]:
            reply = await other.post("/v1/poll", json={"queue": "jobs", "max": 4, **options})
            assert reply.status_code == 200, reply.text
            found: list[dict[str, str]] = reply.json()["messages"]
            return found

        async def polled(count: int, **options: object) -> list[dict[str, str]]:
            got: list[dict[str, str]] = []
            async with asyncio.timeout(30):
                while len(got) < count:
                    got += await poll(wait_ms=1_000, **options)
            return got

        waiting = asyncio.ensure_future(polled(1))
        await admin.post(f"{base}/messages", json={"messages": [{"body": "first"}]})
        assert [one["body"] for one in await waiting] == ["first"]
        await admin.put(f"/v1/tenants/{name}", json={"quotas": {"in_flight": 3}})
        await admin.post(f"{base}/messages", json={"messages": [{"body": str(at)} for at in range(4)]})
        got = await polled(2, tenants=[name])
        assert [one["body"] for one in got] == ["0", "1"]
        assert await poll() == []
        acked = await admin.post(f"{base}/ack", json={"receipts": [one["receipt"] for one in got]})
        assert [one["ok"] for one in acked.json()["results"]] == [True, True]
        assert [one["body"] for one in await polled(2)] == ["2", "3"]
        assert len(await spread(admin, name, 1)) == 1
