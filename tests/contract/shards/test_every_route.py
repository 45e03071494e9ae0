"""Every route, through every address, for a tenant of every shard: nobody can tell which shard was called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.compliance import CONTROLS
from tenantq.http.routes import ROUTES
from tests.acceptance.command import ADMIN_TOKEN

if TYPE_CHECKING:
    import httpx

    from tests.contract.shards.sharded import Sharded

REASON = {"confirm": "", "reason": "because a test says so"}
SEEN: set[tuple[str, str]] = set()
"""Routes that were called, as in the table."""


class Caller:
    """A client of one address. Checks the status of every reply, and records its route."""

    def __init__(self, client: httpx.Client, own: str) -> None:
        self.client = client
        self.own = own  # prefix of the tenant's routes

    def __call__(self, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        answer = self.client.request(method, path, json=body, **options)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        SEEN.add((method, _template(method, path)))
        return answer.json() if answer.headers.get("content-type") == "application/json" else answer.content

    def queue(self, method: str, rest: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        return self(method, f"{self.own}/queues/{rest}", body, status, **options)


def _template(method: str, path: str) -> str:
    for route in ROUTES:
        pattern = re.sub(r"\{\w+\}", "[^/]+", route.path)
        if route.method == method and re.fullmatch(pattern, path.partition("?")[0]):
            return route.path
    raise AssertionError(path)


def _work(ask: Caller) -> None:
    """Use every route of a queue."""
    ask.queue("PUT", "mail", {"max_attempts": 1}, 201)
    ids = [
        one["id"]
        for one in ask.queue("POST", "mail/messages", {"messages": [{"body": f"{n}"} for n in range(6)]})["messages"]
    ]
    assert ask.queue("GET", "mail")["ready"] == 6
    assert [one["name"] for one in ask("GET", f"{ask.own}/queues")["queues"]] == ["mail"]
    assert len(ask.queue("POST", "mail/peek", {"limit": 3})["messages"]) == 3
    snapshot = ask.queue("POST", "mail/snapshots", {}, 201)["snapshot"]
    assert len(ask.queue("GET", f"mail/snapshots/{snapshot}")["messages"]) == 6
    ask.queue("DELETE", f"mail/snapshots/{snapshot}", status=204)
    got = ask.queue("POST", "mail/poll", {"max": 4, "wait_ms": 1_000})["messages"]
    assert [one["body"] for one in got] == ["0", "1", "2", "3"]
    receipts = [one["receipt"] for one in got]
    assert ask.queue("POST", "mail/extend", {"receipts": receipts[:1], "lease_ms": 60_000})["results"][0]["ok"]
    assert ask.queue("POST", "mail/ack", {"receipts": receipts[:1], "results": [{"value": "done"}]})["results"][0]["ok"]
    assert ask.queue("POST", "mail/release", {"receipts": receipts[1:2]})["results"][0]["ok"]
    assert ask.queue("POST", "mail/nack", {"receipts": receipts[2:]})["results"][0]["ok"]
    assert ask.queue("GET", f"mail/messages/{ids[0]}/result?wait_ms=100")["value"] == "done"
    assert ask.queue("GET", f"mail/messages/{ids[1]}")["state"] == "ready"
    assert [row["op"] for row in ask.queue("GET", f"mail/messages/{ids[0]}/trace")["rows"]][:2] == ["add", "poll"]
    assert ask.queue("POST", "mail/remove", {"ids": ids[1:2]})["results"][0]["ok"]
    task = ask.queue("POST", "mail/redrive", {"dry_run": True})["task"]
    ask.queue("GET", f"mail/redrive/{task}")
    ask.queue("DELETE", f"mail/redrive/{task}")
    ask.queue("POST", "mail/pause", {})
    ask.queue("POST", "mail/resume", {})
    assert ask.queue("GET", "mail/digest")["messages"] == 2
    ask.queue("POST", "mail/import", {"export": "0" * 32, "part": 1})
    assert ask.queue("POST", "mail/purge", {**REASON, "confirm": "mail"})["purged"] == 2
    ask.queue("DELETE", "mail", {**REASON, "confirm": "mail"}, 202)


def _control(ask: Caller, tenant: str) -> None:
    """Use every route of a tenant."""
    assert ask("GET", ask.own)["name"] == tenant
    ask("PUT", ask.own, {"weight": 3})
    ask("POST", f"{ask.own}/suspend", {"reason": "a test"})
    ask("POST", f"{ask.own}/resume", {})
    ask.queue("PUT", "other", {}, 201)
    ask.queue("PUT", "other/suspension", {"reason": "a test"})
    ask.queue("DELETE", "other/suspension")
    ask("PUT", f"{ask.own}/hold", {"reason": "because a court says so"})
    ask("DELETE", f"{ask.own}/hold", {"reason": "because a court says so"})
    assert f'tenantq_added_total{{tenant="{tenant}"}}'.encode() in ask("GET", f"{ask.own}/metrics")
    assert "workers" in ask("GET", f"{ask.own}/workers")
    assert ask("GET", f"{ask.own}/usage")["tenant"] == tenant
    assert ask("GET", f"{ask.own}/alerts")["alerts"] == []
    assert ask("GET", f"{ask.own}/residency")["tenant"] == tenant
    assert len(ask("GET", f"{ask.own}/export")) > 1_000
    assert ask("GET", f"{ask.own}/audit?limit=2")["cursor"]
    assert ask("GET", f"{ask.own}/audit?format=jsonl").count(b"\n") > 5
    assert ask("GET", f"{ask.own}/encryption")["enabled"] is False
    ask("POST", f"{ask.own}/encryption/rotate", {}, 409)
    ask("POST", f"{ask.own}/encryption/rewrap", {}, 409)
    ask("PUT", f"{ask.own}/templates/mail", {"queues": {"made": {}}}, 201)
    assert [one["owner"] for one in ask("GET", f"{ask.own}/templates")["templates"] if one["owner"]] == [tenant]
    assert ask("POST", f"{ask.own}/templates/mail/apply", {"dry_run": True})["results"][0]["outcome"] == "created"
    ask("DELETE", f"{ask.own}/templates/mail", status=204)
    made = ask("POST", f"{ask.own}/keys", {"name": "one", "role": "viewer"}, 201)
    assert made["key_id"] in {one["key_id"] for one in ask("GET", f"{ask.own}/keys")["keys"]}
    ask("DELETE", f"{ask.own}/keys/{made['key_id']}", status=204)
    ask("PUT", f"{ask.own}/grants/jwt:somebody", {"role": "viewer"})
    assert [one["principal"] for one in ask("GET", f"{ask.own}/grants")["grants"]] == ["jwt:somebody"]
    assert ask("POST", f"{ask.own}/grants/jwt:somebody/review", {})["reviewed_at"]
    assert {one["control"] for one in ask("GET", f"{ask.own}/compliance")["controls"]} == set(CONTROLS)
    ask("DELETE", f"{ask.own}/grants/jwt:somebody", status=204)
    ask("POST", f"{ask.own}/revocations", {"principal": "jwt:somebody", "until": 1 << 42}, 204)


def _platform(ask: Caller, tenant: str, name: str, *, is_embedded: bool) -> None:
    """Use every route about all tenants."""
    assert tenant in {one["name"] for one in ask("GET", "/v1/tenants?limit=1000&figures=true")["tenants"]}
    assert [one["name"] for one in ask("GET", "/v1/plans")["plans"]] == ["standard", "unlimited"]
    assert ask("GET", "/v1/alerts")["targets"] == []
    ask("POST", "/v1/alerts/test", {"target": "ops"}, 404)
    asked = {"tenant": f"{name}-asked", "contact": "ann"}
    signups = [ask("POST", "/v1/signups", asked, 202)["id"] for _ in range(2)]
    assert set(signups) <= {one["id"] for one in ask("GET", "/v1/signups")["signups"]}
    assert ask("POST", f"/v1/signups/{signups[0]}/approve", {}, 201)["tenant"] == asked["tenant"]
    ask("POST", f"/v1/signups/{signups[1]}/approve", {}, 409)
    assert ask("POST", f"/v1/signups/{signups[1]}/reject", {})["contact"] == "ann"
    ask("PUT", f"/v1/templates/{name}", {"queues": {"shared": {}}, "shared_with": [tenant]}, 201)
    assert name in {one["name"] for one in ask("GET", "/v1/templates")["templates"]}
    assert name in {one["name"] for one in ask("GET", f"{ask.own}/templates")["templates"]}
    assert ask("POST", f"{ask.own}/templates/{name}/apply", {})["results"][0]["outcome"] in {"created", "unchanged"}
    ask("DELETE", f"/v1/templates/{name}", status=204)
    assert "containments" in ask("GET", "/v1/containments")
    ask("DELETE", "/v1/containments/1-1-0", status=404)
    made = ask("POST", "/v1/platform/keys", {"name": name, "actions": ["metrics"]}, 201)
    assert made["key_id"] in {one["key_id"] for one in ask("GET", "/v1/platform/keys")["keys"]}
    ask("DELETE", f"/v1/platform/keys/{made['key_id']}", status=204)
    ask("POST", "/v1/backups", {"name": name}, 201 if is_embedded else 422)
    backups = {one["name"]: one["error"] for one in ask("GET", "/v1/backups")["backups"]}
    assert backups.get(name) == ("" if is_embedded else None)
    ask("POST", f"/v1/backups/{name}-none/test", {}, 404)
    controls = {one["control"]: one for one in ask("GET", "/v1/compliance")["controls"]}
    assert controls["backup"]["passed"] == (3 if is_embedded else 0)
    assert ask("GET", "/v1/audit?limit=3")["cursor"]
    assert ask("POST", "/v1/poll", {"queue": "nothing", "tenants": [tenant]}) == {"messages": []}
    figures = ask("GET", "/metrics").decode()
    running = [f'tenantq_shard_up{{shard="{number}"}} 1' in figures for number in range(3)]
    assert all(running) or not is_embedded  # a member of a cluster shows its own shards
    assert len(ask("GET", "/v1/topology")["shards"]) == 3
    assert ask("GET", "/v1/whoami")["grants"][0]["role"] == "platform-admin"
    assert len(ask("GET", "/v1/cluster")["shards"]) == 3
    ask("POST", "/v1/cluster/members/unknown/drain", {}, 409 if is_embedded else 404)
    assert ask("GET", f"/v1/cluster/tenants/{tenant}")["moves"] == []
    ask("PUT", f"/v1/cluster/tenants/{tenant}", {"shard": 99}, 422)
    ask("PUT", "/v1/cluster/shards", {"shards": 3, "dry_run": True}, 409 if is_embedded else 200)
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        ask("GET", path)
    erased = ask("DELETE", ask.own, {**REASON, "confirm": tenant})
    assert erased["id"] in {one["id"] for one in ask("GET", "/v1/erasures")["erasures"]}
    assert ask("GET", f"/v1/erasures/{erased['id']}")["tenant"] == tenant
    ask("GET", ask.own, status=404)


@pytest.mark.parametrize("at", range(4), ids=["all", "0", "1", "2"])
def test_every_route_works_through_every_address(three: Sharded, at: int) -> None:
    """The platform names each shard's tenant; the tenant itself uses its credential."""
    for shard in range(3):
        tenant = three.tenant_on(shard)
        with three.client(at) as admin, three.client(at, three.key_of(tenant)) as own:
            ask = Caller(admin, f"/v1/tenants/{tenant}")
            _work(ask)
            _control(ask, tenant)
            itself = Caller(own, "/v1")
            assert itself("GET", "/v1/tenant")["name"] == itself("GET", "/v1/whoami")["tenant"] == tenant
            assert itself("GET", "/v1/workers") == ask("GET", f"{ask.own}/workers")
            for queue in ("other", "mail-dlq"):
                ask.queue("DELETE", queue, {**REASON, "confirm": queue}, 202)
            _work(itself)
            _platform(ask, tenant, f"backup-{at}-{shard}", is_embedded=three.has_backups)
    assert {(route.method, route.path) for route in ROUTES if route.path != "/"} <= SEEN


def test_forwarded_reply_has_the_tenants_address(three_processes: Sharded) -> None:
    """The client can then go there directly; replies of the tenant's own shard have none."""
    tenant = three_processes.tenant_on(1)
    address = three_processes.get("/v1/topology")["shards"][1]["address"]
    told = [
        three_processes.ask("GET", f"/v1/tenants/{tenant}", url=url).headers.get("tenantq-shard")
        for url in three_processes.shards
    ]
    assert told == [address, None, address]
    assert three_processes.shards[1].endswith(address)


def test_pages_of_tenants_and_audit_rows_are_complete(three: Sharded) -> None:
    """Each appears once: tenants by name, rows by time."""
    names = sorted(three.tenant_on(shard) for shard in (0, 1, 2))
    found: list[str] = []
    cursor = None
    while True:
        page = three.get("/v1/tenants", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        found += [one["name"] for one in page["tenants"]]
        if (cursor := page.get("cursor")) is None:
            break
    assert found == sorted(set(found))
    assert set(names) <= set(found)
    for order in ("oldest", "newest"):
        rows: list[dict[str, Any]] = []
        cursor = None
        while True:
            asked = {"limit": 7, "order": order, "action": "create_tenant"} | ({"cursor": cursor} if cursor else {})
            page = three.get("/v1/audit", params=asked)
            rows += page["rows"]
            if (cursor := page.get("cursor")) is None:
                break
        times = [row["ts"] for row in rows]
        assert times == sorted(times, reverse=order == "newest")
        assert len({row["event_id"] for row in rows}) == len(rows)
        assert set(found) <= {row["tenant"] for row in rows}
    assert three.ask("GET", "/v1/audit?cursor=1.2").json()["code"] == "invalid"


def test_remote_address_and_request_id_are_the_callers(three: Sharded) -> None:
    """The owner's journal names the client, not the shard that forwarded the request."""
    tenant = three.tenant_on(2)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "X-Request-Id": "asked-by-a-test", "User-Agent": "a test"}
    with three.client(1) as client:
        answer = client.put(f"/v1/tenants/{tenant}/queues/mail", json={}, headers=headers)
    assert answer.headers["x-request-id"] == "asked-by-a-test"
    (row,) = three.get(f"/v1/tenants/{tenant}/audit", params={"action": "create_queue"})["rows"]
    assert (row["remote"], row["request_id"], row["user_agent"]) == ("127.0.0.1", "asked-by-a-test", "a test")
