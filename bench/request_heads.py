"""Reading one request, with and without the cache of parsed heads."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from bench.table import Table
from tenantq.http import HttpListener
from tenantq.http.request import Request
from tenantq.http.request_head import HeadCache
from tenantq.http.request_parser import RequestParser

if TYPE_CHECKING:
    from pathlib import Path

_BODY = b'{"messages":[{"body":"' + b"x" * 100 + b'"}]}'
_REQUEST = (
    b"POST /v1/queues/mails/messages HTTP/1.1\r\nHost: 127.0.0.1:7070\r\nUser-Agent: tenantq\r\n"
    b"Authorization: Bearer tq_0123456789abcdef_0123456789abcdef0123456789abcdef\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
_REPEATS = 20


class _NoCache(HeadCache):
    """Keeps no head."""

    def add(self, data: bytes, head: object) -> None:
        del data, head


class _NoService:
    status = SimpleNamespace(durability="fsync")
    admission = SimpleNamespace(residency=SimpleNamespace(misplaced=frozenset()))


async def run(directory: Path, *, quick: bool) -> None:  # noqa: ARG001  # all sections are called alike
    times = 2_000 if quick else 20_000
    table = Table("heads", "us/request")
    for name, cache in (("cached", HeadCache()), ("parsed", _NoCache())):
        context = HttpListener(cast("Any", _NoService())).context
        context.heads = cache
        parser = RequestParser(context, Request.release, remote="127.0.0.1", certificate=None)
        best = float("inf")
        for _ in range(_REPEATS):
            started = time.thread_time()
            for _ in range(times):
                parser.feed(_REQUEST)
            best = min(best, time.thread_time() - started)
        table.row(name, f"{best / times * 1e6:.2f}")
    table.show()
