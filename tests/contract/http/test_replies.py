"""What every reply has: IDs, types, retry hints, compression."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import AddResult, Delivery, Outcome, Result
from tenantq.errors import (
    Busy,
    Conflict,
    Forbidden,
    Invalid,
    LeaseLost,
    NotFound,
    QuotaExceeded,
    RateLimited,
    TenantqError,
    TooLarge,
    Unauthenticated,
)
from tests.contract.http.raw_client import ADD, get, post
from tests.shards import count_slices

if TYPE_CHECKING:
    from tenantq.http import HttpListener
    from tenantq.runtime.clock import ManualClock
    from tests.contract.http.conftest import Connect
    from tests.contract.http.fake_service import FakeService


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unauthenticated(), 401, "unauthenticated"),
        (Forbidden(), 403, "forbidden"),
        (NotFound("no such queue", tenant="acme", queue="q"), 404, "not_found"),
        (Conflict(), 409, "conflict"),
        (TooLarge(), 413, "too_large"),
        (Invalid("max: 0 is not allowed"), 422, "invalid"),
        (RateLimited(limit=10, current=10, retry_after_ms=1_500), 429, "rate_limited"),
        (QuotaExceeded(limit=10, current=12, retry_after_ms=100), 429, "quota_exceeded"),
        (Busy(), 503, "unavailable"),
    ],
)
async def test_every_error_is_a_problem(
    listener: HttpListener, connect: Connect, fake: FakeService, error: TenantqError, status: int, code: str
) -> None:
    """It has code, status, text, and the request ID in header and body."""
    fake.fails = error
    client = await connect(listener)
    reply = await client.ask(ADD)
    problem = reply.json()
    assert reply.status == problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:tenantq:error:{code}"
    assert problem["detail"] == error.message
    assert problem["title"]
    assert problem["request_id"] == reply.headers["x-request-id"]
    assert problem.get("tenant") == error.tenant
    assert reply.headers["content-type"] == "application/problem+json"
    assert (await client.ask(get("/healthz"))).status == 200


async def test_rate_limited_reply_has_limit_and_retry_after(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """The value is in whole seconds, at least one."""
    client = await connect(listener)
    for retry_after_ms, seconds in ((1, "1"), (1_000, "1"), (1_001, "2"), (90_000, "90")):
        fake.fails = RateLimited(limit=10, current=7, retry_after_ms=retry_after_ms)
        reply = await client.ask(ADD)
        assert reply.headers["retry-after"] == seconds
        assert (reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-remaining"]) == ("10", "7")
        assert (reply.json()["limit"], reply.json()["current"]) == (10, 7)
        assert reply.json()["retry_after_ms"] == retry_after_ms
    fake.fails = QuotaExceeded(limit=10, current=12)
    assert (await client.ask(ADD)).headers["x-ratelimit-remaining"] == "0"
    fake.fails = Unauthenticated()
    assert (await client.ask(ADD)).headers["www-authenticate"] == "Bearer"


async def test_internal_error_is_a_500_without_details(
    listener: HttpListener, connect: Connect, fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has them under the request ID, and the connection stays open."""
    fake.fails = RuntimeError("the secret cause")
    client = await connect(listener)
    reply = await client.ask(post("/v1/queues/q/ack", '{"receipts":["r"]}', "X-Request-Id: look-me-up"))
    assert (reply.status, reply.json()["code"]) == (500, "internal")
    assert b"secret" not in reply.body
    assert "look-me-up" in caplog.text
    assert "the secret cause" in caplog.text
    assert (await client.ask(get("/healthz"))).status == 200


async def test_request_id_is_the_clients_or_a_new_one(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """Invalid ones are replaced, and the service gets the ID that is in the reply."""
    client = await connect(listener)
    for sent in ("abc", "x" * 128, "a.b-c_d:1/2"):
        reply = await client.ask(post("/v1/queues/q/ack", '{"receipts":["r"]}', f"x-request-id: {sent}"))
        assert reply.headers["x-request-id"] == fake.calls[-1][1].request_id == sent
    made = set()
    for sent in ("", "x" * 129, "a b", "a\tb", "ä"):
        reply = await client.ask(
            post("/v1/queues/q/ack", '{"receipts":["r"]}').replace(b"Host:", f"X-Request-Id: {sent}\r\nHost:".encode())
        )
        assert reply.headers["x-request-id"] == fake.calls[-1][1].request_id != sent
        made.add(reply.headers["x-request-id"])
    assert len(made) == 5


async def test_service_gets_token_address_and_user_agent(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """An invalid Authorization value is passed on, so that it is refused."""
    client = await connect(listener)
    other = await connect(listener)
    body = '{"receipts":["r"]}'
    await client.ask(post("/v1/queues/q/ack", body, "Authorization: Bearer tq_id_secret", "User-Agent: curl/8"))
    await client.ask(post("/v1/queues/q/ack", body, "authorization: bearer  spaced "))
    await client.ask(post("/v1/queues/q/ack", body, "Authorization: Basic dXNlcjpwYXNz"))
    await client.ask(post("/v1/queues/q/ack", body, "Authorization: Bearer"))
    await client.ask(post("/v1/queues/q/ack", body))
    await other.ask(post("/v1/queues/q/ack", body))
    calls = [call for _, call, _ in fake.calls]
    assert [call.bearer for call in calls] == [
        "tq_id_secret", "spaced", "Basic dXNlcjpwYXNz", "Bearer", None, None,
    ]  # fmt: skip
    assert [call.user_agent for call in calls[:2]] == ["curl/8", ""]
    assert {call.remote for call in calls} == {"127.0.0.1"}
    assert {call.connection for call in calls} == {None}  # it has one request at a time
    twice = post("/v1/queues/q/ack", body, "Authorization: Bearer a", "Authorization: Bearer b")
    assert (await client.ask(twice)).status == 400


async def test_replies_have_a_date(listener: HttpListener, connect: Connect, clock: ManualClock) -> None:
    """It comes from the server's wall clock."""
    client = await connect(listener)
    assert (await client.ask(get("/healthz"))).headers["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    clock.advance(61_000)
    assert (await client.ask(get("/healthz"))).headers["date"] == "Tue, 14 Nov 2023 22:14:21 GMT"


async def test_every_reply_states_weak_durability(
    listener: HttpListener, connect: Connect, fake: FakeService, clock: ManualClock
) -> None:
    """Nobody should mistake it for a sync."""
    client = await connect(listener)
    assert "tenantq-durability" not in (await client.ask(ADD)).headers
    fake.durability = "os"
    clock.advance(1_000)
    assert (await client.ask(ADD)).headers["tenantq-durability"] == "os"
    assert (await client.ask(get("/nowhere"))).headers["tenantq-durability"] == "os"


async def test_readiness_follows_the_service(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Health does not, because the process serves."""
    client = await connect(listener)
    reply = await client.ask(get("/readyz"))
    assert (reply.status, reply.json()) == (200, {"status": "ready", "details": {"ready": True}})
    fake.is_ready = False
    reply = await client.ask(get("/readyz"))
    assert (reply.status, reply.json()["status"]) == (503, "not_ready")
    fake.is_ready = True
    listener.announce_closing()
    reply = await client.ask(get("/readyz"))
    assert (reply.status, reply.json()["status"]) == (503, "closing")
    reply = await client.ask(get("/healthz"))
    assert (reply.status, reply.json()) == (200, {"status": "ok"})


async def test_metrics_combine_service_and_listeners(listener: HttpListener, connect: Connect) -> None:
    """They are one text."""
    client = await connect(listener)
    await client.ask(get("/nowhere"))
    reply = await client.ask(get("/metrics"))
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    assert lines[0] == "tenantq_up 1"
    assert "tenantq_http_connections 1.0" in lines
    assert 'tenantq_http_replies_total{status="404"} 1.0' in lines


# ---- bodies ----


async def test_bodies_are_sent_as_text_or_base64(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Text is UTF-8; a message with both or neither is an error in its position."""
    client = await connect(listener)
    body = (
        '{"messages":[{"body":"h\u00e4\\u0000"},{"body_base64":"/wD/"},{"body":"a","body_base64":"YQ=="},{},'
        '{"body_base64":"%%%"},{"body_base64":"YQ"},{"body":"","priority":9,"key":"k","group":"g","delay_ms":5,'
        '"ttl_ms":6,"attributes":{"a":"b"},"max_attempts":3},{"body_base64":""}]}'
    )
    assert (await client.ask(post("/v1/tenants/acme/queues/q/messages", body))).status == 200
    tenant, queue, messages, key = fake.calls[0][2]
    assert (tenant, queue, key) == ("acme", "q", None)
    assert [messages[i].body for i in (0, 1, 6, 7)] == ["hä\0".encode(), b"\xff\x00\xff", b"", b""]
    assert [type(messages[i]) for i in (2, 3, 4, 5)] == [Invalid] * 4
    assert "body_base64" in messages[2].message
    full = messages[6]
    assert (full.priority, full.key, full.group, full.delay_ms, full.ttl_ms) == (9, "k", "g", 5, 6)
    assert (full.attributes, full.max_attempts) == ({"a": "b"}, 3)


async def test_bodies_are_returned_as_text_or_base64(
    listener: HttpListener, connect: Connect, fake: FakeService, clock: ManualClock
) -> None:
    """Valid UTF-8 is returned as text."""
    fake.ready = [
        Delivery(bytes(16), "r1", "hä\0".encode(), 1, 0, {"a": "b"}, None, 1, 2, "acme", "q"),
        Delivery(b"\xff" * 16, "r2", b"\xff\x00", 2, 9, {}, "g", 3, 4, "acme", "q"),
    ]
    client = await connect(listener)
    reply = (await client.ask(post("/v1/queues/q/poll", '{"max":2,"lease_ms":7,"consumer":"me"}'))).json()
    assert fake.calls[0][2] == (None, "q", 2, 0, 7, "me")
    assert reply == {
        "messages": [
            {
                "id": "00000000-0000-0000-0000-000000000000", "receipt": "r1", "body": "hä\0", "attempt": 1, "priority": 0,
                "attributes": {"a": "b"}, "added_at": 1, "lease_until": 2, "tenant": "acme", "queue": "q",
            },
            {
                "id": "ffffffff-ffff-ffff-ffff-ffffffffffff", "receipt": "r2", "body_base64": "/wA=", "attempt": 2,
                "priority": 9, "attributes": {}, "group": "g", "added_at": 3, "lease_until": 4, "tenant": "acme",
                "queue": "q",
            },
        ],
        "now_at": clock.wall_ms(),
    }  # fmt: skip


async def test_37_batches_are_answered_item_by_item(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """Results are in input order; only if all failed alike is the whole reply an error."""
    client = await connect(listener)
    body = '{"messages":[{"body":"a"},{"body":"b"}]}'
    refused = QuotaExceeded("backlog: full", limit=1, current=1)
    fake.added = [AddResult(bytes(16)), AddResult(b"", error=refused)]
    reply = await client.ask(post("/v1/queues/q/messages", body))
    assert reply.status == 200
    assert reply.json()["messages"] == [
        {"id": "00000000-0000-0000-0000-000000000000", "duplicate": False, "error": None},
        {"id": None, "duplicate": False, "error": {"code": "quota_exceeded", "detail": "backlog: full"}},
    ]
    fake.added = [AddResult(b"", error=refused), AddResult(b"", error=Invalid("priority: too high"))]
    assert (await client.ask(post("/v1/queues/q/messages", body))).status == 200
    fake.added = [
        AddResult(b"", error=refused),
        AddResult(b"", error=QuotaExceeded("backlog: full", limit=1, current=1)),
    ]
    reply = await client.ask(post("/v1/queues/q/messages", body))
    assert (reply.status, reply.json()["code"], reply.json()["limit"]) == (429, "quota_exceeded", 1)


async def test_lost_leases_are_results_not_errors(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """The status is 200, even if all are lost."""
    fake.outcomes = [Outcome(ok=False, error=LeaseLost("gone"))]
    client = await connect(listener)
    reply = await client.ask(post("/v1/queues/q/ack", '{"receipts":["r"]}'))
    assert reply.status == 200
    assert reply.json() == {
        "results": [{"receipt": "r", "ok": False, "error": {"code": "lease_lost", "detail": "gone"}}]
    }


async def test_results_are_sent_and_returned(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """They have the same two forms as bodies."""
    client = await connect(listener)
    results = '[{"value":"done"},null,{"value_base64":"/w=="},{"status":"failed","error":"boom"},{}]'
    body = f'{{"receipts":["1","2","3","4","5"],"results":{results}}}'
    assert (await client.ask(post("/v1/queues/q/ack", body))).status == 200
    assert fake.calls[-1][2][3] == [
        Result("completed", b"done"), None, Result("completed", b"\xff"), Result("failed", None, "boom"),
        Result("completed"),
    ]  # fmt: skip
    fake.found = Result("completed", b"\xff\x00")
    reply = await client.ask(get("/v1/queues/q/messages/abc/result?wait_ms=0"))
    assert reply.json() == {"status": "completed", "value_base64": "/wA="}
    both = '{"receipts":["1"],"results":[{"value":"a","value_base64":"YQ=="}]}'
    assert (await client.ask(post("/v1/queues/q/ack", both))).status == 422


async def test_large_results_are_converted_in_slices(
    listener: HttpListener, connect: Connect, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several megabytes of base64 take longer than one turn of the event loop may."""
    client, value = await connect(listener), base64.b64encode(bytes(1 << 19)).decode()
    slices = count_slices(monkeypatch, "tenantq.runtime.loop_slices")
    body = json.dumps({"receipts": ["r"] * 6, "results": [{"value_base64": value}] * 6})
    assert (await client.ask(post("/v1/queues/q/ack", body))).status == 200
    assert fake.calls[-1][2][3] == [Result("completed", bytes(1 << 19))] * 6
    assert len(slices) >= 5


async def test_calls_without_fields_accept_an_empty_object_or_no_body(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """Clients differ in what they send."""
    client = await connect(listener)
    assert (await client.ask(post("/v1/queues/q/poll", ""))).status == 200
    assert (await client.ask(post("/v1/queues/q/poll", "{}"))).status == 200
    assert (
        await client.ask(get("/metrics", "Content-Type: application/json", "Content-Length: 2") + b"{}")
    ).status == 200
    assert (await client.ask(get("/metrics", "Content-Length: 7") + b'{"a":1}')).status == 422


# ---- compression ----


def _bulk() -> list[Delivery]:
    body = b'{"kind":"invoice","lines":[1,2,3]}' * 10
    return [Delivery(bytes(16), "r", body, 1, 0, {}, None, 1, 2, "acme", "q") for _ in range(600)]


@pytest.mark.parametrize("count", [10, 600])
async def test_large_replies_are_compressed_on_request(
    listener: HttpListener, connect: Connect, fake: FakeService, count: int
) -> None:
    """Compression may run at once or in slices; the content is the same."""
    fake.ready = _bulk()
    client = await connect(listener)
    ask = f'{{"max":{count}}}'
    plain = await client.ask(post("/v1/queues/q/poll", ask))
    packed = await client.ask(post("/v1/queues/q/poll", ask, "Accept-Encoding: br, gzip;q=0.5"))
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert len(packed.body) < len(plain.body) / 4
    assert gzip.decompress(packed.body) == plain.body


@pytest.mark.parametrize("accepted", ["gzip;q=0", "br", "identity", "gzip;q=0.0, *", ""])
async def test_replies_are_compressed_only_if_gzip_is_accepted(
    listener: HttpListener, connect: Connect, fake: FakeService, accepted: str
) -> None:
    """``gzip;q=0`` refuses it."""
    fake.ready = _bulk()[:10]
    client = await connect(listener)
    reply = await client.ask(post("/v1/queues/q/poll", '{"max":10}', f"Accept-Encoding: {accepted}"))
    assert "content-encoding" not in reply.headers
    assert len(reply.json()["messages"]) == 10


async def test_small_or_incompressible_replies_are_not_compressed(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """Compression must reduce the size."""
    client = await connect(listener)
    reply = await client.ask(get("/healthz", "Accept-Encoding: gzip"))
    assert "content-encoding" not in reply.headers
    noise = bytes((i * 7_919 + (i * i) % 251) % 256 for i in range(3_000))
    packed_already = gzip.compress(noise, 9)
    fake.ready = [Delivery(bytes(16), "r", packed_already, 1, 0, {}, None, 1, 2, "acme", "q")]
    assert (await client.ask(post("/v1/queues/q/poll", "{}", "Accept-Encoding: gzip"))).status == 200
