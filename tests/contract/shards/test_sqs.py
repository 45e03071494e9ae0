"""Amazon SQS through every address, for tenants of every shard: each shard checks signatures by any key."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tests.acceptance.command import ADMIN_TOKEN
from tests.contract.shards.sharded import until
from tests.contract.sqs.refusals import code, refusal, refused_within_a_second
from tests.contract.sqs.signed import fetch, presign
from tests.contract.sqs.sqs_server import client_of

if TYPE_CHECKING:
    from tests.contract.shards.sharded import Sharded


def test_signed_request_is_forwarded_to_its_tenants_shard(three: Sharded) -> None:
    """Any shard can be called; presigned URLs and waiting receives work too."""
    for shard in range(3):
        tenant = three.tenant_on(shard)
        made = three.ask("POST", f"/v1/tenants/{tenant}/keys", json={"name": "k", "role": "tenant-admin"}).json()
        clients = [client_of(url, made["key_id"], made["secret"]) for url in three.urls]
        url = clients[0].create_queue(QueueName="work")["QueueUrl"]
        got: list[dict[str, Any]] = []
        waiting = threading.Thread(target=_receive, args=(clients[1], url, got))
        waiting.start()
        clients[2].send_message(QueueUrl=url, MessageBody="m")
        waiting.join(30)
        (message,) = got[0]["Messages"]
        clients[3].delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        forged = client_of(three.urls[1], made["key_id"], made["secret"][::-1])
        assert code(forged.list_queues) == "SignatureDoesNotMatch"
        for address, client in zip(three.urls, clients, strict=True):
            assert client.list_queues()["QueueUrls"] == [f"{address}/{url.split('/', 3)[3]}"]
            signed = presign(_Key(made), "GET", f"{address}/?Action=ListQueues")  # type: ignore[arg-type]  # as much of one as signs
            assert b"/work</QueueUrl>" in fetch("GET", signed).body


def test_key_signs_at_every_address_while_its_tenant_moves(three: Sharded) -> None:
    """No call fails, and a revocation applies within a second."""
    tenant = three.tenant_on(1)
    made = three.ask("POST", f"/v1/tenants/{tenant}/keys", json={"name": "k", "role": "tenant-admin"}).json()
    clients = [client_of(url, made["key_id"], made["secret"]) for url in three.urls]
    clients[0].create_queue(QueueName="work")
    done, failures = threading.Event(), list[BaseException]()
    callers = [threading.Thread(target=_list, args=(client, done, failures)) for client in clients]
    for caller in callers:
        caller.start()
    try:
        for target in (2, 0, 1):
            moved = three.ask("PUT", f"/v1/cluster/tenants/{tenant}", json={"shard": target})
            assert moved.status_code == 200, moved.text
            until(lambda: not three.get(f"/v1/cluster/tenants/{tenant}")["moves"])
            assert three.get(f"/v1/cluster/tenants/{tenant}")["shard"] == target
    finally:
        done.set()
        for caller in callers:
            caller.join(30)
    assert not failures
    assert three.ask("DELETE", f"/v1/tenants/{tenant}/keys/{made['key_id']}").status_code < 300
    revoked_at = time.monotonic()
    for client in clients:
        refused_within_a_second(client, revoked_at)


def _list(client: Any, done: threading.Event, failures: list[BaseException]) -> None:
    while not done.is_set():
        try:
            assert len(client.list_queues()["QueueUrls"]) == 1
        except Exception as error:  # noqa: BLE001  # the test shows it
            failures.append(error)
            return


def test_platform_keys_sign_at_every_address(three: Sharded) -> None:
    """The first shard stores them. One whose secret was chosen by hand gets the same error everywhere."""
    made = three.ask("POST", "/v1/platform/keys", json={"name": "k", "role": "platform-admin"}).json()
    try:
        listed = three.get("/v1/platform/keys")["keys"]
        others = {one["key_id"] for one in listed if one["revoked_at"] is None} - {made["key_id"]}
        assert others
        for url in three.urls:
            client_of(url, made["key_id"], made["secret"]).list_queues()
            for key_id in others:
                refused = refusal(client_of(url, key_id, ADMIN_TOKEN).list_queues)
                assert refused[0] == "InvalidClientTokenId"
                assert "chosen by hand" in refused[1]
    finally:
        three.ask("DELETE", f"/v1/platform/keys/{made['key_id']}")


def _receive(client: Any, url: str, got: list[dict[str, Any]]) -> None:
    got.append(client.receive_message(QueueUrl=url, WaitTimeSeconds=20))


class _Key:
    def __init__(self, made: dict[str, str]) -> None:
        self.key_id, self.secret = made["key_id"], made["secret"]
