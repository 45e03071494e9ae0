"""Any bytes on the socket: a typed error or a clean close, and the server stays up within its limits."""

from __future__ import annotations

import asyncio
import gzip
import random
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from tests.contract.http.raw_client import ADD, connections_of, get, post, until_not

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.http import HttpListener
    from tests.contract.http.conftest import Connect, Serve
    from tests.contract.http.fake_service import FakeService

PATH = "/v1/queues/work/messages"
CHUNKED = b"POST /v1/queues/work/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
async def still_serving(listener: HttpListener, connect: Connect) -> AsyncIterator[None]:
    """Check after every test that the server replies and holds nothing."""
    yield
    assert (await (await connect(listener)).ask(ADD)).status == 200
    assert listener.context.buffered_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"hello there\r\n\r\n",
        b"GET /healthz HTTP/1.2\r\nHost: a\r\n\r\n",
        b"GET /healthz HTTP/3.0\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: a\n\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
async def test_non_http_input_gets_one_error_and_a_close(listener: HttpListener, connect: Connect, data: bytes) -> None:
    """The problem says only what is wrong."""
    client = await connect(listener)
    reply = await client.ask(data)
    other_version = any(version in data for version in (b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3.0", b"healthz\r"))
    assert reply.status == (505 if other_version else 400)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["code"] == "invalid"
    assert reply.headers["connection"] == "close"
    assert await client.rest() == b""


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: 3, 3\r\n\r\nabc",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: -3\r\n\r\nabc",
        b"Content-Length: 3 3\r\n\r\nabc",
        b"Content-Length: 0x3\r\n\r\nabc",
        b"Content-Length:\r\n\r\nabc",
        b"Content-Length: 99999999999999999999999999\r\n\r\nabc",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Transfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nx\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc\r\n",
    ],
)
async def test_request_with_ambiguous_length_is_refused(
    listener: HttpListener, connect: Connect, fake: FakeService, framing: bytes
) -> None:
    """Nothing after it is parsed as another request, which prevents request smuggling."""
    client = await connect(listener)
    start = b"POST /v1/queues/work/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    reply = await client.ask(start + framing + ADD)
    assert (reply.status, reply.json()["code"]) == (400, "invalid")
    assert await client.rest() == b""
    assert fake.calls == []


async def test_chunks_are_refused_in_http_1_0(listener: HttpListener, connect: Connect) -> None:
    """Old proxies would read the chunks as the next request."""
    client = await connect(listener)
    reply = await client.ask(CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n")
    assert reply.status == 400


async def test_upgrade_with_a_body_is_refused(listener: HttpListener, connect: Connect) -> None:
    """Its body would belong to another protocol."""
    client = await connect(listener)
    reply = await client.ask(post(PATH, "{}", "Connection: Upgrade", "Upgrade: h2c"))
    assert reply.status == 400
    assert await client.rest() == b""


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("", 400, "body: missing"),
        ("{", 400, "truncated"),
        ('{"messages":[{"body":"x"', 400, "truncated"),
        ('{"messages":[{"body":"x"}]} x', 400, "trailing"),
        (b'{"messages":[{"body":"\xff\xfe"}]}', 400, "UTF-8"),
        ('{"messages":[{"body":"\\ud800"}]}', 400, "body"),
        ('\ufeff{"messages":[]}', 400, "malformed"),
        ("[]", 422, "object"),
        ("null", 422, "object"),
        ("{}", 422, "messages"),
        ('{"messages":[{"body":"x"}],"tenant":"other"}', 422, "tenant"),
        ('{"messages":{}}', 422, "messages"),
        ('{"messages":[{"body":1}]}', 422, "messages[0].body"),
        ('{"messages":[{"body":"x","priority":"9"}]}', 422, "messages[0].priority"),
        ('{"messages":[{"body":"x","priority":1.5}]}', 422, "priority"),
        ('{"messages":[{"body":"x","priority":1e400}]}', 422, "priority"),
        ('{"messages":[{"body":"x","unknown":1}]}', 422, "unknown"),
        ('{"messages":[{"body":"x","attributes":{"a":1}}]}', 422, "attributes"),
    ],
)
async def test_invalid_json_is_named(
    listener: HttpListener, connect: Connect, body: str | bytes, status: int, says: str
) -> None:
    """Invalid JSON gets 400, valid JSON of the wrong shape gets 422, and the connection stays open."""
    client = await connect(listener)
    reply = await client.ask(post(PATH, body))
    problem = reply.json()
    assert (reply.status, problem["code"], problem["status"]) == (status, "invalid", status)
    assert says in problem["detail"]
    assert (await client.ask(ADD)).status == 200


async def test_deep_nesting_is_refused(listener: HttpListener, connect: Connect) -> None:
    """This includes fields that accept any JSON."""
    client = await connect(listener)
    body = '{"limits":' + "[" * 200_000
    reply = await client.ask(post("/v1/queues/work", body).replace(b"POST", b"PUT", 1))
    assert (reply.status, reply.json()["detail"]) == (400, "body: nested too deeply")


async def test_very_long_field_name_is_not_echoed(listener: HttpListener, connect: Connect) -> None:
    """Error replies stay short, however long the request was."""
    client = await connect(listener)
    reply = await client.ask(post(PATH, f'{{"{"n" * 1_000_000}":1}}'))
    assert reply.status == 422
    assert len(reply.body) < 2_000


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "application/json; charset=latin-1",
        "*/*",
    ],
)
async def test_wrong_content_types_are_refused(listener: HttpListener, connect: Connect, kind: str) -> None:
    """The body is not read, and the connection stays open."""
    client = await connect(listener)
    reply = await client.ask(post(PATH, "{}").replace(b"application/json", kind.encode()))
    assert (reply.status, reply.json()["code"]) == (415, "invalid")
    assert (await client.ask(ADD)).status == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])
async def test_content_type_spelling_variants_are_accepted(listener: HttpListener, connect: Connect, kind: str) -> None:
    """Case and the only allowed charset do not matter."""
    client = await connect(listener)
    assert (await client.ask(ADD.replace(b"application/json", kind.encode()))).status == 200


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/v1/queues/%zz", 400, "hexadecimal"),
        ("/v1/queues/a%", 400, "hexadecimal"),
        ("/v1/queues/%ff", 400, "UTF-8"),
        ("/v1/queues?limit=x", 422, "limit"),
        ("/v1/queues?limit=0", 422, "limit"),
        ("/v1/queues?limit=1001", 422, "limit"),
        ("/v1/queues?limit=%31%30%30%30%30", 422, "limit"),
        ("/v1/queues?limit=" + "9" * 5_000, 422, "limit"),
        ("/v1/queues?limit=1&limit=2", 422, "duplicate"),
        ("/v1/queues?tenant=other", 422, "tenant: unknown query parameter"),
        ("/v1/queues?Limit=1", 422, "Limit"),
        ("/healthz?verbose", 422, "verbose"),
    ],
)
async def test_invalid_paths_and_queries_are_named(
    listener: HttpListener, connect: Connect, path: str, status: int, says: str
) -> None:
    """Each parameter must be known, given once and in range."""
    client = await connect(listener)
    reply = await client.ask(get(path))
    assert (reply.status, reply.json()["code"]) == (status, "invalid")
    assert says in reply.json()["detail"]


async def test_names_are_unescaped_once(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Double escapes stay escaped once, and an escaped slash stays inside the name."""
    client = await connect(listener)
    for escaped, name in (("%2561", "%61"), ("a%2Fb", "a/b"), ("..", ".."), ("%C3%A4", "ä"), ("a+b", "a+b")):
        await client.ask(post(f"/v1/tenants/{escaped}/queues/{escaped}/ack", '{"receipts":["r"]}'))
        assert fake.calls[-1][2][:2] == (name, name)


async def test_41_tenant_in_a_header_is_ignored(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Only path and credential name a tenant; in query and body it is refused."""
    client = await connect(listener)
    headers = ("X-Tenant: other", "X-Tenant-Id: other", "Tenantq-Tenant: other", "X-Original-URL: /v1/tenants/other")
    assert (await client.ask(post(PATH, '{"messages":[{"body":"x"}]}', *headers))).status == 200
    assert fake.calls[-1][2][0] is None
    assert (await client.ask(post(f"{PATH}?tenant=other", '{"messages":[{"body":"x"}]}'))).status == 422
    assert (await client.ask(post(PATH, '{"tenant":"other","messages":[{"body":"x"}]}'))).status == 422
    assert len(fake.calls) == 1


# ---- limits ----


async def test_long_request_line_is_refused(listener: HttpListener, connect: Connect) -> None:
    """The status is 414, whether it arrives at once or in parts."""
    client = await connect(listener)
    reply = await client.ask(get("/v1/queues?cursor=" + "x" * 8_200))
    assert (reply.status, reply.json()["code"]) == (414, "too_large")
    assert await client.rest() == b""


@pytest.mark.parametrize(
    "headers",
    [
        [f"X-{i}: y" for i in range(101)],
        ["X: " + "y" * 33_000],
        ["X" * 33_000 + ": y"],
        [f"X-{i}: {'y' * 1_000}" for i in range(40)],
    ],
)
async def test_too_many_or_too_long_headers_are_refused(
    listener: HttpListener, connect: Connect, headers: list[str]
) -> None:
    """The status is 431."""
    client = await connect(listener)
    reply = await client.ask(get("/healthz", *headers))
    assert (reply.status, reply.json()["code"]) == (431, "too_large")
    assert await client.rest() == b""


@pytest.mark.parametrize("unit", [b"X: " + b"y" * 1_000 + b"\r\n", b"y" * 1_000, b"X-Y: z\r\n"])
async def test_ten_megabytes_of_headers_are_not_buffered(listener: HttpListener, connect: Connect, unit: bytes) -> None:
    """The error comes early and is readable although the client keeps sending, and memory stays limited."""
    client = await connect(listener)
    client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\nLong: ")
    whole = unit * (10_000_000 // len(unit))
    tracemalloc.start()
    for at in range(0, len(whole), 1 << 18):
        client.send(whole[at : at + (1 << 18)])
        await asyncio.sleep(0)
    reply = await client.reply()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.status == 431
    client.writer.transport.abort()
    # The client in this process buffers unsent data, so only the excess belongs to the server.
    assert peak < len(whole) + 4_000_000


async def test_endless_empty_lines_are_refused(listener: HttpListener, connect: Connect) -> None:
    """A few are allowed before a request."""
    client = await connect(listener)
    assert (await client.ask(b"\r\n\r\n" + get("/healthz"))).status == 200
    assert (await client.ask(b"\r\n" * 100_000)).status == 400


async def test_body_above_the_limit_is_refused_before_it_is_read(
    serve: Serve, connect: Connect, fake: FakeService
) -> None:
    """Its Content-Length is enough."""
    listener = await serve(body_bytes_max=10_000)
    client = await connect(listener)
    head = post(PATH, "x" * 10_001).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    reply = await client.ask(head)
    assert (reply.status, reply.json()["code"]) == (413, "too_large")
    assert await client.rest() == b""
    assert fake.calls == []


async def test_chunked_body_above_the_limit_is_refused_while_it_is_read(serve: Serve, connect: Connect) -> None:
    """No more than the limit is buffered."""
    listener = await serve(body_bytes_max=10_000)
    client = await connect(listener)
    client.send(CHUNKED)
    for _ in range(1_000):
        client.send(b"400\r\n" + b" " * 1_024 + b"\r\n")
    reply = await client.reply()
    assert (reply.status, reply.json()["code"]) == (413, "too_large")
    assert listener.context.buffered_bytes == 0


async def test_tiny_chunks_count_by_their_bytes(serve: Serve, connect: Connect) -> None:
    """A body of one-byte chunks has the same limit."""
    listener = await serve(body_bytes_max=10_000)
    client = await connect(listener)
    client.send(CHUNKED + b"1\r\n \r\n" * 10_001)
    assert (await client.reply()).status == 413


async def test_tiny_chunks_take_no_more_memory_than_they_count_for(listener: HttpListener, connect: Connect) -> None:
    """They are joined into few pieces, so the limit on buffered bytes limits memory."""
    client = await connect(listener)
    client.send(CHUNKED + b"1\r\n \r\n" * 50_000)
    await until_not(lambda: listener.context.buffered_bytes < 50_000)
    (connection,) = connections_of(listener)
    parser = connection._parser
    held = [*parser._blocks, *parser._parts, parser._more]
    assert sum(map(len, held)) == 50_000 - 1  # the first is the request's
    assert sum(map(sys.getsizeof, held)) < 100_000
    client.reset()
    await until_not(lambda: listener.context.connections)


@pytest.mark.parametrize(
    "junk", [b"1;" + b"x" * 200_000, b"0\r\nX: " + b"y" * 200_000, b"0\r\n" + b"X: y\r\n" * 20_000]
)
async def test_chunk_extensions_and_trailers_are_limited(listener: HttpListener, connect: Connect, junk: bytes) -> None:
    """They have no meaning here, so they may not be long."""
    client = await connect(listener)
    assert (await client.ask(CHUNKED + junk)).status in {400, 431}


async def test_compressed_bodies_are_inflated(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Small ones are inflated at once, large ones in steps."""
    client = await connect(listener)
    for size in (10, 1_000_000):
        body = gzip.compress(b'{"messages":[{"body":"%b"}]}' % (b"z" * size))
        assert (await client.ask(post(PATH, body, "Content-Encoding: gzip"))).status == 200
        assert fake.calls[-1][2][2][0].body == b"z" * size
    assert listener.context.buffered_bytes == 0


async def test_compression_bomb_is_refused_while_it_is_inflated(serve: Serve, connect: Connect) -> None:
    """Twenty kilobytes would become twenty megabytes."""
    listener = await serve(body_bytes_max=1_000_000)
    client = await connect(listener)
    bomb = gzip.compress(bytes(20_000_000))
    tracemalloc.start()
    reply = await client.ask(post(PATH, bomb, "Content-Encoding: gzip"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (reply.status, reply.json()["code"]) == (413, "too_large")
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") + b"more", gzip.compress(b"{}") * 2],
    ids=["no gzip", "cut short", "more after it", "twice"],
)
async def test_broken_compression_is_refused(listener: HttpListener, connect: Connect, body: bytes) -> None:
    """Anything but one complete gzip stream gets 400."""
    client = await connect(listener)
    reply = await client.ask(post(PATH, body, "Content-Encoding: gzip"))
    assert (reply.status, reply.json()["code"]) == (400, "invalid")


async def test_other_compressions_are_refused(listener: HttpListener, connect: Connect) -> None:
    """The error says what is supported."""
    client = await connect(listener)
    reply = await client.ask(post(PATH, "x", "Content-Encoding: br"))
    assert (reply.status, reply.headers["accept-encoding"]) == (415, "gzip")


async def test_total_buffered_body_bytes_are_limited(serve: Serve, connect: Connect, fake: FakeService) -> None:
    """Above the limit, requests get 503 with Retry-After until there is room again."""
    listener = await serve(buffered_bytes_max=100_000)
    request = post(PATH, '{"messages":[{"body":"' + "x" * 60_000 + '"}]}')
    fake.held = asyncio.Event()
    first, second = await connect(listener), await connect(listener)
    first.send(request)
    await fake.asked.wait()
    reply = await second.ask(request)
    assert (reply.status, reply.json()["code"], reply.headers["retry-after"]) == (503, "unavailable", "1")
    fake.held.set()
    assert (await first.reply()).status == 200
    assert listener.context.buffered_bytes == 0
    assert (await (await connect(listener)).ask(request)).status == 200


async def test_large_unfinished_bodies_give_way_to_smaller_ones(serve: Serve, connect: Connect) -> None:
    """Nobody can block others by sending almost all of a large body."""
    listener = await serve(buffered_bytes_max=100_000)
    large = post(PATH, '{"messages":[{"body":"' + "x" * 49_000 + '"}]}')
    hoarders = [await connect(listener) for _ in range(2)]
    for hoarder in hoarders:
        hoarder.send(large[:-10])
    await until_not(lambda: listener.context.buffered_bytes < 98_000)
    for size in (10_000, 20_000, 30_000):
        client = await connect(listener)
        assert (await client.ask(post(PATH, '{"messages":[{"body":"' + "x" * size + '"}]}'))).status == 200
    for hoarder in hoarders:
        hoarder.send(large[-10:])
    assert sorted([(await hoarder.reply()).status for hoarder in hoarders]) == [200, 503]
    assert listener.context.buffered_bytes == 0


async def test_unfinished_body_is_freed_with_its_connection(listener: HttpListener, connect: Connect) -> None:
    """Its buffered bytes are released."""
    client = await connect(listener)
    client.send(ADD[:-1])
    await until_not(lambda: listener.context.buffered_bytes == 0)
    await client.close()
    await until_not(lambda: listener.context.connections)
    assert listener.context.buffered_bytes == 0


async def test_random_garbage_never_crashes_the_server(listener: HttpListener, connect: Connect) -> None:
    """Random bytes and damaged requests get a status below 500, or a close."""
    rng = random.Random(11)
    for _ in range(150):
        data = bytearray(ADD + get("/v1/queues?limit=5") + ADD)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            data = bytearray(rng.randbytes(rng.randint(1, 2_000)))
        client = await connect(listener)
        client.send(bytes(data))
        client.writer.write_eof()
        answer = await client.rest()
        assert b"HTTP/1.1 5" not in answer.replace(b"HTTP/1.1 505", b"")
        await client.close()


_FILL = ",".join(['{"body":"' + "x" * 1_000 + '"}'] * 80)
"""Messages that make a body large enough to be decoded in slices."""


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        (PATH, '{"messages":[{"body":"x","priority":1,"priority":2}]}', "priority"),
        (PATH, '{"messages":[{"body":"x"}],"messages":[{"body":"y"}]}', "messages"),
        (PATH, '{"messages":[{"body":"a:b","attributes":{"a":"1", "\\u0061" : "2"}}]}', "a"),
        (PATH, '{"messages":[{"body":"{\\"a\\":1}","body" : "y"},{"body":"z"}]}', "body"),
        (PATH, '{"messages":[{"body":"\\u003a","body":"x\\u003a"}]}', "body"),
        ("/v1/queues/work/poll", '{"max":1,"wait_ms":0,"max":2}', "max"),
        (PATH, '{"messages":[FILL,{"body":"x","group":"1","group":"2"}]}', "group"),
        (PATH, '{"messages":[{"body":"x"}],"messages":[FILL]}', "messages"),
        (PATH, '{"key":"a","messages":[FILL],"key":"a"}', "key"),
        ("/v1/queues/work/ack", '{"receipts":["x"],"receipts":["' + "r" * 70_000 + '"]}', "receipts"),
    ],
)
async def test_duplicate_json_key_is_refused_by_name(
    listener: HttpListener, connect: Connect, fake: FakeService, path: str, body: str, key: str
) -> None:
    """The server does not guess which of the two the client meant."""
    reply = await (await connect(listener)).ask(post(path, body.replace("FILL", _FILL)))
    assert reply.status == 422
    assert reply.json()["detail"] == f'body: duplicate key "{key}". Send each key of an object once.'
    assert fake.calls == []


@pytest.mark.parametrize(
    "body",
    [
        '{"messages":[{"body":"a"},{"body":"a: \\"body\\": b","attributes":{"body":":","":"1"}}]}',
        '{ "messages" : [ { "body" : "a" , "key" : "key" } , { "body" : "a", "key": "b" } ] , "key" : "b" }',
        '{"key":"a","messages":[{"body":"x","key":"messages"},FILL]}',
    ],
)
async def test_same_key_in_different_objects_is_not_a_duplicate(
    listener: HttpListener, connect: Connect, body: str
) -> None:
    """Neither is a string that looks like a key."""
    assert (await (await connect(listener)).ask(post(PATH, body.replace("FILL", _FILL)))).status == 200
