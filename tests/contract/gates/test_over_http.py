"""Behaviours 38, 41, 42, 44 and 54 over a real server: HTTP applies the rules of the service and adds none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tenantq.errors import TenantqError
from tenantq.journal.export_settings import ExportSettings
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tests.administration import usage
from tests.contract.http.raw_client import RawClient, RawReply
from tests.shards import message, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

ADMIN = "a-token-of-the-platform-" + "0" * 16
REASON = "because a test says so"
NO_ID = "00000000-0000-7000-8000-000000000000"


class Site:
    """A server, and one connection to it."""

    def __init__(self, server: Server, client: RawClient, clock: ManualClock) -> None:
        self.server = server
        self.client = client
        self.clock = clock

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = ADMIN, headers: tuple[str, ...] = ()
    ) -> RawReply:
        """Send one request and read its reply."""
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Content-Length: {len(sent)}", *headers]
        if body is not None:
            lines.append("Content-Type: application/json")
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        return await self.client.ask("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)

    async def tenant(self, name: str, role: str = "tenant-admin", **settings: Any) -> str:
        """Create a tenant and return a token for a role in it."""
        reply = await self.ask("PUT", f"/v1/tenants/{name}", settings)
        assert reply.status in {200, 201}, reply.body
        return await self.key(name, role)

    async def key(self, name: str, role: str = "tenant-admin", **grant: Any) -> str:
        """Return a token for a role in a tenant."""
        reply = await self.ask("POST", f"/v1/tenants/{name}/keys", {"name": "k", "role": role, **grant})
        assert reply.status == 201, reply.body
        token: str = reply.json()["token"]
        return token

    async def wait_until_idle(self) -> None:
        """Wait until nothing is left to do at this clock time."""
        await wait_until_idle(self.server.shard)


@pytest.fixture
async def site(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Site]:
    """Serve on the manual clock."""
    settings = ServerSettings(
        data_dir=str(tmp_path / "data"), http="127.0.0.1:0", export=ExportSettings(enabled=False), grace_ms=0
    )
    server = Server(settings, admin_token=ADMIN, clock=clock)
    await server.start()
    client = await RawClient.open(server.port)
    yield Site(server, client, clock)
    await client.close()
    await server.close()


def code(reply: RawReply) -> tuple[int, str]:
    """Return the status and code of a problem."""
    return reply.status, reply.json()["code"]


# ---- 38 ----


async def test_38_exact_id_and_receipt_of_another_tenant_look_invented(site: Site) -> None:
    """On every route, through either path, status and text are the same, and the owner keeps its lease."""
    owner, thief = await site.tenant("acme"), await site.tenant("globex")
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "secret"}]}, token=owner)
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "mine"}]}, token=thief)
    held = (await site.ask("POST", "/v1/queues/work/poll", {}, token=owner)).json()["messages"][0]
    routes: list[tuple[str, str, Any]] = [
        ("GET", "/queues/work/messages/{id}", None),
        ("GET", "/queues/work/messages/{id}/result", None),
        ("GET", "/queues/work/messages/{id}/trace", None),
        ("POST", "/queues/work/remove", {"ids": ["{id}"]}),
        ("POST", "/queues/work/ack", {"receipts": ["{receipt}"]}),
        ("POST", "/queues/work/nack", {"receipts": ["{receipt}"], "delay_ms": 0}),
        ("POST", "/queues/work/release", {"receipts": ["{receipt}"]}),
        ("POST", "/queues/work/extend", {"receipts": ["{receipt}"], "lease_ms": 5_000}),
    ]
    invented = {"{id}": NO_ID, "{receipt}": "0" * 47 + "1"}
    true = {"{id}": held["id"], "{receipt}": held["receipt"]}
    for root, other_root in (("/v1", "/v1"), ("/v1/tenants/acme", "/v1/tenants/no-such")):
        for method, path, body in routes:
            replies = []
            for words, where in ((true, root), (invented, other_root)):
                text = json.dumps(body)
                for word, value in words.items():
                    path_now = (where + path).replace("{id}", words["{id}"])
                    text = text.replace(word, value)
                reply = await site.ask(method, path_now, None if body is None else json.loads(text), token=thief)
                shown = reply.body.decode()
                for value in (*words.values(), "acme", "no-such", reply.headers["x-request-id"]):
                    shown = shown.replace(value, "?")
                replies.append((reply.status, shown))
            assert replies[0] == replies[1], path
            status, shown = replies[0]
            if root == "/v1":
                assert status in {200, 404}, path
                assert '"ok":true' not in shown
            else:
                assert status == 403, path
    await site.wait_until_idle()
    audit = (await site.ask("GET", "/v1/tenants/acme/audit?result=DENIED", token=owner)).json()["rows"]
    assert len(audit) == len(routes)
    assert {row["outcome"] for row in audit} == {"denied"}
    mine = (await site.ask("GET", "/v1/tenants/globex/audit?result=ERROR", token=thief)).json()["rows"]
    assert len(mine) >= len(routes)
    acked = (await site.ask("POST", "/v1/queues/work/ack", {"receipts": [held["receipt"]]}, token=owner)).json()
    assert acked["results"][0]["ok"]


@pytest.mark.parametrize(
    "name", ["ACME", "%61cme", "acme%00", "acme%2F", "acme/", "..%2Facme", "\u0430%63me", "acme%20", ""]
)
async def test_38_no_spelling_in_the_path_reaches_another_tenant(site: Site, name: str) -> None:
    """Only the exact name does, escaped or not, and only with a grant."""
    owner, thief = await site.tenant("acme"), await site.tenant("globex")
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "secret"}]}, token=owner)
    path = f"/v1/tenants/{quote(name, safe='%/.')}/queues/work/peek"
    reply = await site.ask("POST", path, {}, token=thief)
    assert reply.status in {400, 403, 404, 405, 422}
    assert b"secret" not in reply.body
    reply = await site.ask("POST", path, {}, token=owner)
    assert (reply.status == 200) == (name == "%61cme"), name


# ---- 41 ----


async def test_41_tenant_in_body_header_or_query_has_no_effect(site: Site) -> None:
    """It is ignored or refused; only the credential counts."""
    owner, thief = await site.tenant("acme"), await site.tenant("globex")
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "secret"}]}, token=owner)
    headers = (
        "X-Tenant: acme",
        "X-Tenant-Id: acme",
        "Tenant: acme",
        "X-Forwarded-Tenant: acme",
        "Host-Tenant: acme",
        "Cookie: tenant=acme",
    )
    before = usage(site.server.shard, "acme"), site.server.shard.reads.stats("acme", "work")
    for given in (
        {"headers": headers},
        {"path": "/v1/queues/work/messages?tenant=acme"},
        {"path": "/v1/queues/work/messages?tenant=acme&tenant_id=2"},
        {"body": {"tenant": "acme", "messages": [{"body": "x"}]}},
        {"body": {"messages": [{"body": "x", "tenant": "acme"}]}},
        {"body": b'{"messages":[{"body":"x"}],"messages":[{"body":"y"}],"tenant":"acme"}'},
    ):
        reply = await site.ask(
            "POST",
            str(given.get("path", "/v1/queues/work/messages")),
            given.get("body", {"messages": [{"body": "mine"}]}),
            token=thief,
            headers=given.get("headers", ()),  # type: ignore[arg-type]  # a tuple of texts
        )
        assert reply.status in {200, 400, 422}, given
    polled = await site.ask("POST", "/v1/queues/work/poll", {"max": 10}, token=thief, headers=headers)
    assert {one["tenant"] for one in polled.json()["messages"]} == {"globex"}
    assert (usage(site.server.shard, "acme"), site.server.shard.reads.stats("acme", "work")) == before
    for named in (["acme"], ["globex", "acme"]):
        reply = await site.ask("POST", "/v1/poll", {"queue": "work", "tenants": named}, token=thief)
        assert code(reply) == (403, "forbidden")


async def test_41_two_credentials_in_one_request_are_refused(site: Site) -> None:
    """Neither takes precedence."""
    owner, thief = await site.tenant("acme"), await site.tenant("globex")
    before = usage(site.server.shard, "acme"), usage(site.server.shard, "globex")
    reply = await site.ask(
        "POST",
        "/v1/queues/work/messages",
        {"messages": [{"body": "x"}]},
        token=thief,
        headers=(f"Authorization: Bearer {owner}",),
    )
    assert reply.status in {400, 401}
    assert (usage(site.server.shard, "acme"), usage(site.server.shard, "globex")) == before


# ---- 42 ----


async def test_42_errors_over_http_are_those_of_the_service(site: Site) -> None:
    """They have the status, code, limit, use and text of the service's error."""
    await site.tenant("acme", quotas={"backlog": 1, "queues": 1}, limits={"read": {"ops_per_sec": 2}})
    admin, viewer = await site.key("acme"), await site.key("acme", "viewer")
    service = site.server.service
    calls: list[tuple[str, str, Any, str | None, Any]] = [
        ("POST", "/v1/queues/work/messages", {"messages": [{"body": "x"}]}, admin,
         lambda c: service.messages.add(c, None, "work", [message("x")])),
        ("POST", "/v1/queues/work/messages", {"messages": [{"body": "x"}]}, viewer,
         lambda c: service.messages.add(c, None, "work", [message("x")])),
        ("PUT", "/v1/tenants/acme/queues/another", {}, admin, lambda c: service.queues.put(c, "acme", "another", {})),
        ("PUT", "/v1/tenants/acme/queues/work", {"lease_ms": -1}, admin,
         lambda c: service.queues.put(c, "acme", "work", {"lease_ms": -1})),
        ("PUT", "/v1/tenants/acme/queues/work", {"name": "x"}, admin,
         lambda c: service.queues.put(c, "acme", "work", {"name": "x"})),
        ("PUT", "/v1/tenants/acme", {"self": 5, "caller": 6}, ADMIN,
         lambda c: service.tenants.put(c, "acme", {"self": 5, "caller": 6})),
        ("GET", f"/v1/queues/work/messages/{NO_ID}", None, admin, lambda c: service.message_reads.get(c, None, "work", NO_ID)),
        ("GET", "/v1/queues/nowhere", None, admin, lambda c: service.queues.get(c, None, "nowhere")),
        ("GET", "/v1/tenants/nobody", None, ADMIN, lambda c: service.tenants.get(c, "nobody")),
        ("GET", "/v1/tenants/nobody", None, admin, lambda c: service.tenants.get(c, "nobody")),
        ("POST", "/v1/queues/work/purge", {"confirm": "wrok", "reason": REASON}, admin,
         lambda c: service.queues.purge(c, None, "work", confirm="wrok", reason=REASON)),
        ("GET", "/v1/tenants", None, admin, service.tenants.list),
        ("GET", "/v1/tenants/acme", None, None, lambda c: service.tenants.get(c, "acme")),
        ("GET", "/v1/tenants/acme", None, "wrong-token", lambda c: service.tenants.get(c, "acme")),
        ("GET", "/metrics", None, admin, service.status.metrics),
        ("DELETE", "/v1/tenants/default", {"confirm": "default", "reason": REASON}, ADMIN,
         lambda c: service.erasures.delete_tenant(c, "default", confirm="default", reason=REASON)),
    ]  # fmt: skip
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "x"}]}, token=admin)
    for method, path, body, token, act in calls:
        site.clock.advance(2_000)
        reply = await site.ask(method, path, body, token=token)
        site.clock.advance(2_000)
        error = None
        try:
            added = await act(Call(bearer=token, remote="127.0.0.1"))
            error = added[0].error
        except TenantqError as caught:
            error = caught
        assert error is not None
        problem = reply.json()
        assert reply.headers["content-type"] == "application/problem+json"
        assert (reply.status, problem["code"], problem["detail"]) == (error.status, error.code, error.message), path
        assert problem.get("limit") == getattr(error, "limit", None)
        assert problem.get("current") == getattr(error, "current", None)


async def test_42_batch_with_refused_items_is_answered_item_by_item(site: Site) -> None:
    """If a batch consists of one refused item, the reply is that refusal."""
    token = await site.tenant("acme", quotas={"backlog": 2})
    bodies = {"messages": [{"body": f"{n}"} for n in range(4)]}
    reply = await site.ask("POST", "/v1/queues/work/messages", bodies, token=token)
    assert reply.status == 200
    assert [one["error"] and one["error"]["code"] for one in reply.json()["messages"]] == [
        None,
        None,
        "quota_exceeded",
        "quota_exceeded",
    ]
    reply = await site.ask("POST", "/v1/queues/work/messages", bodies, token=token)
    assert code(reply) == (429, "quota_exceeded")
    assert reply.json()["limit"] == reply.json()["current"] == 2
    assert int(reply.headers["retry-after"]) >= 1


async def test_42_suspension_over_http(site: Site) -> None:
    """Adds and polls get 403, leased work may finish, and resuming restores everything."""
    token = await site.tenant("acme")
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "a"}, {"body": "b"}]}, token=token)
    held = (await site.ask("POST", "/v1/queues/work/poll", {}, token=token)).json()["messages"][0]
    reply = await site.ask("POST", "/v1/tenants/acme/suspend", {"reason": "unpaid"})
    assert (reply.status, reply.json()["status"]) == (200, "suspended")
    for path, body in (("messages", {"messages": [{"body": "x"}]}), ("poll", {})):
        assert code(await site.ask("POST", f"/v1/queues/work/{path}", body, token=token)) == (403, "forbidden")
    acked = await site.ask("POST", "/v1/queues/work/ack", {"receipts": [held["receipt"]]}, token=token)
    assert acked.json()["results"][0]["ok"]
    assert (await site.ask("POST", "/v1/tenants/acme/resume", {})).status == 200
    assert len((await site.ask("POST", "/v1/queues/work/poll", {}, token=token)).json()["messages"]) == 1


async def test_42_viewer_sees_no_body_over_http(site: Site) -> None:
    """This covers peek, facts, result and trace."""
    owner = await site.tenant("acme")
    viewer = await site.key("acme", "viewer")
    body = {"messages": [{"body": "s3cret", "attributes": {"s3cret": "s3cret"}, "group": "s3cret", "key": "s3cret"}]}
    added = (await site.ask("POST", "/v1/queues/work/messages", body, token=owner)).json()["messages"][0]
    for method, path, sent in (
        ("POST", "/v1/queues/work/peek", {}),
        ("GET", f"/v1/queues/work/messages/{added['id']}", None),
        ("GET", f"/v1/queues/work/messages/{added['id']}/trace", None),
    ):
        reply = await site.ask(method, path, sent, token=viewer)
        assert reply.status == 200
        assert b"s3cret" not in reply.body
    held = (await site.ask("POST", "/v1/queues/work/poll", {}, token=owner)).json()["messages"][0]
    results = [{"status": "completed", "value": "s3cret"}]
    await site.ask("POST", "/v1/queues/work/ack", {"receipts": [held["receipt"]], "results": results}, token=owner)
    path = f"/v1/queues/work/messages/{added['id']}/result"
    assert (await site.ask("GET", path, token=owner)).json()["value"] == "s3cret"
    reply = await site.ask("GET", path, token=viewer)
    assert (reply.json()["status"], reply.json()["value_hidden"]) == ("completed", True)
    assert b"s3cret" not in reply.body


# ---- 44 ----


async def test_44_rate_limits_over_http(site: Site) -> None:
    """429 has Retry-After of at least a second, the limit and the rest. Keys share it, tenants do not."""
    one = await site.tenant("acme", limits={"write": {"ops_per_sec": 3}})
    two = await site.key("acme")
    other = await site.tenant("globex", limits={"write": {"ops_per_sec": 3}})

    async def add(token: str) -> RawReply:
        return await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "x"}]}, token=token)

    for token in (one, two, one):
        assert (await add(token)).status == 200
    for token in (one, two):
        reply = await add(token)
        assert code(reply) == (429, "rate_limited")
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["x-ratelimit-limit"] == "3"
        assert reply.headers["x-ratelimit-remaining"] == "0"
        assert reply.json()["limit"] == 3
    for _ in range(3):
        assert (await add(other)).status == 200
    site.clock.advance(int((await add(one)).headers["retry-after"]) * 1_000)
    assert (await add(one)).status == 200
    assert (await site.ask("PUT", "/v1/tenants/acme", {"limits": {"write": {"ops_per_sec": 1_000}}})).status == 200
    site.clock.advance(1_000)
    for _ in range(50):
        assert (await add(two)).status == 200


# ---- 54 ----


@pytest.mark.parametrize(
    "body",
    [None, {}, {"confirm": "work"}, {"reason": REASON}, {"confirm": "wrok", "reason": REASON},
     {"confirm": "work", "reason": "too short"}, {"confirm": "work", "reason": " " * 50}, {"confirm": None}, [], b"{"],
)  # fmt: skip
async def test_54_destruction_over_http_needs_name_and_reason(site: Site, body: Any) -> None:
    """Otherwise purges and deletions get 400 or 422, and everything is still there."""
    token = await site.tenant("acme")
    await site.ask("POST", "/v1/queues/work/messages", {"messages": [{"body": "a"}]}, token=token)
    for method, path, who in (
        ("POST", "/v1/queues/work/purge", token),
        ("DELETE", "/v1/queues/work", token),
        ("DELETE", "/v1/tenants/acme", ADMIN),
    ):
        assert (await site.ask(method, path, body, token=who)).status in {400, 422}
    assert site.server.shard.reads.stats("acme", "work").ready == 1
