"""Who carries a request to the shard that it belongs to, and its answer back.

A request is read wholly, within the bounds of the shard that took it, and then handed over: so a slow client costs that shard a buffer and the
owner nothing. The owner authenticates, authorises, limits, executes and journals it as if it had come there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.cluster.layout import HOME
from tenantq.cluster.server import Asked
from tenantq.errors import TenantqError
from tenantq.http.dispatch import Dispatch
from tenantq.http.fleet_poll import SHARE
from tenantq.http.fleet_shares import FleetShares
from tenantq.http.new_tenants import CHANGE, MAKE, NewTenants
from tenantq.http.places import Places
from tenantq.http.problem import problem_reply
from tenantq.http.reply import Reply, Stream
from tenantq.http.request import Request
from tenantq.http.request_head import RequestHead
from tenantq.service import Call
from tenantq.service.call import as_given
from tenantq.service.fellows import Fellows
from tenantq.service.problems import no_room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.cluster.link import Question
    from tenantq.cluster.peers import Peers
    from tenantq.http.listener import HttpListener

HEADER: Final = "Tenantq-Shard"
"""Of a reply to a request that was passed on: where its tenant's shard is reached without a detour."""

NORMAL: Final = 0
"""What is meant by passing a request on: answer it. Otherwise MAKE, SHARE or CHANGE."""

_REDIRECTED: Final = 300
_KIND: Final = "http"
_encode: Final = msgspec.msgpack.Encoder().encode


class _Passed(msgspec.Struct, frozen=True, array_like=True):
    """A request on its way to another shard."""

    route: int
    tenant: str | None
    queue: str
    name: str
    raw_query: bytes
    encoding: bytes
    accept_encoding: bytes
    bearer: str | None
    certificate: Any
    remote: str
    request_id: str
    user_agent: str
    how: int
    body: bytes
    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    is_secure: bool


class _Answered(msgspec.Struct, frozen=True, array_like=True):
    """A reply on its way back."""

    status: int
    kind: bytes
    headers: bytes
    body: bytes


_decode_passed: Final = msgspec.msgpack.Decoder(_Passed).decode
_decode_answered: Final = msgspec.msgpack.Decoder(_Answered).decode


class Passing:
    """Hands requests over to other shards, and answers those that they hand over."""

    def __init__(self, listener: HttpListener, peers: Peers) -> None:
        self.listener = listener
        self.peers = peers
        self.number = peers.number
        self.places = Places(listener.router.routes, peers.directory, listener.service.admission)
        self._numbers = {route: number for number, route in enumerate(listener.router.routes)}
        self._lines = [
            f"{HEADER}: {one.address}\r\n".encode() if one.address else b"" for one in peers.spec.topology.shards
        ]
        self.fleet = FleetShares(self)
        self.new_tenants = NewTenants(self)
        peers.answers(_KIND, self._answer_asked)

    def begin(self, request: Request, shard: int, how: int = NORMAL, body: bytes | None = None) -> Question:
        """Hand a request over to another shard."""
        call = request.call
        assert request.route is not None
        passed = _Passed(
            self._numbers[request.route], request.tenant, request.queue, request.name, request.head.raw_query,
            request.encoding, request.head.accept_encoding, call.bearer, call.certificate, call.remote, call.request_id,
            call.user_agent, how, request.body if body is None else body, request.head.method,
            request.head.target, request.head.headers, request.head.is_secure,
        )  # fmt: skip
        return self.peers.links[shard].begin(_KIND, _encode(passed))

    def reply_of(self, request: Request, shard: int, question: Question, answer: bytes) -> Reply | Stream:
        """Return the other shard's reply as this one sends it."""
        answered = _decode_answered(answer)
        headers = answered.headers
        if answered.status < _REDIRECTED and request.route in self.places.of_one_tenant:
            headers += self._lines[shard]  # only who passed the gates is told that there is such a tenant, and where
        if not question.has_parts:
            return Reply(answered.body, answered.status, answered.kind, headers)
        if request.head.head_only:
            question.stop(is_gone=True)
            return Stream(_nothing(), answered.kind, headers)
        return Stream(question.parts(), answered.kind, headers)

    async def answer_alone(self, request: Request, asked: Asked | None = None, how: int = NORMAL) -> Reply | Stream:
        """Answer a request on this shard, in a task of its own."""
        return await PassedOn(self, asked or Asked(0, self.number, _KIND, b"")).answer_as(request, how)

    async def _answer_asked(self, asked: Asked) -> bytes:
        passed = _decode_passed(asked.payload)
        call = Call(
            bearer=passed.bearer,
            certificate=as_given(passed.certificate),
            remote=passed.remote,
            request_id=passed.request_id,
            user_agent=passed.user_agent,
            connection=asked,  # each of them comes from a connection that waits for its answer
        )
        head = RequestHead(
            route=self.listener.router.routes[passed.route],
            tenant=passed.tenant,
            queue=passed.queue,
            name=passed.name,
            raw_query=passed.raw_query,
            encoding=passed.encoding,
            accept_encoding=passed.accept_encoding,
            method=passed.method,
            target=passed.target,
            headers=passed.headers,
            is_secure=passed.is_secure,
        )
        request = Request(self.listener, head, call, passed.body)
        reply = await self.answer_alone(request, asked, passed.how)
        if isinstance(reply, Stream):
            asked.parts = reply.parts
            return _encode(_Answered(200, reply.kind, reply.headers, b""))
        return _encode(_Answered(reply.status, reply.kind, reply.headers, reply.body))


class Sharing(Dispatch):
    """Whoever answers requests on one of several shards."""

    passing: Passing

    async def answer_here(self, request: Request) -> Reply | Stream:
        """Answer a request that is this shard's own."""
        reply = await Dispatch.answer(self, request)
        if request.route in self.passing.places.making_tenants:
            await self.passing.new_tenants.tell(request)
        return reply

    async def make_here(self, request: Request) -> Reply | Stream:
        """Answer a request that makes a tenant on this shard, or changes it."""
        name, fellows = request.tenant, self._listener.service.other_shards
        assert name is not None
        assert isinstance(fellows, Fellows)
        self.passing.peers.directory.learn_own(name)
        with fellows.making(name):
            return await self.answer_here(request)


class PassedOn(Sharing):
    """One request that another shard has passed on."""

    def __init__(self, passing: Passing, asked: Asked) -> None:
        super().__init__(passing.listener)
        self.passing = passing
        self._asked = asked
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    async def answer_as(self, request: Request, how: int) -> Reply | Stream:
        """Answer it in its caller's turn."""
        listener = self._listener
        if not listener.hold(request, len(request.body)):
            return problem_reply(no_room(), request.call.request_id)
        self._asked.on_stop = self.stop_waiting
        if self._asked.is_stopped:
            self.stop_waiting()
        try:
            turn: asyncio.Future[None] = listener.loop.create_future()
            listener.turns.enter(request.call.bearer, turn)
            await turn
            if how == SHARE:
                return await self.passing.fleet.answer(self, request)
            if request.route in self.passing.places.making_tenants:
                return await self._put_tenant(request, how)
            return await self.answer_here(request)
        except TenantqError as error:
            return problem_reply(error, request.call.request_id)
        finally:
            self._asked.on_stop = None
            listener.release(request)

    async def _put_tenant(self, request: Request, how: int) -> Reply | Stream:
        """Make a tenant only on the word of the first shard: whoever passed this on may not have known that it is gone, or whose it is."""
        passing = self.passing
        if how == MAKE:
            return await self.make_here(request)
        if (
            how == CHANGE
        ):  # one that was deleted meanwhile is not made here again: the first shard says where the next one goes
            return await self.answer_here(request)
        if passing.peers.is_home:
            return await passing.new_tenants.make(self, request)
        if passing.places.has(request.tenant):
            return await self.answer_here(request)
        question = passing.begin(request, HOME)
        return passing.reply_of(request, HOME, question, await question.answer)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield  # which makes it a generator
