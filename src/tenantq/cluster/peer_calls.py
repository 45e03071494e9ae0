"""Calls of methods on other shards: the same facet method, executed by the shard that owns the tenant.

Every public method of a registered object can be called. How its arguments and its result travel follows from its signature.
The owner authenticates, admits, executes and journals a call as if it had arrived there.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, get_type_hints

import msgspec

from tenantq.cluster.link import PendingReply
from tenantq.cluster.peer_server import PeerRequest
from tenantq.cluster.peers import READ_MS, Peers
from tenantq.cluster.value_codec import argument_builder, encode, result_decoder
from tenantq.domain.message import Delivery
from tenantq.errors import TenantqError, Unavailable
from tenantq.gates.turns import Turns
from tenantq.service.call import Call, as_given
from tenantq.service.problems import no_room
from tenantq.service.tenant_export import TenantExport

log = logging.getLogger("tenantq.shards")

KIND: Final = "call"
"""How these requests are marked on a link."""

HELD_BYTES_MAX: Final = 256 << 20
"""Bytes of calls of other shards that are executed at a time; one more is refused."""

_decode_call: Final = msgspec.msgpack.Decoder(tuple[str, Call | None, list[Any]]).decode
_decode_text: Final = msgspec.msgpack.Decoder(str).decode


def public_methods(facet: object) -> list[str]:
    """Return the names of an object's public methods."""
    kind = type(facet)
    return [name for name in vars(kind) if not name.startswith("_") and inspect.isfunction(getattr(kind, name))]


def facet_methods(facet: object) -> list[str]:
    """Return the methods of a facet that other shards call: those with a call, and those about one shard."""
    return [
        name
        for name in public_methods(facet)
        if name.endswith("_local") or "call" in inspect.signature(getattr(facet, name)).parameters
    ]


class RemoteMethod:
    """One method that other shards can call."""

    def __init__(self, path: str, method: Callable[..., Any]) -> None:
        """Prepare the method ``path``, which is ``method`` on this shard."""
        hints = get_type_hints(method, include_extras=True)
        signature = inspect.signature(method)
        signature = signature.replace(parameters=[one for one in signature.parameters.values() if one.name != "self"])
        self.path = path
        self.local = method
        self.takes_call = "call" in signature.parameters
        self.parameters = [name for name in signature.parameters if name != "call"]
        self.waits = "wait_ms" in self.parameters
        self._is_stream = hints["return"] is TenantExport
        self.leases = hints["return"] in {list[Delivery], list[Delivery] | None}
        self._signature = signature
        self._builders = [argument_builder(hints[name]) for name in self.parameters]
        self._positional = [
            name for name in self.parameters if signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._decode = _decode_text if self._is_stream else result_decoder(hints["return"])

    def encode(self, call: Call | None, arguments: tuple[Any, ...], options: dict[str, Any], *before: Any) -> bytes:
        """Return a call of this method as it travels, with values ``before`` it."""
        given = (call, *arguments) if self.takes_call else arguments
        bound = self._signature.bind(*given, **options)
        bound.apply_defaults()
        sent = msgspec.structs.replace(call, connection=None) if call is not None else None
        return encode((*before, self.path, sent, [bound.arguments[name] for name in self.parameters]))

    def arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments that have travelled: those by position, and those by name."""
        arguments = [
            value if build is None else build(value) for build, value in zip(self._builders, values, strict=True)
        ]
        count = len(self._positional)
        return arguments[:count], dict(zip(self.parameters[count:], arguments[count:], strict=True))

    async def execute(self, call: Call | None, values: list[Any]) -> Any:
        """Call the local method with arguments that have travelled."""
        arguments, options = self.arguments(values)
        result = self.local(*((call, *arguments) if self.takes_call else arguments), **options)
        return await result if inspect.isawaitable(result) else result

    def result(self, reply: bytes, pending: PendingReply | None = None) -> Any:
        """Return the result that a reply carries; ``pending`` is what the parts of an export are pulled from."""
        found = self._decode(reply)
        return RemoteExport(found, pending) if self._is_stream and pending is not None else found


class RemoteExport:
    """An export that another shard sends part by part. Close it in any case."""

    def __init__(self, tenant: str, pending: PendingReply) -> None:
        self.tenant = tenant
        self._pending = pending
        self._parts = pending.parts()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        """Stop the export."""
        self._pending.stop(is_gone=True)


class PeerCalls:
    """Calls methods on other shards, and executes their calls."""

    def __init__(self, peers: Peers, background: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.number = peers.number
        self._peers = peers
        self._background = background
        self._methods: dict[str, RemoteMethod] = {}
        self._held_bytes = 0
        self.turns: Turns | None = None  # in which calls of all transports begin; set before other shards can call
        peers.answers(KIND, self._answer)

    def register(self, name: str, facet: object, methods: Iterable[str] | None = None) -> None:
        """Let other shards call these methods of an object, as ``name.method``; None: all that are public."""
        for method in public_methods(facet) if methods is None else methods:
            path = f"{name}.{method}"
            self._methods[path] = RemoteMethod(path, getattr(facet, method))

    def method(self, path: str) -> RemoteMethod:
        """Return a registered method."""
        return self._methods[path]

    # ---- calling ----

    async def call(self, owner: int, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> Any:
        """Execute a method on another shard and return its result; raise what it raised, or ShardDown.

        If this call is cancelled, the owner stops to wait, and what it has leased goes back.
        """
        method = self._methods[path]
        pending = self.begin(owner, path, call, *arguments, **options)
        try:
            return method.result(await asyncio.shield(pending.reply), pending)
        except asyncio.CancelledError:
            self.abandon(owner, method, pending)
            raise

    def begin(self, owner: int, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> PendingReply:
        """Start a call on another shard."""
        return self._peers.begin(owner, KIND, self._methods[path].encode(call, arguments, options))

    def abandon(self, owner: int, method: RemoteMethod, pending: PendingReply) -> None:
        """Stop a call whose caller is gone, and release what it leases."""
        pending.stop(is_gone=not method.leases)
        if method.leases:
            self._background(self._release_reply(owner, method, pending))

    async def _release_reply(self, owner: int, method: RemoteMethod, pending: PendingReply) -> None:
        await asyncio.wait([pending.reply])
        try:
            deliveries = method.result(pending.reply.result(), pending)
        except TenantqError:
            return  # it leased nothing, or its shard is gone
        await self.release(owner, deliveries or [])

    async def release(self, owner: int, deliveries: list[Delivery]) -> None:
        """Release messages that were leased for a caller who is gone, on any shard."""
        if not deliveries:
            return
        leases = [msgspec.structs.replace(one, body=b"") for one in deliveries]
        if owner == self.number:
            self._methods["peer.release"].local(leases)
            return
        try:
            await self.query(owner, "peer.release", leases)
        except TenantqError as error:
            log.warning("%d undelivered messages stay leased until their leases expire: %s", len(leases), error)

    async def query(
        self, owner: int, path: str, /, *arguments: Any, timeout_ms: int | None = READ_MS, **options: Any
    ) -> Any:
        """Execute a method that takes no call on another shard; raise ShardDown if it does not answer in time."""
        method = self._methods[path]
        pending = self.begin(owner, path, None, *arguments, **options)
        return method.result(await pending.within(timeout_ms), pending)

    async def query_all(
        self, path: str, /, *arguments: Any, timeout_ms: int | None = READ_MS, **options: Any
    ) -> dict[int, Any | TenantqError]:
        """Execute a method that takes no call on all other shards; errors stand in place of results."""
        found = await asyncio.gather(
            *(self.query(owner, path, *arguments, timeout_ms=timeout_ms, **options) for owner in self._peers.links),
            return_exceptions=True,
        )
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, TenantqError):
                raise one
        return dict(zip(self._peers.links, found, strict=True))

    async def query_first(self, path: str, /, *arguments: Any, timeout_ms: int) -> Any:
        """Return the first result of another shard that is not None, or None if all are.

        Raise an error of a shard only if no other shard has a result.
        """
        failure: TenantqError | None = None
        asking = [
            asyncio.ensure_future(self.query(owner, path, *arguments, timeout_ms=timeout_ms))
            for owner in self._peers.links
        ]
        try:
            for next_one in asyncio.as_completed(asking):
                try:
                    if (found := await next_one) is not None:
                        return found
                except TenantqError as error:
                    failure = error
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if failure is not None:
            raise failure
        return None

    # ---- being called ----

    async def _answer(self, request: PeerRequest) -> bytes:
        """Execute a call of another shard, in its caller's turn."""
        path, call, values = _decode_call(request.payload)
        method = self._methods[path]
        if call is not None:
            call = msgspec.structs.replace(call, certificate=as_given(call.certificate), connection=request)
            await self._take_turn(call)
        size = len(request.payload)
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise no_room()
        self._held_bytes += size
        try:
            result = await execute(method, request, lambda: method.execute(call, values))
        finally:
            self._held_bytes -= size
        if isinstance(result, TenantExport):
            request.parts = result
            return encode(result.tenant)
        if method.leases and request.is_gone:
            await self.release(self.number, result or [])
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
