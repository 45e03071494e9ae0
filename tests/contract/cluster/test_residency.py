"""Residency in a cluster: contents of a tenant do not pass through servers in regions that it does not allow."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest
from botocore.exceptions import ClientError
from redis.crc import key_slot

from tenantq.client.async_client import AsyncClient
from tenantq.errors import WrongRegion
from tenantq.rpc.kj_loop import kj_loop
from tests.contract.cluster.hosts import TOKEN, client_of, hosting
from tests.contract.cluster.test_members import until
from tests.contract.cluster.test_tenant_moves import pin, wait_until_placed
from tests.contract.rpc.client import RpcClient
from tests.contract.sqs.sqs_server import client_of as sqs_client_of

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.server.cluster_member import HostServer
    from tests.contract.cluster.hosts import SharedStore, TwoPrimaries

REGIONS = ("eu", "us")
QUEUE = "/v1/tenants/acme/queues/mail"
ADD = {"messages": [{"body": "x"}]}
TEXT = "the tenant allows the regions eu, and this server is in us. Call a server in one of them."


class Regional(NamedTuple):
    """A server in each region, and a client of each."""

    eu: HostServer
    us: HostServer
    via_eu: httpx.AsyncClient
    via_us: httpx.AsyncClient


async def regional(stack: AsyncExitStack, directory: Path, store: SharedStore, name: str, **options: Any) -> Regional:
    """Run a server in the EU and one in the US, and create the tenant acme, which allows the EU only."""
    servers = []
    for region in REGIONS:
        settings: dict[str, Any] = {
            "cluster": {"shards": 4, "regions": REGIONS, "secret": "known to both servers"},
            "shard": {"durability": "os", "region": region},
            **options,
        }
        servers.append(await stack.enter_async_context(hosting(directory / region, store.url, name, **settings)))
    clients = [await stack.enter_async_context(client_of(server)) for server in servers]
    both = Regional(servers[0], servers[1], clients[0], clients[1])
    for server in servers:
        await until(lambda server=server: all(server.frontend.status.joined().view.owner_of(one) for one in range(4)))
    assert (await both.via_eu.put("/v1/tenants/acme", json={"regions": ["eu"]})).status_code == 201
    assert (await both.via_eu.put("/v1/tenants/free", json={})).status_code == 201
    for tenant in ("acme", "free"):
        assert (await both.via_eu.post(f"/v1/tenants/{tenant}/queues/mail/messages", json=ADD)).status_code == 200
    return both


async def test_contents_do_not_pass_through_a_server_in_another_region(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """Administration works from everywhere. Refused calls are journaled."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-residency")
        (message,) = (await both.via_eu.post(f"{QUEUE}/poll", json={"lease_ms": 60_000})).json()["messages"]
        receipts = {"receipts": [message["receipt"]]}
        refused = [
            await both.via_us.post(f"{QUEUE}/messages", json=ADD),
            await both.via_us.post(f"{QUEUE}/poll", json={}),
            await both.via_us.post(f"{QUEUE}/peek", json={}),
            await both.via_us.post(f"{QUEUE}/extend", json={**receipts, "lease_ms": 1_000}),
            await both.via_us.post(f"{QUEUE}/nack", json=receipts),
            await both.via_us.post(f"{QUEUE}/ack", json=receipts),
            await both.via_us.get(f"{QUEUE}/messages/{message['id']}"),
            await both.via_us.get(f"{QUEUE}/messages/{message['id']}/result"),
            await both.via_us.get(f"{QUEUE}/messages/{message['id']}/trace"),
            await both.via_us.get("/v1/tenants/acme/export"),
            await both.via_us.get(f"{QUEUE}/digest"),
            await both.via_us.post(f"{QUEUE}/import", json={"export": "0" * 32, "part": 1, "messages": []}),
            await both.via_us.post(f"{QUEUE}/snapshots", json={}),
            await both.via_us.get(f"{QUEUE}/snapshots/{'0' * 16}"),
            await both.via_us.post(f"{QUEUE}/redrive", json={}),
        ]
        for reply in refused:
            assert (reply.status_code, reply.json()["code"], reply.json()["detail"]) == (421, "wrong_region", TEXT)
            assert reply.headers["Tenantq-Shard"] == f"http://127.0.0.1:{both.eu.port}"
        for path in ("/v1/tenants/acme", "/v1/tenants/acme/usage", QUEUE):
            assert (await both.via_us.get(path)).status_code == 200
        assert (await both.via_us.get(QUEUE)).json()["in_flight"] == 1
        assert (await both.via_eu.post(f"{QUEUE}/ack", json=receipts)).json()["results"][0]["ok"]

        async def journaled() -> bool:
            rows = (await both.via_eu.get("/v1/tenants/acme/audit", params={"limit": 100})).json()["rows"]
            noted: int = sum(row["count"] for row in rows if row["error_code"] == "wrong_region")
            return noted == len(refused)

        await until_true(journaled)


async def test_nobody_else_learns_where_a_tenant_may_be(shared_store: SharedStore, tmp_path: Path) -> None:
    """Callers without a right to the tenant get the same error as for an unknown tenant."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-unknown")
        made = (await both.via_eu.post("/v1/tenants/free/keys", json={"name": "k", "role": "tenant-admin"})).json()
        stranger = await stack.enter_async_context(client_of(both.us, made["token"]))
        nobody = await stack.enter_async_context(client_of(both.us, "tq_unknown_unknown"))
        for client, status in ((stranger, 403), (nobody, 401)):
            replies = [
                await client.post(f"/v1/tenants/{tenant}/queues/mail/messages", json=ADD) for tenant in ("acme", "none")
            ]
            texts = [{**reply.json(), "request_id": ""} for reply in replies]
            assert [reply.status_code for reply in replies] == [status, status]
            assert str(texts[0]).replace("acme", "none") == str(texts[1])


async def test_the_body_of_a_call_in_the_wrong_region_is_not_read(shared_store: SharedStore, tmp_path: Path) -> None:
    """Whether the tenant is named, or the credential's own and known from an earlier call."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-unread")
        made = (await both.via_eu.post("/v1/tenants/acme/keys", json={"name": "k", "role": "producer"})).json()
        own = await stack.enter_async_context(client_of(both.us, made["token"]))
        assert (await own.post("/v1/queues/mail/messages", json=ADD)).status_code == 421

        def status(path: str, token: str) -> int:
            asked = http.client.HTTPConnection("127.0.0.1", both.us.port, timeout=30)
            asked.putrequest("POST", path)
            asked.putheader("Authorization", f"Bearer {token}")
            asked.putheader("Content-Length", "1000")
            asked.putheader("Expect", "100-continue")
            asked.endheaders()  # the body is neither sent nor waited for
            found = asked.getresponse().status
            asked.close()
            return found

        assert await asyncio.to_thread(status, f"{QUEUE}/messages", TOKEN) == 421
        assert await asyncio.to_thread(status, "/v1/queues/mail/messages", made["token"]) == 421


async def test_proof_names_the_servers_that_have_the_rows(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """The primary of the tenant's shard, not only the address of the store."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, primaries, "regions-proof")
        proof = (await both.via_us.get("/v1/tenants/acme/residency")).json()
        slot = key_slot(f"t:{{regions-proof:{proof['shard']}}}:s".encode())
        assert proof["allowed"]
        assert proof["places"][0]["where"].endswith(f", on 127.0.0.1:{primaries.nodes[slot // 8_192].port}")


async def test_proof_lists_the_journals_of_shards_that_a_tenant_has_left(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """They name the tenant forever, also where it is not allowed any more."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-left", export={"enabled": True})
        assert (await both.via_eu.put("/v1/tenants/left", json={"regions": ["us"]})).status_code == 201
        assert (await both.via_us.post("/v1/tenants/left/queues/mail/messages", json=ADD)).status_code == 200
        assert (await both.via_eu.put("/v1/tenants/left", json={"regions": ["eu", "us"]})).status_code == 200
        await pin(both.via_eu, "left", 2)
        assert await wait_until_placed(both.via_eu, "left") == 2

        async def proof() -> tuple[bool, list[tuple[str, str, bool]]]:
            found = (await both.via_eu.get("/v1/tenants/left/residency")).json()
            return found["allowed"], [(one["what"], one["region"], one["allowed"]) for one in found["places"]]

        here = [("messages", "eu", True), ("journal segments", "eu", True)]
        assert await proof() == (True, [*here, ("journal", "us", True), ("journal segments", "us", True)])
        assert (await both.via_eu.put("/v1/tenants/left", json={"regions": ["eu"]})).status_code == 200
        assert await proof() == (False, [*here, ("journal", "us", False), ("journal segments", "us", False)])


async def test_fleets_get_nothing_of_tenants_that_do_not_allow_their_region(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """Neither a fleet over all tenants nor one that names the tenant."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-fleets")
        poll = {"queue": "mail", "max": 10, "lease_ms": 60_000}
        got = (await both.via_us.post("/v1/poll", json=poll)).json()["messages"]
        assert [one["tenant"] for one in got] == ["free"]
        named = await both.via_us.post("/v1/poll", json={**poll, "tenants": ["acme"]})
        assert (named.status_code, named.json()["code"]) == (421, "wrong_region")
        got = (await both.via_eu.post("/v1/poll", json=poll)).json()["messages"]
        assert [one["tenant"] for one in got] == ["acme"]


async def test_other_transports_are_refused_too(shared_store: SharedStore, tmp_path: Path) -> None:
    """Amazon SQS and Cap'n Proto through a server in the wrong region. Nothing is added or leased."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-transports", rpc="127.0.0.1:0")
        made = (await both.via_eu.post("/v1/tenants/acme/keys", json={"name": "k", "role": "tenant-admin"})).json()

        def ask(server: HostServer, method: str, **given: Any) -> None:
            client = sqs_client_of(f"http://127.0.0.1:{server.port}", made["key_id"], made["secret"])
            url = client.get_queue_url(QueueName="mail")["QueueUrl"]
            getattr(client, method)(QueueUrl=url, **given)

        await asyncio.to_thread(ask, both.eu, "send_message", MessageBody="x")
        refused: list[tuple[str, dict[str, Any]]] = [
            ("send_message", {"MessageBody": "x"}),
            ("receive_message", {"WaitTimeSeconds": 1}),
        ]
        for method, given in refused:
            with pytest.raises(ClientError, match="allows the regions eu"):
                await asyncio.to_thread(ask, both.us, method, **given)
        await stack.enter_async_context(kj_loop())
        for server in (both.us, both.eu):
            assert server.rpc_port is not None
            client = await RpcClient.open(server.rpc_port)
            await client.login(TOKEN)
            if server is both.eu:
                assert await client.add(b"z", queue="mail", tenant="acme")
            else:
                for call in ("add", "poll", "peek"):
                    bodies = {"bodies": [b"z"]} if call == "add" else {}
                    error = await client.refused(call, queue="mail", tenant="acme", **bodies)
                    assert (error.code, error.message) == ("wrong_region", TEXT)
            client.close()
        counted = (await both.via_eu.get(QUEUE)).json()
        assert (counted["ready"], counted["in_flight"]) == (3, 0)


async def test_a_change_of_regions_takes_effect_everywhere(shared_store: SharedStore, tmp_path: Path) -> None:
    """Within a heartbeat, also for calls whose body is not read."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-change")
        assert (await both.via_us.post(f"{QUEUE}/messages", json=ADD)).status_code == 421
        assert (await both.via_us.put("/v1/tenants/acme", json={"regions": ["eu", "us"]})).status_code == 200

        async def added(status: int) -> bool:
            return (await both.via_us.post(f"{QUEUE}/messages", json=ADD)).status_code == status

        await until_true(lambda: added(200))
        assert (await both.via_eu.put("/v1/tenants/acme", json={"regions": ["eu"]})).status_code == 200
        assert await added(421)  # the owner knows it at once
        misplaced = both.us.frontend.admission.residency.misplaced
        await until(lambda: "acme" in misplaced)


async def test_sdk_with_several_urls_goes_to_a_server_that_may_serve_the_tenant(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """It follows the reply of the server in the wrong region. A client without another URL gets the error."""
    async with AsyncExitStack() as stack:
        both = await regional(stack, tmp_path, shared_store, "regions-several")
        urls = [f"http://127.0.0.1:{server.port}" for server in (both.us, both.eu)]
        client = await stack.enter_async_context(AsyncClient(urls, TOKEN))
        added = await client.tenant("acme").queue("mail").add("y")
        assert added.id
        alone = await stack.enter_async_context(AsyncClient(urls[0].replace("127.0.0.1", "localhost"), TOKEN))
        with pytest.raises(WrongRegion, match="Call a server in one of them"):
            await alone.tenant("acme").queue("mail").add("y")


async def until_true(check: Any) -> None:
    """Wait until an asynchronous check holds."""
    async with asyncio.timeout(10):
        while not await check():  # noqa: ASYNC110  # it asks another process
            await asyncio.sleep(0.05)
