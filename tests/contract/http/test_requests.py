"""How requests on one connection are read, ordered and answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import Delivery
from tenantq.errors import Unauthenticated
from tests.contract.http.raw_client import ADD, LONG_POLL, connections_of, get, post, until_not

if TYPE_CHECKING:
    from tenantq.http import HttpListener
    from tests.contract.http.conftest import Connect, Serve
    from tests.contract.http.fake_service import FakeService


async def test_connection_serves_many_requests(listener: HttpListener, connect: Connect) -> None:
    """HTTP/1.1 connections stay open by default."""
    client = await connect(listener)
    for _ in range(3):
        reply = await client.ask(ADD)
        assert reply.status == 200
        assert "connection" not in reply.headers
    assert len(listener.context.connections) == 1


async def test_pipelined_requests_are_answered_in_order(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """This holds even if the first takes longest."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    client.send(post("/v1/queues/slow/messages", '{"messages":[{"body":"x"}]}', "X-Request-Id: first"))
    client.send(get("/healthz", "X-Request-Id: second") + get("/nowhere", "X-Request-Id: third"))
    await fake.asked.wait()
    fake.held.set()
    replies = [await client.reply() for _ in range(3)]
    assert [reply.headers["x-request-id"] for reply in replies] == ["first", "second", "third"]
    assert [reply.status for reply in replies] == [200, 200, 404]


async def test_flood_of_pipelined_requests_stops_being_read(serve: Serve, connect: Connect, fake: FakeService) -> None:
    """Only a limited number waits in memory, and all get a reply in the end."""
    listener = await serve(pipeline_max=4)
    fake.held = asyncio.Event()
    client = await connect(listener)
    count = 20_000
    client.send(ADD + get("/healthz") * count)
    await fake.asked.wait()
    (connection,) = connections_of(listener)
    for _ in range(50):
        await asyncio.sleep(0.001)
        assert len(connection._requests) < 600  # what one slice of input can contain
    fake.held.set()
    for _ in range(count + 1):
        assert (await client.reply()).status == 200


async def test_request_in_single_bytes(listener: HttpListener, connect: Connect) -> None:
    """How the network splits a request does not matter."""
    client = await connect(listener)
    for i in range(len(ADD)):
        client.send(ADD[i : i + 1])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.reply()).status == 200


async def test_large_body_in_many_parts(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """It arrives complete, and nothing stays buffered."""
    client = await connect(listener)
    body = "y" * 900_000
    reply = await client.ask(post("/v1/queues/work/messages", f'{{"messages":[{{"body":"{body}"}}]}}'))
    assert reply.status == 200
    assert fake.calls[0][2][2][0].body == body.encode()
    assert listener.context.buffered_bytes == 0


async def test_chunked_body(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Chunks are joined; extensions and trailers are ignored."""
    client = await connect(listener)
    head = "POST /v1/queues/q/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.send(head.encode() + b'f;x=y\r\n{"messages":[{"\r\nd\r\nbody":"hi"}]}\r\n0\r\nX-Trailer: 1\r\n\r\n')
    assert (await client.reply()).status == 200
    assert fake.calls[0][2][2][0].body == b"hi"
    assert (await client.ask(ADD)).status == 200


async def test_expect_100_continue(listener: HttpListener, connect: Connect) -> None:
    """100 Continue comes before the body, the reply after it."""
    client = await connect(listener)
    request = post("/v1/queues/work/messages", '{"messages":[{"body":"x"}]}', "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert (await client.reply()).status == 100
    assert (await client.ask(body)).status == 200


async def test_expect_100_continue_waits_for_earlier_replies(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """The 100 Continue of the second request must not look like the reply to the first."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    head, _, body = post("/v1/queues/q/messages", '{"messages":[{"body":"x"}]}', "Expect: 100-continue").partition(
        b"\r\n\r\n"
    )
    client.send(ADD + head + b"\r\n\r\n")
    await fake.asked.wait()
    fake.held.set()
    assert (await client.reply()).status == 200
    assert (await client.reply()).status == 100
    assert (await client.ask(body)).status == 200


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/nowhere", "Expect: 100-continue", 404),
        ("/v1/queues/work/poll", "Expect: 200-ok", 417),
        ("/v1/queues/work/messages", "Expect: 100-continue\r\nContent-Encoding: br", 415),
    ],
)
async def test_refused_expectation_gets_its_error_before_the_body(
    listener: HttpListener, connect: Connect, path: str, header: str, status: int
) -> None:
    """The client need not send a body that nobody will read."""
    client = await connect(listener)
    head, _, _ = post(path, "x" * 1_000, header).partition(b"\r\n\r\n")
    reply = await client.ask(head + b"\r\n\r\n")
    assert reply.status == status
    assert reply.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_unauthenticated_client_is_not_asked_for_its_body(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """With Expect: 100-continue it gets 401 first."""
    fake.forbids = Unauthenticated()
    client = await connect(listener)
    head, _, _ = post("/v1/queues/work/messages", "x" * 1_000, "Expect: 100-continue").partition(b"\r\n\r\n")
    reply = await client.ask(head + b"\r\n\r\n")
    assert (reply.status, reply.headers["connection"]) == (401, "close")
    assert await client.rest() == b""


async def test_http_1_0_client_gets_no_100_continue(listener: HttpListener, connect: Connect) -> None:
    """It would mistake it for its reply."""
    client = await connect(listener)
    request = post("/v1/queues/work/messages", '{"messages":[{"body":"x"}]}', "Expect: 100-continue")
    assert (await client.ask(request.replace(b"HTTP/1.1", b"HTTP/1.0"))).status == 200


async def test_http_1_0_closes_by_default(listener: HttpListener, connect: Connect) -> None:
    """The Connection header says what happens."""
    client = await connect(listener)
    reply = await client.ask(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")
    reply = await client.ask(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await client.rest() == b""


async def test_connection_close_is_honoured(listener: HttpListener, connect: Connect) -> None:
    """Data after the last request gets no reply."""
    client = await connect(listener)
    reply = await client.ask(get("/healthz", "Connection: close") + get("/healthz"))
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await client.rest() == b""


async def test_head_is_get_without_the_body(listener: HttpListener, connect: Connect) -> None:
    """The length is that of the body."""
    client = await connect(listener)
    full = await client.ask(get("/healthz"))
    client.send(get("/healthz", method="HEAD"))
    reply = await client.reply(to_head=True)
    assert (reply.status, reply.headers["content-length"]) == (200, str(len(full.body)))
    assert (await client.ask(get("/healthz"))).body == full.body


async def test_upgrade_is_ignored(listener: HttpListener, connect: Connect) -> None:
    """The reply is HTTP/1.1, as clients that offer h2c expect."""
    client = await connect(listener)
    reply = await client.ask(
        get("/healthz", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
    )
    assert reply.status == 200
    assert await client.rest() == b""


async def test_absolute_target_is_accepted(listener: HttpListener, connect: Connect) -> None:
    """Proxies send it."""
    client = await connect(listener)
    assert (await client.ask(get("http://queue.example/healthz"))).status == 200


async def test_wrong_method_gets_the_allowed_ones(listener: HttpListener, connect: Connect) -> None:
    """This covers known and unknown methods; unknown paths have none."""
    client = await connect(listener)
    for method in ("PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        reply = await client.ask(get("/v1/queues/work", method=method))
        assert (reply.status, reply.headers["allow"]) == (405, "DELETE, GET, PUT, HEAD")
        assert reply.json()["code"] == "invalid"
    assert (await client.ask(get("/v1/queues/work/poll"))).headers["allow"] == "POST"
    assert (await client.ask(get("/v1/nothing", method="POST"))).status == 404
    reply = await client.ask(get("/v1/queues/work?x=1", method="BREW"))
    assert (reply.status, reply.headers["allow"]) == (405, "DELETE, GET, PUT, HEAD")
    assert await client.rest() == b""


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "//",
        "/v1",
        "/v1/queues/work/",
        "/v1//queues",
        "/v1/queues//poll",
        "/healthz/",
        "/Healthz",
        "*",
        "/%76%31",
    ],
)
async def test_unknown_paths_are_not_found(listener: HttpListener, connect: Connect, path: str) -> None:
    """No path is normalized into an existing one."""
    client = await connect(listener)
    reply = await client.ask(get(path or "/..", method="POST"))
    assert (reply.status, reply.json()["code"]) == (404, "not_found")


async def test_client_that_leaves_cancels_its_long_poll(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """The service call is cancelled, and the connection removed."""
    client = await connect(listener)
    client.send(LONG_POLL)
    await fake.asked.wait()
    await client.close()
    await until_not(lambda: fake.given_up == 0 or listener.context.connections)


async def test_client_that_leaves_does_not_cancel_its_add(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """What may have been done already is completed."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    client.send(ADD)
    await fake.asked.wait()
    client.reset()
    await until_not(lambda: listener.context.connections)
    fake.held.set()
    await asyncio.sleep(0)
    assert fake.given_up == 0
    assert listener.context.buffered_bytes == 0


async def test_half_closed_client_still_gets_its_replies(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """Half-closing after the last request is allowed."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    client.send(ADD + ADD)
    client.writer.write_eof()
    await fake.asked.wait()
    await asyncio.sleep(0.01)
    fake.held.set()
    assert (await client.reply()).status == 200
    assert (await client.reply()).status == 200
    assert await client.rest() == b""


async def test_half_closed_client_gets_the_reply_of_a_poll(
    listener: HttpListener, connect: Connect, fake: FakeService
) -> None:
    """It gets ready messages, or an empty reply at once instead of waiting."""
    client = await connect(listener)
    client.send(LONG_POLL)
    await fake.asked.wait()
    client.writer.write_eof()
    reply = await client.reply()
    assert (reply.status, reply.json()) == (200, {"messages": []})
    assert await client.rest() == b""
    fake.ready = [Delivery(bytes(16), "r", b"one", 1, 0, {}, None, 0, 1, "acme", "work")]
    for poll in (post("/v1/queues/work/poll", "{}"), LONG_POLL):
        client = await connect(listener)
        client.send(poll)
        client.writer.write_eof()
        assert [one["body"] for one in (await client.reply()).json()["messages"]] == ["one"]
        assert await client.rest() == b""


async def test_too_many_connections_are_refused(serve: Serve, connect: Connect) -> None:
    """The reply says why, and when one leaves there is room again."""
    listener = await serve(connections_max=2, connections_per_address_max=2)
    clients = [await connect(listener) for _ in range(2)]
    for key, client in enumerate(clients):
        add = post("/v1/queues/work/messages", '{"messages":[{"body":"x"}]}', f"Authorization: Bearer {key}")
        assert (await client.ask(add)).status == 200
    third = await connect(listener)
    reply = await third.reply()
    assert (reply.status, reply.json()["code"], reply.headers["retry-after"]) == (503, "unavailable", "1")
    assert await third.rest() == b""
    await clients[0].close()
    await until_not(lambda: len(listener.context.connections) == 2)
    assert (await (await connect(listener)).ask(get("/healthz"))).status == 200
    assert listener.context.metrics.connections_refused_total == 1
