"""Dispatch: passes one request to its handler and turns every error into a reply."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from tenantq.errors import TenantqError, WrongRegion
from tenantq.http.context import HttpContext
from tenantq.http.early_checks import authorize, visible_error
from tenantq.http.inflate import inflated_bytes_max, unpack
from tenantq.http.problem import problem_reply
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.query import parse_query
from tenantq.http.reply import NO_CONTENT, Reply, Stream, accepts_gzip, compress, compressed, json_reply
from tenantq.http.request import Request
from tenantq.runtime.log_context import served_request
from tenantq.service.problems import fault, forget_frames

log = logging.getLogger("tenantq.http")
_T = TypeVar("_T")
R = TypeVar("R", Reply, Stream, Reply | Stream)

COMPRESSED_AT_ONCE_BYTES: Final = 64 << 10
"""Larger replies are compressed off the event loop."""


UNJUDGED_BYTES_MAX: Final = 64 << 10
"""Larger or compressed bodies are decoded after the caller is authorized. For smaller ones the service authorizes the call."""

_ANSWERS: Final = (Reply, Stream)


class Dispatch:
    """A connection with one task that answers its requests in order."""

    _task: asyncio.Task[None]

    def __init__(self, context: HttpContext) -> None:
        self.context = context
        self._waits = False  # the current request may wait for long
        self._is_told_to_stop = False
        self._is_lost = False  # the client is gone

    async def answer(self, request: Request) -> Reply | Stream:
        """Return the reply of a request, also for every error."""
        head, context, taken = request.head, self.context, 0
        route = head.route
        served_request.set(request.call)
        try:
            if request.refusal is not None:
                if isinstance(request.refusal, WrongRegion):
                    await authorize(request)  # the owner of the tenant refuses the call too, and journals that
                raise request.refusal  # noqa: TRY301  # it is treated as those that are found here
            assert route is not None
            if type(route) is ProtocolRoute:
                if request.parts:
                    taken = await context.large_bodies.enter(request.call.bearer, inflated_bytes_max(request))
                    await unpack(request, route.items_max)
                    context.large_bodies.leave(taken)
                    taken = 0  # a protocol limits what it decodes, and may wait
                return self._with_owner(request, await route.serve(request, self))
            if len(request.body) > UNJUDGED_BYTES_MAX or request.parts or request.encoding:
                await authorize(request)
                taken = await context.large_bodies.enter(request.call.bearer, inflated_bytes_max(request))
                await unpack(request, route.items_max)
            is_large = len(request.body) > UNJUDGED_BYTES_MAX
            if head.raw_query or route.query is not None:
                request.query = parse_query(head.raw_query, route.query)
            body = await route.decode_large(request.body) if is_large else route.decode(request.body)
            if route.interrupted is None:
                answer = await route.handler(context.service, request, body)
            else:
                if taken:
                    context.large_bodies.leave(taken)
                    taken = 0  # not while it waits
                answer = await self._answer_waiting(request, body, route.interrupted)
            if isinstance(answer, _ANSWERS):
                reply = answer
            elif asyncio.iscoroutine(answer):
                reply = await answer
            else:
                reply = NO_CONTENT if answer is None else json_reply(answer, route.statuses[0])
            if route.scope == "tenant" and context.service.other_shards.has_others:
                reply = self._with_owner(request, reply)
            if isinstance(reply, Stream):
                return reply
            if len(reply.body) >= context.settings.gzip_min_bytes and head.accept_encoding:
                return await pack(request, reply)
        except TenantqError as error:
            forget_frames(error)
            reply = problem_reply(await visible_error(request, error), request.call.request_id)
            return self._naming_owner(request, reply) if isinstance(error, WrongRegion) else reply
        except Exception:
            log.exception("internal error in request %s", request.call.request_id)
            return problem_reply(fault(), request.call.request_id)
        finally:
            if taken:
                context.large_bodies.leave(taken)
        return reply

    def _with_owner(self, request: Request, reply: R) -> R:
        """Return a reply with the address of the shard that served it. Only callers who passed the gates learn it."""
        is_error = isinstance(reply, Reply) and reply.status >= HTTPStatus.MULTIPLE_CHOICES
        return reply if is_error else self._naming_owner(request, reply)

    def _naming_owner(self, request: Request, reply: R) -> R:
        """Return a reply with the address of the shard of the tenant or queue, if that is another server's."""
        shards = self.context.service.other_shards
        address = shards.owner_address(request.call, request.tenant, request.queue or None)
        if not address:
            return reply
        reply = copy.copy(reply)  # replies can be shared
        reply.headers += b"Tenantq-Shard: %b\r\n" % address.encode()
        return reply

    async def _answer_waiting(self, request: Request, body: Any, instead: Reply) -> Any:
        """Answer a call that may wait. It does not wait, or stops waiting, once the connection is closing."""
        route, service = request.route, self.context.service
        assert route is not None
        if self._is_told_to_stop or self.context.is_closing:
            if route.query is None:
                body = msgspec.structs.replace(body, wait_ms=0)
            else:
                request.query = msgspec.structs.replace(request.query, wait_ms=0)
        if not (body if route.query is None else request.query).wait_ms:
            return await route.handler(service, request, body)
        return await self.unless_stopped(route.handler(service, request, body), instead)

    def stop_waiting(self) -> None:
        """Answer the current call now if it is waiting. Later calls do not wait."""
        if not self._is_told_to_stop:
            self._is_told_to_stop = True
            if self._waits:
                self._task.cancel()

    async def unless_stopped(self, work: Awaitable[_T], instead: _T) -> _T:
        """Return the result of work that may wait. It is cancelled if the client leaves, and ended early by ``stop_waiting``."""
        was_told = self._is_told_to_stop
        if was_told:
            if asyncio.iscoroutine(work):
                work.close()
            return instead
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
    """Compress a reply if the client accepts that and it gets smaller."""
    if not accepts_gzip(request.head.accept_encoding):
        return reply
    if len(reply.body) <= COMPRESSED_AT_ONCE_BYTES:
        return compressed(reply, compress(reply.body))
    return compressed(reply, await asyncio.to_thread(compress, reply.body))
