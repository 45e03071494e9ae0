"""End to end, from third-party clients over a real socket to the real service and store."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tenantq.gates.certificate import CertificateGrant, CertificateSettings
from tenantq.http import TlsFiles
from tenantq.http.routes import ROUTES
from tests.contract.http.certificates import Authority
from tests.contract.http.raw_client import PATIENCE_S, RawClient, post
from tests.contract.http.real_server import ADMIN, real_server

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.server import Server

Curl = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Return an httpx client for the administrator."""
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=PATIENCE_S
    ) as http:
        yield http


@pytest.fixture
async def curl(server: Server) -> Curl:
    """Return a function that runs curl as the administrator and returns status and JSON."""

    async def run(path: str, *options: str) -> tuple[int, Any]:
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {ADMIN}",
            "-H", "Content-Type: application/json", *options, f"http://127.0.0.1:{server.port}{path}",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0
        body, _, status = out.rpartition(b"\n")
        return int(status), json.loads(body) if body else None

    return run


async def test_first_session_with_curl(curl: Curl) -> None:
    """It creates a tenant, adds, polls, acks and reads."""
    assert (await curl("/v1/tenants/acme", "-X", "PUT", "-d", "{}"))[0] == 201
    status, added = await curl("/v1/tenants/acme/queues/mails/messages", "-d", '{"messages":[{"body":"hello"}]}')
    assert status == 200
    status, polled = await curl("/v1/tenants/acme/queues/mails/poll", "-d", '{"max":10}')
    (message,) = polled["messages"]
    assert (status, message["body"], message["id"]) == (200, "hello", added["messages"][0]["id"])
    receipts = json.dumps({"receipts": [message["receipt"]]})
    assert await curl("/v1/tenants/acme/queues/mails/ack", "-d", receipts) == (
        200, {"results": [{"receipt": message["receipt"], "ok": True}]},
    )  # fmt: skip
    assert (await curl("/v1/tenants/acme/queues/mails"))[1]["ready"] == 0


async def test_curl_with_large_chunked_and_compressed_bodies(curl: Curl, tmp_path: Path) -> None:
    """Curl waits for 100 Continue, sends chunks, and inflates replies."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"messages": [{"body": "x" * 90_000} for _ in range(100)]}))
    upload = ("--data-binary", f"@{body}")
    assert (await curl("/v1/queues/big/messages", *upload))[0] == 200
    assert (await curl("/v1/queues/big/messages", *upload, "-H", "Expect: 100-continue"))[0] == 200
    assert (await curl("/v1/queues/big/messages", *upload, "-H", "Transfer-Encoding: chunked"))[0] == 200
    status, polled = await curl("/v1/queues/big/poll", "--compressed", "-d", '{"max":40}')
    assert (status, len(polled["messages"])) == (200, 40)
    assert (await curl("/v1/queues/big/poll", "--http1.0", "-d", "{}"))[0] == 200
    assert (await curl("/v1/queues/big", "--http2"))[0] == 200  # the offered upgrade is ignored
    assert (await curl("/v1/queues/big/poll", "-H", "Content-Type: text/plain", "-d", "{}"))[0] in {200, 400, 415}


async def test_every_route_with_httpx(http: httpx.AsyncClient, store_kind: str) -> None:
    """Each replies as the table says, and none is left out."""
    visited: set[tuple[str, str]] = set()

    async def call(method: str, path: str, status: int = 200, body: Any = None, query: str = "", **names: str) -> Any:
        visited.add((method, path))
        url = path.format(tenant="acme", queue=names.pop("queue", "work"), **names) + query
        reply = await http.request(method, url, **({} if body is None else {"json": body}))
        assert reply.status_code == status, (method, url, reply.text)
        assert reply.headers["x-request-id"]
        return reply.json() if reply.content and "json" in reply.headers["content-type"] else reply.text

    tenant, destroy = "/v1/tenants/{tenant}", {"reason": "no longer needed"}
    assert (await call("PUT", tenant, 201, {"weight": 2, "quotas": {"backlog": 1_000}}))["config"]["weight"] == 2
    assert (await call("PUT", tenant, 200, {}))["config"]["quotas"]["backlog"] == 1_000
    assert (await call("GET", tenant))["status"] == "active"
    assert (await call("GET", "/v1/tenant"))["name"] == "default"
    assert [one["name"] for one in (await call("GET", "/v1/tenants", query="?limit=1"))["tenants"]] == ["acme"]
    await call("PUT", tenant + "/queues/{queue}", 201, {}, queue="other")
    why = {"reason": "it is being moved", "mode": "freeze"}
    suspended = await call("PUT", tenant + "/queues/{queue}/suspension", body=why, queue="other")
    assert suspended["suspension"]["mode"] == "freeze"
    assert (await call("DELETE", tenant + "/queues/{queue}/suspension", queue="other"))["suspension"] is None
    await call("DELETE", tenant + "/queues/{queue}", 202, {**destroy, "confirm": "other"}, queue="other")
    for base in ("/v1/tenants/{tenant}/queues", "/v1/queues"):
        queue, message = base + "/{queue}", base + "/{queue}/messages/{id}"
        assert (await call("PUT", queue, 201, {"lease_ms": 5_000, "max_attempts": 1}))["config"]["lease_ms"] == 5_000
        assert (await call("PUT", queue, 200, {}))["config"]["lease_ms"] == 5_000
        assert (await call("GET", base))["queues"][0]["name"] == "work"
        bodies = [{"body": str(i), "attributes": {"n": str(i)}} for i in range(5)]
        added = (await call("POST", queue + "/messages", body={"messages": bodies}))["messages"]
        assert (await call("GET", queue))["ready"] == 5
        assert len((await call("POST", queue + "/peek", body={"limit": 2}))["messages"]) == 2
        facts = await call("GET", message, id=added[0]["id"])
        assert (facts["body"], facts["state"], facts["attributes"]) == ("0", "ready", {"n": "0"})
        assert (await call("POST", queue + "/pause"))["status"] == "paused"
        assert (await call("POST", queue + "/resume"))["status"] == "active"
        polled = (await call("POST", queue + "/poll", body={"max": 4, "wait_ms": 100}))["messages"]
        receipts = [[one["receipt"]] for one in polled]
        extended = await call("POST", queue + "/extend", body={"receipts": receipts[0], "lease_ms": 60_000})
        assert extended["results"][0]["lease_until"] > polled[0]["lease_until"]
        ack = {"receipts": receipts[0], "results": [{"value": "done"}]}
        assert (await call("POST", queue + "/ack", body=ack))["results"][0]["ok"]
        lost = (await call("POST", queue + "/ack", body=ack))["results"][0]
        assert (lost["ok"], lost["error"]["code"]) == (False, "lease_lost")
        found = await call("GET", message + "/result", id=polled[0]["id"], query="?wait_ms=10")
        assert found == {"status": "completed", "value": "done"}
        rows = (await call("GET", message + "/trace", id=polled[0]["id"]))["rows"]
        assert [row["op"] for row in rows][:2] == ["add", "poll"]
        assert (await call("POST", queue + "/release", body={"receipts": receipts[1]}))["results"][0]["ok"]
        assert (await call("POST", queue + "/nack", body={"receipts": receipts[2], "reason": "boom"}))["results"][0][
            "ok"
        ]
        gone = {"id": added[0]["id"], "body": "x", "added_at": 1, "visible_at": 1}
        part = {"export": "ab" * 16, "part": 1, "messages": [gone]}
        assert (await call("GET", queue + "/digest", query="?export=" + "ab" * 16))["part"] == 0
        imported = await call("POST", queue + "/import", body=part)
        assert (imported["messages"], imported["duplicate"]) == (1, False)
        assert (await call("POST", queue + "/import", body=part))["duplicate"]
        assert (await call("POST", queue + "/remove", body={"ids": [polled[3]["id"]]}))["results"][0]["ok"]
        snapshot = (await call("POST", queue + "/snapshots", 201))["snapshot"]
        assert "messages" in await call("GET", queue + "/snapshots/{snapshot}", snapshot=snapshot)
        await call("DELETE", queue + "/snapshots/{snapshot}", 204, snapshot=snapshot)
        task = await call("POST", queue + "/redrive", body={"dry_run": True})
        assert (await call("GET", queue + "/redrive/{task}", task=task["task"]))["task"] == task["task"]
        assert (await call("DELETE", queue + "/redrive/{task}", task=task["task"]))["task"] == task["task"]
        await call("POST", queue + "/purge", 422, {"confirm": "other", **destroy})
        assert (await call("POST", queue + "/purge", body={"confirm": "work", **destroy}))["purged"] > 0
        await call("DELETE", queue, 202, {"confirm": "work", "force": True, **destroy})
    assert (await call("POST", "/v1/poll", body={"queue": "work"})) == {"messages": []}
    key = await call("POST", tenant + "/keys", 201, {"name": "worker", "role": "consumer", "queues": ["work*"]})
    assert set(key) == {"key_id", "secret", "token"}
    assert (await call("GET", tenant + "/keys"))["keys"][0]["key_id"] == key["key_id"]
    await call("DELETE", tenant + "/keys/{key_id}", 204, key_id=key["key_id"])
    made = await call("POST", "/v1/platform/keys", 201, {"name": "scraper", "actions": ["metrics"]})
    assert made["key_id"] in {one["key_id"] for one in (await call("GET", "/v1/platform/keys"))["keys"]}
    await call("DELETE", "/v1/platform/keys/{key_id}", 204, key_id=made["key_id"])
    principal = "jwt:some%20body%2F1"
    granted = await call("PUT", tenant + "/grants/{principal}", 200, {"role": "viewer"}, principal=principal)
    assert granted["principal"] == "jwt:some body/1"
    assert (await call("GET", tenant + "/grants"))["grants"] == [granted]
    assert (await call("POST", tenant + "/grants/{principal}/review", 200, principal=principal))["reviewed_at"]
    assert (await call("GET", tenant + "/compliance"))["tenant"]
    assert (await call("GET", "/v1/compliance"))["status"] == "fail"
    await call("DELETE", tenant + "/grants/{principal}", 204, principal=principal)
    await call("POST", tenant + "/revocations", 204, {"token_id": "abc", "until": 4_000_000_000_000})
    assert (await call("GET", tenant + "/usage"))["quotas"]["backlog"]["limit"] == 1_000
    assert (await call("GET", tenant + "/residency"))["allowed"]
    audit = await call("GET", tenant + "/audit", query="?action=create_queue&limit=1")
    assert audit["rows"] == [] or audit["rows"][0]["op"] == "create_queue"
    assert (await call("GET", "/v1/audit", query="?order=newest&limit=1"))["rows"][0]["tenant"] in {"acme", ""}
    await call("PUT", tenant, 200, {"encryption": {"enabled": True}})
    for act in ("rotate", "rewrap"):
        assert (await call("POST", f"{tenant}/encryption/{act}"))["enabled"]
    assert (await call("GET", tenant + "/encryption"))["enabled"]
    assert (await call("POST", tenant + "/suspend", body={"reason": "unpaid"}))["status"] == "suspended"
    assert (await call("POST", tenant + "/resume"))["status"] == "active"
    assert (await call("PUT", tenant + "/hold", body=destroy))["hold"]["reason"] == destroy["reason"]
    assert (await call("DELETE", tenant, 409, {"confirm": "acme", **destroy}))["code"] == "legal_hold"
    assert (await call("DELETE", tenant + "/hold", body=destroy))["hold"] is None
    assert "manifest.json" in await call("GET", tenant + "/export")
    assert (await call("GET", tenant + "/alerts"))["alerts"] == []
    assert [one["queue"] for one in (await call("GET", tenant + "/workers"))["workers"]] == ["work"]
    assert [one["queue"] for one in (await call("GET", "/v1/workers"))["workers"]] == ["work"]
    assert 'tenant="acme"' in await call("GET", tenant + "/metrics")
    for owner in ("/v1/templates", tenant + "/templates"):
        mail = {"queues": {"mail": {"max_attempts": 3}}, "shared_with": ["*"]}
        assert (await call("PUT", owner + "/{template}", 201, mail, template="mail"))["queues"] == mail["queues"]
        assert (await call("PUT", owner + "/{template}", 200, mail, template="mail"))["shared_with"] == ["*"]
    assert len((await call("GET", "/v1/templates"))["templates"]) == 2
    assert len((await call("GET", tenant + "/templates"))["templates"]) == 2
    applied = await call("POST", tenant + "/templates/{template}/apply", 200, {"owner": ""}, template="mail")
    assert [one["outcome"] for one in applied["results"]] == ["created"]
    await call("DELETE", tenant + "/templates/{template}", 204, template="mail")
    await call("DELETE", "/v1/templates/{template}", 204, template="mail")
    certificate = await call("DELETE", tenant, 200, {"confirm": "acme", **destroy})
    assert (await call("GET", "/v1/erasures"))["erasures"] == [certificate]
    assert (await call("GET", "/v1/erasures/{id}", id=certificate["id"])) == certificate
    if store_kind == "rocksdb":
        made = await call("POST", "/v1/backups", 201, {"name": "one"})
        assert (await call("GET", "/v1/backups"))["backups"] == [made]
    else:  # Redis has its own backup tools
        await call("POST", "/v1/backups", 422, {"name": "one"})
        assert (await call("GET", "/v1/backups"))["backups"] == []
    await call("POST", "/v1/backups/{backup}/test", 404, backup="none")
    assert (await call("GET", "/v1/topology"))["shards"]
    assert (await call("GET", "/v1/whoami"))["tenant"] is None
    assert (await call("GET", "/v1/alerts")) == {"alerts": [], "targets": []}
    assert (await call("POST", "/v1/alerts/test", 404, {"target": "ops"}))["code"] == "not_found"
    asked = {"tenant": "newcomer", "contact": "ann"}
    signup = await call("POST", "/v1/signups", 202, asked)
    assert [one["id"] for one in (await call("GET", "/v1/signups"))["signups"]] == [signup["id"]]
    assert (await call("POST", "/v1/signups/{id}/approve", 201, {}, id=signup["id"]))["token"].startswith("tq_")
    signup = await call("POST", "/v1/signups", 202, asked)
    assert (await call("POST", "/v1/signups/{id}/approve", 409, {}, id=signup["id"]))["code"] == "conflict"
    rejected = await call("POST", "/v1/signups/{id}/reject", 200, {"reason": "twice"}, id=signup["id"])
    assert (rejected["tenant"], rejected["remote"]) == ("newcomer", "127.0.0.1")
    assert (await call("GET", "/v1/containments")) == {"containments": []}
    assert (await call("DELETE", "/v1/containments/{id}", 404, id="1-1-0"))["code"] == "not_found"
    assert [one["name"] for one in (await call("GET", "/v1/plans"))["plans"]] == ["standard", "unlimited"]
    assert (await call("GET", "/v1/cluster", 409))["code"] == "conflict"
    assert (await call("POST", "/v1/cluster/members/{id}/drain", 409, {}, id="m-1"))["code"] == "conflict"
    assert (await call("GET", "/v1/cluster/tenants/{id}", 409, id="default"))["code"] == "conflict"
    assert (await call("PUT", "/v1/cluster/tenants/{id}", 409, {"shard": 1}, id="default"))["code"] == "conflict"
    assert (await call("PUT", "/v1/cluster/shards", 409, {"shards": 9}))["code"] == "conflict"
    assert (await call("GET", "/readyz"))["status"] == "ready"
    assert (await call("GET", "/healthz")) == {"status": "ok"}
    assert "tenantq_http_connections 1" in await call("GET", "/metrics")
    assert (await call("GET", "/openapi.json"))["openapi"] == "3.1.0"
    assert "<title>tenantq" in await call("GET", "/docs")
    assert visited == {(route.method, route.path) for route in ROUTES}


async def test_credentials_are_required(server: Server, http: httpx.AsyncClient) -> None:
    """The table lists the exceptions, and the error says how to authenticate."""
    async with httpx.AsyncClient(base_url=http.base_url, timeout=PATIENCE_S) as stranger:
        for route in ROUTES:
            url = route.path.format(
                tenant="default",
                queue="q",
                id="0192f0c1-2f6a-7cc3-98c4-dc0c0c07398f",
                task="t",
                snapshot="s",
                template="mail",
                key_id="k",
                backup="b",
                principal="p",
            )
            body = {"name": "n", "queue": "q", "receipts": ["r"], "lease_ms": 1, "ids": ["i"], "until": 1}
            body |= {"role": "platform-admin" if "platform" in url else "viewer", "token_id": "t"}
            body |= {"export": "ab" * 16, "part": 1, "tenant": "newcomer", "contact": "ann"}
            fields = getattr(route.request, "__struct_fields__", ())
            body = {name: value for name, value in body.items() if name in fields}
            if "messages" in fields and "export" not in fields:
                body["messages"] = [{"body": "x"}]
            reply = await stranger.request(route.method, url, json=body)
            assert reply.status_code == (401 if route.secured else route.statuses[0]), (route.method, url, reply.text)
            if route.secured:
                assert (reply.headers["www-authenticate"], reply.json()["code"]) == ("Bearer", "unauthenticated")


@pytest.mark.parametrize("name", ["caller", "self", "name", "tenant", "weight ", "", "__class__", "limits"])
async def test_unknown_settings_are_refused_by_name(http: httpx.AsyncClient, name: str) -> None:
    """Any unknown name is refused."""
    for path in ("/v1/queues/work", "/v1/tenants/acme"):
        reply = await http.put(path, json={name: 1})
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2Fb", "a%00b", "%ef%bc%a1", "A", "a", "-ab", "ab-", "x" * 33])
async def test_invalid_tenant_names_are_refused(http: httpx.AsyncClient, server: Server, name: str) -> None:
    """Names that would need normalization are invalid."""
    client = await RawClient.open(server.port)
    reply = await client.ask(
        post(f"/v1/tenants/{name}", "{}", f"Authorization: Bearer {ADMIN}").replace(b"POST", b"PUT", 1)
    )
    await client.close()
    assert (reply.status, reply.json()["code"]) == (422, "invalid")


async def test_any_bytes_round_trip(http: httpx.AsyncClient) -> None:
    """Covers text, base64, and bytes that only look like them."""
    bodies = [b"", b"\0", "h\u00e4\U0001f40b".encode(), bytes(range(256)), b"\xed\xa0\x80", b"aGk=", b"x" * 1_048_576]
    items = [{"body_base64": base64.b64encode(body).decode()} for body in bodies]
    assert (await http.post("/v1/queues/bytes/messages", json={"messages": items})).status_code == 200
    polled = (await http.post("/v1/queues/bytes/poll", json={"max": 10})).json()["messages"]
    back = [one["body"].encode() if "body" in one else base64.b64decode(one["body_base64"]) for one in polled]
    assert back == bodies


async def test_limits_and_quotas_over_http(http: httpx.AsyncClient) -> None:
    """Temporary refusals say when to retry, and a batch is accepted up to the limit."""
    await http.put("/v1/tenants/small", json={"quotas": {"backlog": 2}})
    url = "/v1/tenants/small/queues/q/messages"
    reply = await http.post(url, json={"messages": [{"body": "1"}, {"body": "2"}, {"body": "3"}]})
    errors = [one["error"] and one["error"]["code"] for one in reply.json()["messages"]]
    assert (reply.status_code, errors) == (200, [None, None, "quota_exceeded"])
    reply = await http.post(url, json={"messages": [{"body": "4"}]})
    assert (reply.status_code, reply.json()["code"]) == (429, "quota_exceeded")
    assert int(reply.headers["retry-after"]) >= 1
    assert (reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-remaining"]) == ("2", "0")


async def test_add_wakes_a_long_poll(http: httpx.AsyncClient) -> None:
    """If the client has left, the message goes to the next one."""
    await http.put("/v1/queues/work", json={})
    with contextlib.suppress(httpx.ReadTimeout):
        await http.post("/v1/queues/work/poll", json={"wait_ms": 60_000}, timeout=0.2)
    waiting = asyncio.ensure_future(http.post("/v1/queues/work/poll", json={"wait_ms": 20_000}))
    await asyncio.sleep(0.05)
    await http.post("/v1/queues/work/messages", json={"messages": [{"body": "now"}]})
    assert (await waiting).json()["messages"][0]["body"] == "now"


async def test_client_certificate_is_a_credential(tmp_path: Path) -> None:
    """It is mapped from the handshake to its tenant."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    own = authority.issue("worker", "worker.acme.example")
    tls = TlsFiles(certificate=str(certificate), key=str(key), client_ca=str(authority.path), verify="optional")
    names = {"DNS:worker.acme.example": CertificateGrant(tenant="acme", role="producer")}
    async with real_server(tmp_path / "data", tls=tls, certificates=CertificateSettings(names=names)) as server:
        url = f"https://localhost:{server.port}"
        trusting = ssl.create_default_context(cafile=str(authority.path))
        async with httpx.AsyncClient(base_url=url, verify=trusting, timeout=PATIENCE_S) as http:
            made = await http.put("/v1/tenants/acme", json={}, headers={"Authorization": f"Bearer {ADMIN}"})
            assert made.status_code == 201
            assert (await http.post("/v1/queues/q/messages", json={"messages": [{"body": "x"}]})).status_code == 401
        trusting.load_cert_chain(*own)
        async with httpx.AsyncClient(base_url=url, verify=trusting, timeout=PATIENCE_S) as http:
            assert (await http.post("/v1/queues/q/messages", json={"messages": [{"body": "x"}]})).status_code == 200
            assert (await http.get("/v1/queues/q")).json()["tenant"] == "acme"
            assert (await http.post("/v1/queues/q/poll", json={})).status_code == 403


async def test_70_closing_the_server_ends_long_polls(server: Server, http: httpx.AsyncClient) -> None:
    """They get an empty reply, not an error."""
    await http.put("/v1/queues/work", json={})
    waiting = asyncio.ensure_future(http.post("/v1/queues/work/poll", json={"wait_ms": 60_000}))
    await asyncio.sleep(0.05)
    await server.close()
    reply = await waiting
    assert (reply.status_code, reply.json(), reply.headers["connection"]) == (200, {"messages": []}, "close")
