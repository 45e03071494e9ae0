"""Amazon SQS through every address, for tenants of every shard: signed requests are routed by the ID of their key."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tests.contract.sqs.refusals import code
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


def _receive(client: Any, url: str, got: list[dict[str, Any]]) -> None:
    got.append(client.receive_message(QueueUrl=url, WaitTimeSeconds=20))


class _Key:
    def __init__(self, made: dict[str, str]) -> None:
        self.key_id, self.secret = made["key_id"], made["secret"]
