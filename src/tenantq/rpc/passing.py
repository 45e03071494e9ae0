"""Calls for tenants of other shards: handed over as they came, and answered as the other shard answered."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from capnp import KjException

from tenantq.errors import Invalid, TenantqError
from tenantq.rpc.methods import METHODS
from tenantq.rpc.passed_reply import PassedReply
from tenantq.rpc.replies import write_error
from tenantq.rpc.schema import SCHEMA
from tenantq.service import Call
from tenantq.service.call import as_given
from tenantq.service.fellows import Fellows
from tenantq.service.problems import problem_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.cluster.link import Question
    from tenantq.cluster.peers import Peers
    from tenantq.cluster.server import Asked
    from tenantq.domain.message import Delivery
    from tenantq.rpc.listener import RpcListener
    from tenantq.rpc.methods import Method

log = logging.getLogger("tenantq.rpc")

_KIND: Final = "rpc"
_FLEET: Final = "fleetPoll"
_POLL: Final = "poll"
_TRAVERSAL_WORDS: Final = 1 << 27
_encode: Final = msgspec.msgpack.Encoder().encode
_NAMES: Final = {id(method): name for name, method in METHODS.items()}
_STRUCTS: Final = {
    name: tuple(
        getattr(SCHEMA, kind.node.displayName.rpartition(":")[2]) for kind in (found.param_type, found.result_type)
    )
    for name, found in SCHEMA.Session.schema.methods.items()
}
"""What each call is asked with, and answered with."""


class Places(Protocol):
    """What knows which shard a call belongs to, whatever it came by."""

    def is_here(self, tenant: str | None, bearer: str | None) -> bool:
        """Tell whether it is known already that a call is this shard's own."""

    async def shard_for(self, tenant: str | None, call: Call) -> int:
        """Return the shard of a tenant, None: of the credential's own; ShardDown."""


class _Passed(msgspec.Struct, frozen=True, array_like=True):
    method: str
    request: bytes
    bearer: str | None
    certificate: Any
    remote: str
    request_id: str
    user_agent: str


_decode_passed: Final = msgspec.msgpack.Decoder(_Passed).decode


class RpcPassing:
    """Passes calls on."""

    def __init__(
        self,
        listener: RpcListener,
        peers: Peers,
        places: Places,
        poll_fleet: Callable[..., Awaitable[list[Delivery]]],
    ) -> None:
        """Pass calls on to where ``places`` says; ``poll_fleet`` leases messages in tenants of all shards."""
        self._listener = listener
        self._peers = peers
        self._places = places
        self._poll_fleet = poll_fleet
        peers.answers(_KIND, self._answer)

    def keep(self, method: Method, arguments: dict[str, Any], bearer: str | None, params: Any) -> bytes | None:
        """Return a request as it came, in case that it has to be passed on; None: it is this shard's own."""
        name = _NAMES.get(id(method))
        if name is None or (name != _FLEET and self._places.is_here(arguments.get("tenant"), bearer)):
            return None
        kept: bytes = params.as_builder().to_bytes()
        return kept

    async def ask(self, method: Method, kept: bytes, call: Call, arguments: dict[str, Any]) -> Any:
        """Have whoever has the tenant answer."""
        name = _NAMES[id(method)]
        if name == _FLEET:
            return await self._poll_fleet(call, **arguments)
        tenant = arguments.get("tenant")
        shard = await self._places.shard_for(tenant, call)
        if shard == self._peers.number:
            return await method.facet_method(self._listener.service)(call, **arguments)
        passed = _Passed(
            name, kept, call.bearer, call.certificate, call.remote, call.request_id, call.user_agent
        )  # fmt: skip
        question = self._peers.links[shard].begin(_KIND, _encode(passed))
        try:
            answer = await asyncio.shield(question.answer)
        except asyncio.CancelledError:
            question.stop(is_gone=name != _POLL)
            if name == _POLL:
                self._listener.service.admission.in_background(self._return(shard, question))
            raise
        with _STRUCTS[name][1].from_bytes(answer, traversal_limit_in_words=_TRAVERSAL_WORDS) as answered:
            return PassedReply(answered.to_dict())

    async def _return(self, shard: int, question: Question) -> None:
        """Give back what was leased for a poll that nobody waits for any more."""
        leased: dict[tuple[str, str], list[str]] = {}
        fellows = self._listener.service.other_shards
        assert isinstance(fellows, Fellows)
        await asyncio.wait([question.answer])
        try:
            with _STRUCTS[_POLL][1].from_bytes(
                question.answer.result(), traversal_limit_in_words=_TRAVERSAL_WORDS
            ) as answered:
                for one in answered.messages:
                    leased.setdefault((one.tenant, one.queue), []).append(one.receipt)
            if leased:
                await fellows.put_back(shard, leased)
        except TenantqError as error:
            log.debug("what a poll through shard %d leased comes back when its leases end: %s", shard, error)

    async def _answer(self, asked: Asked) -> bytes:
        passed = _decode_passed(asked.payload)
        method, (request, reply) = METHODS[passed.method], _STRUCTS[passed.method]
        call = Call(
            bearer=passed.bearer,
            certificate=as_given(passed.certificate),
            remote=passed.remote,
            request_id=passed.request_id,
            user_agent=passed.user_agent,
            connection=asked,
        )
        results = reply.new_message()
        try:
            with request.from_bytes(passed.request, traversal_limit_in_words=_TRAVERSAL_WORDS) as params:
                arguments = method.read(params)
            turn: asyncio.Future[None] = self._listener.loop.create_future()
            self._listener.turns.enter(passed.bearer, turn)
            await turn
            value = await self._unless_stopped(
                method, asked, method.facet_method(self._listener.service)(call, **arguments)
            )
            method.write(results, value, _Writer(self._listener))
        except TenantqError as error:
            results = reply.new_message()
            write_error(results, problem_of(error, passed.request_id))
        except KjException:
            write_error(results, problem_of(Invalid("the request cannot be read"), passed.request_id))
        written: bytes = results.to_bytes()
        return written

    @staticmethod
    async def _unless_stopped(method: Method, asked: Asked, work: Awaitable[Any]) -> Any:
        """Return what comes of a call; what is told instead, if it only waits and is told to stop. An answer there is in any case."""
        if not method.waits:
            return await work
        task = asyncio.current_task()
        assert task is not None
        is_stopped = False

        def stop() -> None:
            nonlocal is_stopped
            if not is_stopped:
                is_stopped = True
                task.cancel()

        asked.on_stop = stop
        try:
            return await work
        except asyncio.CancelledError:
            if not is_stopped:
                raise
            task.uncancel()
            return method.interrupted
        finally:
            asked.on_stop = None


class _Writer:
    """What stands for the connection where a reply is written that goes to another shard first."""

    def __init__(self, listener: RpcListener) -> None:
        self.listener = listener
