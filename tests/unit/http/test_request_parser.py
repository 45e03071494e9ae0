"""Requests are parsed the same way, however they are split and whatever came before."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tenantq.http import HttpListener
from tenantq.http.connection import SLICE_BYTES
from tenantq.http.request_head import HEADS_MAX, HeadCache, RequestHead
from tenantq.http.request_parser import BLOCK_PARTS, JOINED_BYTES_MAX, PART_BYTES_MIN, RequestParser

if TYPE_CHECKING:
    from tenantq.http.context import HttpContext
    from tenantq.http.request import Request
    from tenantq.service.service import Service


class _NoService:
    status = SimpleNamespace(durability="fsync")
    admission = SimpleNamespace(residency=SimpleNamespace(misplaced=frozenset()))


class _EmptyCache(HeadCache):
    """Finds no head."""

    def __init__(self) -> None:
        super().__init__()
        nothing: dict[bytes, RequestHead] = {}
        self.get = nothing.get


def _request(rng: random.Random) -> bytes:
    method, path = rng.choice(
        [("POST", "/v1/queues/a/poll"), ("POST", "/v1/queues/b/messages"), ("GET", "/healthz"), ("GET", "/v1/queues?limit=3"),
         ("HEAD", "/healthz"), ("PATCH", "/healthz"), ("GET", "/nowhere")]
    )  # fmt: skip
    lines = [f"{method} {path} HTTP/1.1", "Host: a"]
    if rng.random() < 0.5:
        lines.append(f"Authorization: Bearer {rng.choice('xy')}")
    headers = (
        "User-Agent: curl",
        "Accept-Encoding: gzip",
        "Connection: keep-alive",
        "X-Request-Id: mine",
        "Expect: 100-continue",
    )
    lines += [header for header in headers if rng.random() < 0.15]
    body = rng.choice([b"", b"{}", b"[]", b'{"max":1}'])
    kind = rng.choice(["Content-Type: application/json", "Content-Type: text/plain", "Content-Type: application/json"])
    if body and rng.random() < 0.1:
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        return "\r\n".join([*lines, kind, "Transfer-Encoding: chunked"]).encode() + b"\r\n\r\n" + chunks
    return "\r\n".join([*lines, kind, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n" + body


def _said(request: Request, made_id: bool) -> tuple[Any, ...]:  # noqa: FBT001  # of this test only
    call = request.call
    return (
        request.route, request.tenant, request.queue, request.name, request.head.raw_query, request.body, request.encoding,
        request.head.accept_encoding, request.head.head_only, request.head.is_old, request.close, str(request.refusal), call.bearer,
        call.user_agent, call.remote, made_id,
    )  # fmt: skip


def _context() -> HttpContext:
    return HttpListener(cast("Service", _NoService())).context


async def test_the_head_cache_changes_no_result() -> None:
    """A parser with the cache and one without read the same requests from the same bytes."""
    rng = random.Random(5)
    caching, parsing = _context(), _context()
    parsing.heads = _EmptyCache()
    repeated = 0
    for _ in range(300):
        stream = b"".join(_request(rng) for _ in range(rng.randint(1, 6)))
        cuts = sorted(rng.randrange(len(stream)) for _ in range(rng.choice([0, 0, 0, 1, 4])))
        ends = [0, *cuts, len(stream)]
        parts = [stream[a:b] for a, b in itertools.pairwise(ends) if a < b]
        if rng.random() < 0.5:  # like most clients: one request at a time
            parts = [_request(rng) for _ in range(5)]
        seen: list[list[tuple[Any, ...]]] = []
        for context in (caching, parsing):
            got: list[Request] = []
            parser = RequestParser(context, got.append, remote="r", certificate=None)
            for part in parts:
                repeated += context is caching and context.heads.get(part.partition(b"{")[0]) is not None
                parser.feed(part)
            seen.append([_said(request, request.call.request_id == "mine") for request in got])
            for request in got:
                request.release()
            parser.stop()
            assert context.buffered_bytes == 0
        assert seen[0] == seen[1]
    assert repeated > 100, "nothing was tested"


async def test_the_head_cache_is_bounded() -> None:
    """It holds no long head, and none with its own request ID."""
    context = _context()
    got: list[Request] = []
    parser = RequestParser(context, got.append, remote="", certificate=None)
    for i in range(HEADS_MAX * 2 + 5):
        parser.feed(b"GET /healthz HTTP/1.1\r\nHost: %d\r\n\r\n" % i)
    assert len(context.heads) <= HEADS_MAX
    before = len(context.heads)
    parser.feed(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Long: %b\r\n\r\n" % (b"y" * 2_000))
    parser.feed(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Request-Id: 1\r\n\r\n")
    assert len(context.heads) == before
    assert len({request.call.request_id for request in got}) == len(got)


def _read(*data: bytes) -> Request:
    """Return the request that a parser reads from these bytes, fed in slices."""
    context = _context()
    got: list[Request] = []
    parser = RequestParser(context, got.append, remote="", certificate=None)
    for one in data:
        for at in range(0, len(one), SLICE_BYTES):
            parser.feed(memoryview(one)[at : at + SLICE_BYTES])
    (request,) = got
    assert request.refusal is None
    return request


_ADD = b"POST /v1/queues/a/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


async def test_a_large_body_stays_in_blocks() -> None:
    """No buffer grows with it, which would copy it again and again."""
    body = random.Random(1).randbytes(8 << 20)
    request = _read(_ADD + b"Content-Length: %d\r\n\r\n" % len(body), body)
    assert request.body == b""
    assert max(map(len, request.parts)) <= BLOCK_PARTS * SLICE_BYTES
    assert len(request.parts) < 200  # blocks, and the parts behind the last one
    assert b"".join(request.parts) == body


async def test_a_body_in_tiny_chunks_takes_few_parts() -> None:
    """Each part is an object; one per byte would take many times the counted memory."""
    rng = random.Random(2)
    chunks = [rng.randbytes(rng.choice([1, 1, 1, 1, 50, 5_000])) for _ in range(2_000)]
    sent = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks)
    request = _read(_ADD + b"Transfer-Encoding: chunked\r\n\r\n", sent, b"0\r\n\r\n")
    body = b"".join(chunks)
    assert len(body) > JOINED_BYTES_MAX
    assert b"".join(request.parts) == body
    assert min(map(len, request.parts[1:-1])) >= PART_BYTES_MIN
    assert max(map(len, request.parts)) < BLOCK_PARTS * (SLICE_BYTES + PART_BYTES_MIN)


async def test_a_body_of_a_few_parts_is_joined() -> None:
    """It is small enough to be joined at once."""
    body = random.Random(3).randbytes(JOINED_BYTES_MAX)
    request = _read(_ADD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10], body[10:])
    assert (request.body, request.parts) == (body, ())
