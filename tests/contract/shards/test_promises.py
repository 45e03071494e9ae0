"""The promises to a tenant hold through every address of a server with several shards."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import httpx

from tenantq.gates.authenticate import REMOTE_TRUST_MS
from tests.acceptance.command import ADMIN_TOKEN
from tests.contract.shards.sharded import until

if TYPE_CHECKING:
    from tests.contract.shards.sharded import Sharded


def _by(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_46_quota_is_exact_with_64_callers_at_all_addresses(three: Sharded) -> None:
    """Exactly as many messages are added as the quota allows."""
    tenant = three.tenant_on(1, quotas={"backlog": 100})
    token = three.key_of(tenant, "producer")
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(headers=_by(token), limits=limits, timeout=60) as client:

        async def adds(caller: int) -> list[int]:
            url = three.urls[caller % len(three.urls)]
            body = {"messages": [{"body": "x"}]}
            return [(await client.post(f"{url}/v1/queues/mail/messages", json=body)).status_code for _ in range(4)]

        statuses = [status for mine in await asyncio.gather(*map(adds, range(64))) for status in mine]
    assert (statuses.count(200), statuses.count(429)) == (100, 156)
    assert three.get(f"/v1/tenants/{tenant}/queues/mail")["ready"] == 100


def test_38_another_tenants_credential_sees_nothing_through_any_address(three: Sharded) -> None:
    """A valid ID and receipt look unknown, and the attempt is in the owner's audit trail."""
    tenants = [three.tenant_on(shard) for shard in range(3)]
    keys = [three.key_of(tenant) for tenant in tenants]
    for owner, tenant in enumerate(tenants):
        path = f"/v1/tenants/{tenant}/queues/mail"
        id = three.ask("POST", f"{path}/messages", json={"messages": [{"body": "secret"}]}).json()["messages"][0]["id"]
        receipt = three.ask("POST", f"{path}/poll", json={"lease_ms": 60_000}).json()["messages"][0]["receipt"]
        stranger = keys[(owner + 1) % 3]
        for url in three.urls:
            for method, rest, body in (
                ("GET", f"/messages/{id}", None),
                ("POST", "/ack", {"receipts": [receipt]}),
                ("POST", "/poll", {}),
            ):
                wrong = three.ask(method, path + rest, url=url, token=stranger, json=body)
                assert (wrong.status_code, wrong.json()["code"]) == (403, "forbidden")
                nowhere = three.ask(
                    method, f"/v1/tenants/no-such-tenant/queues/mail{rest}", url=url, token=stranger, json=body
                )
                assert (nowhere.status_code, nowhere.json()["detail"]) == (403, wrong.json()["detail"])
            own = three.ask("GET", f"/v1/queues/mail/messages/{id}", url=url, token=stranger)
            assert own.status_code == 404
        denied = three.get(f"/v1/tenants/{tenant}/audit", params={"result": "DENIED"})["rows"]
        assert sum(row["count"] for row in denied) >= 4 * 3


def test_revoked_key_is_refused_within_a_second_at_every_address(three: Sharded) -> None:
    """Covers a tenant's key in its own and another tenant, and a platform key."""
    here, there = three.tenant_on(1), three.tenant_on(2)
    made = three.ask("POST", f"/v1/tenants/{here}/keys", json={"name": "worker", "role": "consumer"}).json()
    three.ask("PUT", f"/v1/tenants/{there}/grants/key:{made['key_id']}", json={"role": "consumer"})
    platform = three.ask("POST", "/v1/platform/keys", json={"name": "second", "role": "platform-admin"}).json()

    def statuses() -> set[int]:
        return {
            three.ask("POST", path, url=url, token=token, json={}).status_code
            for url in three.urls
            for path, token in (
                ("/v1/queues/mail/poll", made["token"]),
                (f"/v1/tenants/{there}/queues/mail/poll", made["token"]),
                (f"/v1/tenants/{there}/queues/mail/poll", platform["token"]),
            )
        }

    for tenant in (here, there):
        three.ask("PUT", f"/v1/tenants/{tenant}/queues/mail", json={})
    assert statuses() == {200}
    assert three.ask("DELETE", f"/v1/tenants/{here}/keys/{made['key_id']}").status_code == 204
    assert three.ask("DELETE", f"/v1/platform/keys/{platform['key_id']}").status_code == 204
    assert REMOTE_TRUST_MS <= 500  # no cached answer is used for longer
    until(lambda: statuses() == {401})


def test_contained_key_is_refused_at_every_address_until_released(three: Sharded) -> None:
    """The shard of its tenant reacts to an alert of another shard."""
    here, there = three.tenant_on(1), three.tenant_on(2)
    made = three.ask("POST", f"/v1/tenants/{here}/keys", json={"name": "worker", "role": "consumer"}).json()
    three.ask("PUT", f"/v1/tenants/{there}/grants/key:{made['key_id']}", json={"role": "consumer"})
    for tenant in (here, there):
        three.ask("PUT", f"/v1/tenants/{tenant}/queues/mail", json={})

    def codes() -> set[str]:
        answers = [
            three.ask("POST", path, url=url, token=made["token"], json={})
            for url in three.urls
            for path in ("/v1/queues/mail/poll", f"/v1/tenants/{there}/queues/mail/poll")
        ]
        return {"ok" if answer.status_code == 200 else answer.json()["code"] for answer in answers}

    for network in range(5):
        with httpx.Client(transport=httpx.HTTPTransport(local_address=f"127.0.{network}.1"), timeout=30) as client:
            headers = {"Authorization": f"Bearer {made['token']}"}
            client.post(f"{three.url}/v1/tenants/{there}/queues/mail/poll", json={}, headers=headers)
    until(lambda: codes() == {"key_suspended"})
    [found] = [one for one in three.get("/v1/containments")["containments"] if one["tenant"] == here]
    assert (found["principal"], found["alert"]) == (f"key:{made['key_id']}", "new_places")
    assert three.ask("DELETE", f"/v1/containments/{found['id']}").status_code == 200
    until(lambda: codes() == {"ok"})


def _leased(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def test_fleet_is_served_from_all_shards(three: Sharded) -> None:
    """A worker granted in tenants of other shards gets everything once, and can ack at any address."""
    tenants = [three.tenant_on(shard) for shard in range(3)]
    made = three.ask("POST", f"/v1/tenants/{tenants[0]}/keys", json={"name": "fleet", "role": "consumer"}).json()
    for tenant in tenants:
        three.ask("PUT", f"/v1/tenants/{tenant}/grants/key:{made['key_id']}", json={"role": "consumer"})
        body = {"messages": [{"body": f"{tenant} {number}"} for number in range(10)]}
        three.ask("POST", f"/v1/tenants/{tenant}/queues/fleet/messages", json=body)
    got: list[str] = []
    for turn in range(40):
        url = three.urls[turn % 4]
        for one in _leased(
            three.ask("POST", "/v1/poll", url=url, token=made["token"], json={"queue": "fleet", "max": 3})
        ):
            got.append(one["body"])
            path = f"/v1/tenants/{one['tenant']}/queues/fleet/ack"
            acked = three.ask(
                "POST", path, url=three.urls[(turn + 1) % 4], token=made["token"], json={"receipts": [one["receipt"]]}
            )
            assert acked.json()["results"][0]["ok"]
    assert sorted(got) == sorted(f"{tenant} {number}" for tenant in tenants for number in range(10))


async def test_waiting_fleet_poll_gets_the_first_messages_only(three: Sharded) -> None:
    """When messages arrive on two shards at once, it gets no more than asked for, and the rest is released."""
    tenants = [three.tenant_on(1), three.tenant_on(2)]
    async with httpx.AsyncClient(headers=_by(ADMIN_TOKEN), timeout=30) as client:
        for _ in range(5):
            poll = {"queue": "race", "tenants": tenants, "max": 1, "wait_ms": 20_000}
            waiting = asyncio.ensure_future(client.post(f"{three.url}/v1/poll", json=poll))
            await asyncio.sleep(0.05)  # another process starts to wait
            body = {"messages": [{"body": "x"}]}
            paths = [f"/v1/tenants/{tenant}/queues/race/messages" for tenant in tenants]
            await asyncio.gather(*(client.post(three.urls[1] + path, json=body) for path in paths))
            (one,) = _leased(await waiting)
            left = {"queue": "race", "tenants": tenants, "max": 5, "wait_ms": 5_000}
            (other,) = _leased(await client.post(f"{three.url}/v1/poll", json=left))
            assert {one["tenant"], other["tenant"]} == set(tenants)
            assert (one["attempt"], other["attempt"]) == (1, 1)
            for done in (one, other):
                path = f"/v1/tenants/{done['tenant']}/queues/race/ack"
                await client.post(three.url + path, json={"receipts": [done["receipt"]]})


def test_fleet_without_any_tenant_is_refused_once(three: Sharded) -> None:
    """The refusal is journaled where the caller arrived, not by every shard."""
    tenant = three.tenant_on(1)
    token = three.key_of(tenant, "producer")
    refused = three.ask("POST", "/v1/poll", url=three.shards[2], token=token, json={"queue": "mail"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    named = three.ask("POST", "/v1/poll", token=token, json={"queue": "mail", "tenants": [three.tenant_on(0)]})
    assert (named.status_code, named.json()["code"]) == (403, "forbidden")


async def test_concurrent_creation_at_every_address_creates_one_tenant(three: Sharded) -> None:
    """One caller creates it, and all find the same one at once."""
    async with httpx.AsyncClient(headers=_by(ADMIN_TOKEN), timeout=30) as client:
        for name in ("raced-a", "raced-b", "raced-c", "raced-d"):
            made = await asyncio.gather(
                *(client.put(f"{three.urls[n % 4]}/v1/tenants/{name}", json={}) for n in range(16))
            )
            assert sorted(one.status_code for one in made) == [200] * 15 + [201]
            assert len({one.json()["id"] for one in made}) == 1
            found = [(await client.get(f"{url}/v1/tenants/{name}")).status_code for url in three.urls]
            assert found == [200] * 4
            body = {"confirm": name, "reason": "because a test says so"}
            gone = await client.request("DELETE", f"{three.urls[2]}/v1/tenants/{name}", json=body)
            assert gone.status_code == 200
            assert [(await client.get(f"{url}/v1/tenants/{name}")).status_code for url in three.urls] == [404] * 4


def test_large_and_compressed_bodies_are_forwarded(three: Sharded) -> None:
    """Covers megabytes and gzip in both directions."""
    tenant = three.tenant_on(2)
    texts = [f"{number} {'ü' * 100_000}" for number in range(20)]
    path = f"/v1/tenants/{tenant}/queues/large"
    packed = gzip.compress(json.dumps({"messages": [{"body": text} for text in texts]}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json", "Accept-Encoding": "gzip"}
    with three.client(1) as client:
        assert client.post(f"{path}/messages", content=packed, headers=headers).status_code == 200
        got = client.post(f"{path}/poll", json={"max": 20}, headers={"Accept-Encoding": "gzip"})
    assert got.headers["content-encoding"] == "gzip"
    assert [one["body"] for one in got.json()["messages"]] == texts
