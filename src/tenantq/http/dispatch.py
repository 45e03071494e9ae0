"""Dispatch: passes one request to its handler and turns every error into a reply."""

from __future__ import annotations

import asyncio
import copy
import logging
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from tenantq.errors import TenantqError, WrongRegion
from tenantq.http.call_wait import CallWait
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
R = TypeVar("R", Reply, Stream, Reply | Stream)

COMPRESSED_AT_ONCE_BYTES: Final = 64 << 10
"""Larger replies are compressed off the event loop."""

UNJUDGED_BYTES_MAX: Final = 64 << 10
"""Larger or compressed bodies are decoded after the caller is authorized. For smaller ones the service authorizes the call."""

_REPLIES: Final = (Reply, Stream)


async def answer(request: Request, wait: CallWait) -> Reply | Stream:
    """Return the reply of a request, also for every error."""
    head, context, taken = request.head, request.context, 0
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
            return _with_owner(request, await route.serve(request, wait))
        is_large = len(request.body) > UNJUDGED_BYTES_MAX
        if is_large or request.parts or request.encoding:
            await authorize(request)
            taken = await context.large_bodies.enter(request.call.bearer, inflated_bytes_max(request))
            await unpack(request, route.items_max)
            is_large = len(request.body) > UNJUDGED_BYTES_MAX
        if head.raw_query or route.query is not None:
            request.query = parse_query(head.raw_query, route.query)
        body = await route.decode_large(request.body) if is_large else route.decode(request.body)
        if route.interrupted is None:
            result = await route.handler(context.service, request, body)
        else:
            if taken:
                context.large_bodies.leave(taken)
                taken = 0  # not while it waits
            result = await _answer_waiting(request, body, route.interrupted, wait)
        if isinstance(result, _REPLIES):
            reply = result
        elif asyncio.iscoroutine(result):
            reply = await result
        else:
            reply = NO_CONTENT if result is None else json_reply(result, route.statuses[0])
        if route.scope == "tenant" and context.service.other_shards.has_others:
            reply = _with_owner(request, reply)
        if isinstance(reply, Stream):
            return reply
        if len(reply.body) >= context.settings.gzip_min_bytes and head.accept_encoding:
            return await pack(request, reply)
    except TenantqError as error:
        forget_frames(error)
        reply = problem_reply(await visible_error(request, error), request.call.request_id)
        return _naming_owner(request, reply) if isinstance(error, WrongRegion) else reply
    except Exception:
        log.exception("internal error in request %s", request.call.request_id)
        return problem_reply(fault(), request.call.request_id)
    finally:
        if taken:
            context.large_bodies.leave(taken)
    return reply


def _with_owner(request: Request, reply: R) -> R:
    """Return a reply with the address of the shard that served it. Only callers who passed the gates learn it."""
    is_error = isinstance(reply, Reply) and reply.status >= HTTPStatus.MULTIPLE_CHOICES
    return reply if is_error else _naming_owner(request, reply)


def _naming_owner(request: Request, reply: R) -> R:
    """Return a reply with the address of the shard of the tenant or queue, if that is another server's."""
    shards = request.context.service.other_shards
    address = shards.owner_address(request.call, request.tenant, request.queue or None)
    if not address:
        return reply
    reply = copy.copy(reply)  # replies can be shared
    reply.headers += b"Tenantq-Shard: %b\r\n" % address.encode()
    return reply


async def _answer_waiting(request: Request, body: Any, instead: Reply, wait: CallWait) -> Any:
    """Answer a call that may wait. It does not wait, or stops waiting, once the connection is closing."""
    route, service = request.route, request.context.service
    assert route is not None
    if wait.is_stopped or request.context.is_closing:
        if route.query is None:
            body = msgspec.structs.replace(body, wait_ms=0)
        else:
            request.query = msgspec.structs.replace(request.query, wait_ms=0)
    if not (body if route.query is None else request.query).wait_ms:
        return await route.handler(service, request, body)
    return await wait.unless_stopped(route.handler(service, request, body), instead)


async def pack(request: Request, reply: Reply) -> Reply:
    """Compress a reply if the client accepts that and it gets smaller."""
    if not accepts_gzip(request.head.accept_encoding):
        return reply
    if len(reply.body) <= COMPRESSED_AT_ONCE_BYTES:
        return compressed(reply, compress(reply.body))
    return compressed(reply, await asyncio.to_thread(compress, reply.body))
