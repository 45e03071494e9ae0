"""Answering one request: what is asked of the service, and what every error becomes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from tenantq.errors import TenantqError
from tenantq.http.foreign_route import ForeignRoute
from tenantq.http.inflate import inflate
from tenantq.http.problem import problem_reply
from tenantq.http.reply import Reply, Stream, accepts_gzip, compress, compressed
from tenantq.http.request import parse_query
from tenantq.service.problems import fault

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tenantq.http.listener import Listener
    from tenantq.http.request import Request

log = logging.getLogger("tenantq.http")
_T = TypeVar("_T")

COMPRESSED_AT_ONCE_BYTES: Final = 64 << 10
"""More than this is compressed off the event loop."""


class Answering:
    """Whoever has one task that answers requests, one after the other."""

    _task: asyncio.Task[None]

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._waits = False  # the request that the task is at work on may wait for long
        self._is_told_to_stop = False
        self._is_lost = False  # nobody reads the answer

    async def answer(self, request: Request) -> Reply | Stream:
        """Ask the service; every error becomes a reply."""
        route, listener = request.route, self._listener
        if request.refusal is not None:
            return problem_reply(request.refusal, request.call.request_id)
        try:
            assert route is not None
            if type(route) is ForeignRoute:
                return await route.serve(request, self)
            if request.encoding:
                request.body = await inflate(request.body, listener.settings.body_bytes_max, listener.holder(request))
            if request.raw_query or route.query is not None:
                request.query = parse_query(request.raw_query, route.query)
            body = route.decode(request.body)
            if route.interrupted is None:
                reply = await route.handler(listener.service, request, body)
            else:
                work = route.handler(listener.service, request, body)
                reply = await self.unless_told_to_stop(work, route.interrupted)
            if isinstance(reply, Stream):
                return reply
            if len(reply.body) >= listener.settings.gzip_min_bytes and request.accept_encoding:
                return await pack(request, reply)
        except TenantqError as error:
            return problem_reply(error, request.call.request_id)
        except Exception:
            log.exception("a fault in request %s", request.call.request_id)
            return problem_reply(fault(), request.call.request_id)
        return reply

    async def unless_told_to_stop(self, work: Awaitable[_T], instead: _T) -> _T:
        """Return what comes of ``work`` that may wait: given up when the client is gone, and cut short when the listener closes."""
        self._waits = True
        try:
            return await work
        except asyncio.CancelledError:
            if self._is_lost or not self._is_told_to_stop:
                raise
            return instead
        finally:
            self._waits = False
            if self._is_told_to_stop:
                self._task.uncancel()


async def pack(request: Request, reply: Reply) -> Reply:
    """Compress a reply where the client wants it and it pays."""
    if not accepts_gzip(request.accept_encoding):
        return reply
    if len(reply.body) <= COMPRESSED_AT_ONCE_BYTES:
        return compressed(reply, compress(reply.body))
    return compressed(reply, await asyncio.to_thread(compress, reply.body))
