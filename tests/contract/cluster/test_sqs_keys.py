"""Keys sign Amazon SQS calls at every server, wherever their tenant is: the server that is called checks the signature itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.cluster.directory_watch import DirectoryWatch
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.service.call import Call
from tenantq.sqs.credential import signed_request
from tests.contract.cluster.hosts import TOKEN, tenant_on
from tests.contract.cluster.spreading import spread
from tests.contract.cluster.test_members import address_shown, pair
from tests.contract.cluster.test_tenant_moves import pin, wait_until_placed
from tests.contract.sqs.refusals import code, refusal, refused_within_a_second
from tests.contract.sqs.signed import json_call, send
from tests.contract.sqs.sqs_server import client_of as sqs_client_of

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.contract.cluster.hosts import SharedStore
    from tests.contract.cluster.test_members import Pair

UNKNOWN = "InvalidClientTokenId"


async def key_of(admin: httpx.AsyncClient, tenant: str) -> dict[str, str]:
    """Create a key of a tenant."""
    made: dict[str, str] = (
        await admin.post(f"/v1/tenants/{tenant}/keys", json={"name": "k", "role": "tenant-admin"})
    ).json()
    return made


def clients_of(both: Pair, key: dict[str, str]) -> list[Any]:
    """Return a client of each server."""
    return [sqs_client_of(url_of(both, number), key["key_id"], key["secret"]) for number in range(2)]


def url_of(both: Pair, number: int) -> str:
    """Return the address of a server."""
    return f"http://127.0.0.1:{both.servers[number].port}"


@pytest.fixture
def outdated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of directories that are not read regularly, only when a call asks for it."""
    found: list[Any] = []
    read = DirectoryWatch.read

    async def read_unless_outdated(self: DirectoryWatch) -> None:
        if not any(self._placements is one for one in found):
            await read(self)

    monkeypatch.setattr(DirectoryWatch, "read", read_unless_outdated)
    return found


async def test_key_signs_after_its_tenant_has_moved(
    shared_store: SharedStore, tmp_path: Path, outdated: list[Any]
) -> None:
    """This holds at a server that does not know of the move yet, and until a second after the key is revoked."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "sqs-moved")
        admin, (source, target) = both.clients[0], both.owned(0)[:2]
        name = await tenant_on(admin, [source], "moved")
        key, other = await key_of(admin, name), await key_of(admin, name)
        first, second = clients_of(both, key)
        url = (await asyncio.to_thread(second.get_queue_url, QueueName="work"))["QueueUrl"]
        await asyncio.to_thread(clients_of(both, other)[1].list_queues)
        outdated.append(both.servers[1]._context.placements)
        await pin(admin, name, target)
        assert await wait_until_placed(admin, name) == target
        await asyncio.to_thread(second.send_message, QueueUrl=url, MessageBody="m")
        (got,) = (await asyncio.to_thread(first.receive_message, QueueUrl=url))["Messages"]
        await asyncio.to_thread(second.delete_message, QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
        await pin(admin, name, source)
        assert await wait_until_placed(admin, name) == source
        assert await asyncio.to_thread(code, clients_of(both, {**key, "secret": "x"})[1].list_queues) == (
            "SignatureDoesNotMatch"
        )
        assert (await admin.delete(f"/v1/tenants/{name}/keys/{key['key_id']}")).status_code < 300
        revoked_at = time.monotonic()
        for client in (first, second):
            await asyncio.to_thread(refused_within_a_second, client, revoked_at)
        for client in clients_of(both, other):
            await asyncio.to_thread(client.list_queues)


async def test_no_sqs_call_fails_while_its_tenant_moves(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outdated: list[Any]
) -> None:
    """They wait for a tenant that is fenced, also at the server that has neither its old nor its new shard."""
    ask, fenced, main = TenantMoves.ask, asyncio.Event(), asyncio.get_running_loop()
    released = asyncio.Event()

    async def stops(self: TenantMoves, target: int, method: str, *arguments: Any) -> Any:
        if method == "receive" and arguments[4]:  # the last rows
            main.call_soon_threadsafe(fenced.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(released.wait(), main))
        return await ask(self, target, method, *arguments)

    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "sqs-fenced")
        admin, (source, target) = both.clients[0], both.owned(0)[:2]
        name = await tenant_on(admin, [source], "fenced")
        key = await key_of(admin, name)
        clients = clients_of(both, key)
        urls = [(await asyncio.to_thread(one.get_queue_url, QueueName="work"))["QueueUrl"] for one in clients]
        outdated.append(both.servers[1]._context.placements)
        monkeypatch.setattr(TenantMoves, "ask", stops)
        await pin(admin, name, target)
        await asyncio.wait_for(fenced.wait(), 30)
        sending = [
            asyncio.ensure_future(asyncio.to_thread(one.send_message, QueueUrl=url, MessageBody="m"))
            for one, url in zip(clients, urls, strict=True)
        ]
        done, _ = await asyncio.wait(sending, timeout=0.3)
        assert not done
        released.set()
        await asyncio.gather(*sending)
        assert await wait_until_placed(admin, name) == target
        listed = await asyncio.to_thread(clients[1].get_queue_attributes, QueueUrl=urls[1], AttributeNames=["All"])
        assert listed["Attributes"]["ApproximateNumberOfMessages"] == "2"


async def test_every_shard_checks_signatures(shared_store: SharedStore, tmp_path: Path) -> None:
    """It need not store the key, nor have a part of the tenant: servers of older versions ask shards for that."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "sqs-sign-in")
        admin = both.clients[0]
        whole, parted = [await tenant_on(admin, [shard], f"on-{shard}") for shard in (both.owned(0)[0], 1)]
        assert len(await spread(admin, parted, 4)) == 4
        threads = [one for server in both.servers if server.host is not None for one in server.host.threads()]
        assert len(threads) == 8
        for tenant in (whole, parted):
            key = await key_of(admin, tenant)
            request = json_call(msgspec.convert(key, type=Signer), url_of(both, 0), "ListQueues")  # type: ignore[arg-type]  # as much of one as signs
            head = Head({name.lower().encode(): value.encode() for name, value in request.headers.items()})
            head.headers[b"host"] = url_of(both, 0).removeprefix("http://").encode()
            signed = signed_request(head, request.data)  # type: ignore[arg-type]  # as above
            for thread in threads:
                assert await thread.call("sqs_lookup.sign_in", Call(), signed, "list_queues") == key["token"]


class Signer(msgspec.Struct):
    """The part of a new key that signs."""

    key_id: str
    secret: str


class Head(msgspec.Struct):
    """The part of a request's head that is signed."""

    headers: dict[bytes, bytes]
    method: bytes = b"POST"
    target: bytes = b"/"


async def test_every_server_refuses_signatures_alike(shared_store: SharedStore, tmp_path: Path) -> None:
    """Covers keys of the platform, of a tenant elsewhere and of a spread one; each refusal is journaled once."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "sqs-refused")
        admin = both.clients[0]
        spread_one = await tenant_on(admin, [2], "refused")
        await spread(admin, spread_one, 3)
        far = await tenant_on(admin, both.owned(1), "far")
        created = (await admin.post("/v1/platform/keys", json={"name": "k", "role": "platform-admin"})).json()
        keys = (await admin.get("/v1/platform/keys")).json()["keys"]
        [by_hand] = [one["key_id"] for one in keys if one["key_id"] != created["key_id"]]
        for key in (created, await key_of(admin, spread_one), await key_of(admin, far)):
            for client in clients_of(both, key):
                await asyncio.to_thread(client.list_queues)
            for client in clients_of(both, {**key, "secret": key["secret"][::-1]}):
                assert await asyncio.to_thread(code, client.list_queues) == "SignatureDoesNotMatch"
        for key_id, secret in ((by_hand, TOKEN), ("nobody", created["secret"])):
            for client in clients_of(both, {"key_id": key_id, "secret": secret}):
                refused = await asyncio.to_thread(refusal, client.list_queues)
                assert refused[0] == UNKNOWN
                assert "chosen by hand" in refused[1]
                assert "Create a new key" in refused[1]

        async def journaled() -> int:
            rows = (await admin.get("/v1/audit", params={"result": "DENIED", "action": "list_queues"})).json()["rows"]
            return sum(row["count"] for row in rows if row["principal"] == "unknown")

        async with asyncio.timeout(30):
            while await journaled() < 10:  # noqa: ASYNC110  # rows are written in the background
                await asyncio.sleep(0.05)
        assert await journaled() == 10


async def test_reply_over_sqs_names_the_owner(shared_store: SharedStore, tmp_path: Path) -> None:
    """Like any other reply to a call that was forwarded."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "sqs-owner")
        admin = both.clients[0]
        name = await tenant_on(admin, both.owned(1), "named")
        await address_shown(admin, f"/v1/tenants/{name}/queues/work", url_of(both, 1))
        key = msgspec.convert(await key_of(admin, name), type=Signer)
        for number, wanted in ((0, url_of(both, 1)), (1, "")):
            request = json_call(key, url_of(both, number) + "/", "ListQueues")  # type: ignore[arg-type]  # as above
            replies = [await asyncio.to_thread(send, request) for _ in range(2)]
            assert [(one.status, one.headers.get("tenantq-shard", "")) for one in replies] == [(200, wanted)] * 2
