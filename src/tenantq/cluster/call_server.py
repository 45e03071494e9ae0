"""The answering end of calls over links: executes calls of the shards of this process."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from tenantq.cluster.error_codec import NotOwner
from tenantq.cluster.link_calls import MEMBER
from tenantq.cluster.peer_server import PeerRequest
from tenantq.cluster.remote_method import RemoteMethod
from tenantq.cluster.shard_calls import Place
from tenantq.cluster.shard_thread import HostedExport
from tenantq.cluster.value_codec import encode
from tenantq.domain.message import Delivery
from tenantq.errors import Unavailable
from tenantq.gates.turns import Turns
from tenantq.service.call import Call, as_given
from tenantq.service.problems import no_room
from tenantq.service.tenant_export import TenantExport

HELD_BYTES_MAX: Final = 256 << 20
"""Bytes of calls of other processes that are executed at a time; one more is refused."""

_decode_call: Final = msgspec.msgpack.Decoder(tuple[int, str, Call | None, list[Any]]).decode


class ServedShard(Place, Protocol):
    """A shard of this process."""

    is_open: bool

    def not_owner(self) -> NotOwner:
        """Return the error for calls that came too late."""


class CallServer:
    """Answers the calls of other processes."""

    def __init__(
        self,
        methods: Mapping[str, RemoteMethod],
        queries: Mapping[str, object],
        find: Callable[[int], Awaitable[ServedShard]],
        release: Callable[[int, list[Delivery]], Awaitable[None]],
    ) -> None:
        """Prepare. ``queries`` are by name what answers for the process itself; ``find`` returns a shard or raises NotOwner."""
        self._methods = methods
        self._queries = queries
        self._find = find
        self._release = release
        self._held_bytes = 0
        self.turns: Turns | None = None  # in which calls of all transports begin; set before others can call

    async def answer(self, request: PeerRequest) -> bytes:
        """Execute a call, in its caller's turn."""
        shard, path, call, values = _decode_call(request.payload)
        method = self._methods[path]
        arguments, options = method.arguments(values)
        if shard == MEMBER:
            facet, _, name = path.partition(".")
            query = getattr(self._queries[facet], name)
            if not inspect.iscoroutinefunction(query):
                return encode(query(*arguments, **options))
            return encode(await execute(method, request, lambda: query(*arguments, **options)))
        if call is not None:
            call = msgspec.structs.replace(call, certificate=as_given(call.certificate), connection=request)
            await self._take_turn(call)
        place = await self._find(shard)
        size = len(request.payload)
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise no_room()
        self._held_bytes += size
        try:
            result = await execute(method, request, lambda: place.call(path, call, *arguments, **options))
        finally:
            self._held_bytes -= size
        if isinstance(result, TenantExport | HostedExport):
            request.parts = result
            return encode(result.tenant)
        if method.leases and request.is_gone:
            await self._release(shard, result or [])
        if method.waits and result == [] and not place.is_open:
            raise place.not_owner()  # a handover has ended the wait; it continues at the new owner
        return encode(result)

    async def _take_turn(self, call: Call) -> None:
        assert self.turns is not None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turns.enter(call.bearer, turn)
        await turn


async def execute(method: RemoteMethod, request: PeerRequest, begin: Callable[[], Awaitable[Any]]) -> Any:
    """Execute a call of another process. One that only waits ends when its caller is gone."""
    if not method.waits:
        return await begin()
    if request.is_stopped:
        raise Unavailable("the call was stopped before it began")
    work = asyncio.ensure_future(begin())
    request.on_stop = work.cancel
    try:
        return await work
    except asyncio.CancelledError:
        if not request.is_stopped:
            work.cancel()
            raise
        raise Unavailable("the call was stopped while it waited") from None
    finally:
        request.on_stop = None
