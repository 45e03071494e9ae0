"""Several shards behind one address: each takes every request, and passes on what is another's.

A request is read wholly, within the bounds of the shard that took it, and then handed over: so a slow client costs that shard a buffer and the
owner nothing. The owner authenticates, authorises, limits, executes and journals it as if it had come there.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tenantq.errors import Forbidden, Invalid, TenantqError, Unauthenticated
from tenantq.http.answering import Answering
from tenantq.http.connection import Connection
from tenantq.http.fleet_shares import SHARE, FleetShares
from tenantq.http.foreign_route import ForeignHead, ForeignRoute
from tenantq.http.inflate import inflate
from tenantq.http.intake import Intake
from tenantq.http.listener import Listener
from tenantq.http.problem import problem_reply
from tenantq.http.reply import Reply, Stream
from tenantq.http.request import Request
from tenantq.json_bytes import bytes_of
from tenantq.message import Delivery
from tenantq.randomness import id_bytes
from tenantq.service import Call
from tenantq.service.call import as_given
from tenantq.service.gatekeeper import MOVES_CONTENTS, own_tenant
from tenantq.service.problems import fault, no_room
from tenantq.shards.door import Asked
from tenantq.shards.layout import HOME
from tenantq.shards.link import error_of
from tenantq.wire import DeliveredItem, FleetPollRequest, PollReply, Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from tenantq.http.route import Route
    from tenantq.service import Service
    from tenantq.shards.link import Question
    from tenantq.shards.peers import Peers

log = logging.getLogger("tenantq.http")
_T = TypeVar("_T")

HEADER: Final = "Tenantq-Shard"
"""Of a reply to a request that was passed on: where its tenant's shard is reached without a detour."""

TENANTS_REMEMBERED_MAX: Final = 10_000
"""Credentials whose tenant is remembered, to know where their requests go; whether they hold is the owner's question each time."""

_OF_ALL: Final = frozenset((
    "/v1/tenants", "/v1/erasures", "/v1/erasures/{id}", "/v1/audit", "/v1/platform/keys", "/v1/platform/keys/{key_id}",
    "/v1/backups", "/metrics",
))  # fmt: skip
_ANYWHERE: Final = frozenset(("/healthz", "/readyz", "/openapi.json", "/docs", "/v1/topology"))
_FLEET_PATH: Final = "/v1/poll"
_REDIRECTED: Final = 300

BY_TENANT, BY_CREDENTIAL, AT_HOME, HERE, FLEET = range(5)
"""How it is found out which shard a request belongs to."""

NORMAL: Final = 0
MAKE: Final = 1
CHANGE: Final = 3
"""What is meant by passing a request on: answer it; make this tenant; change it if it is there. SHARE, 2, is to lease this shard's share of a fleet poll."""

_KIND: Final = "http"
_encode: Final = msgspec.msgpack.Encoder().encode


def scope_of(route: Route) -> int:
    """Return how the shard is found that a route's requests belong to."""
    path = route.path
    if "{tenant}" in path:
        return BY_TENANT
    if path in _OF_ALL:
        return AT_HOME
    if path in _ANYWHERE:
        return HERE
    return FLEET if path == _FLEET_PATH else BY_CREDENTIAL


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
    foreign: ForeignHead | None = None  # where another protocol is spoken


class _Answered(msgspec.Struct, frozen=True, array_like=True):
    """A reply on its way back."""

    status: int
    kind: bytes
    headers: bytes
    body: bytes


_decode_passed: Final = msgspec.msgpack.Decoder(_Passed).decode
_decode_answered: Final = msgspec.msgpack.Decoder(_Answered).decode


class PlacedIntake(Intake):
    """Refuses, before the body is read, what a tenant of this shard may not do where it is; only to those who may know it."""

    __slots__ = ()

    def _route(self, request: Request, method: bytes) -> None:
        super()._route(request, method)
        gates = self._listener.service.gates
        tenant, route = request.tenant, request.route
        if gates.misplaced and tenant in gates.misplaced and route is not None and route.action in MOVES_CONTENTS:
            gates.check_early(request.call, tenant, route.action, request.queue or None)


class Passing:
    """Knows which shard a request belongs to, and hands it over."""

    def __init__(self, listener: ShardListener, peers: Peers) -> None:
        self.listener = listener
        self.peers = peers
        self.number = peers.number
        self._directory = peers.directory
        self._numbers = {route: number for number, route in enumerate(listener.router.routes)}
        self._scopes = {route: scope_of(route) for route in listener.router.routes}
        self._tenant_of: dict[str, str] = {}  # by bearer
        self._making: dict[str, asyncio.Lock] = {}
        self._lines = [
            f"{HEADER}: {one.address}\r\n".encode() if one.address else b"" for one in peers.seat.topology.shards
        ]
        self.fleet = FleetShares(self)
        peers.answers(_KIND, self._answer_asked)

    # ---- where to ----

    def place_now(self, request: Request) -> int | None:
        """Return the shard that a request belongs to, FLEET's being told by ``is_fleet``; None: it takes a question."""
        assert request.route is not None
        scope = self._scopes[request.route]
        if scope == BY_TENANT:
            assert request.tenant is not None
            return self._running(request.tenant)
        if scope == BY_CREDENTIAL:
            bearer = request.call.bearer
            tenant = self._tenant_of.get(bearer) if bearer is not None else None
            return None if tenant is None else self._running(tenant)
        return HOME if scope == AT_HOME else self.number

    def is_fleet(self, request: Request) -> bool:
        """Tell whether a request is about tenants of several shards."""
        assert request.route is not None
        return self._scopes[request.route] == FLEET

    def _running(self, tenant: str) -> int | None:
        shard = self._directory.find(tenant)
        return shard if shard is not None and self._directory.is_known(shard) else None

    async def place(self, request: Request) -> int:
        """Return the shard that a request belongs to where that is not known at once; ShardDown, if that does not run.

        Only somebody with a good credential is told so: whether a name is a tenant of that shard or nobody's is alike then.
        """
        if self._makes_tenant(request) and self._directory.is_known(HOME):
            return HOME
        tenant = await self._own_tenant(request.call)
        if tenant is None:
            return self.number  # where it is refused
        if request.tenant is not None:
            self._directory.check_whole()  # else it may be a tenant of a shard that does not run
            named = self._directory.find(request.tenant)
            if named is not None:  # it came back just now
                return named
        shard = self._directory.find(tenant)
        if shard is None:
            self._directory.check_whole()
            return self.number
        if request.tenant is None:
            self._directory.check_reachable(tenant)
        return shard if self._directory.is_known(shard) else self.number

    def _makes_tenant(self, request: Request) -> bool:
        assert request.route is not None
        return request.route.action == "put_tenant"

    async def _own_tenant(self, call: Call) -> str | None:
        """Return the tenant of a credential; None: it is none, or not of one tenant."""
        authenticator = self.listener.service.gates.authenticator
        try:
            bearer = self.listener.service.gates.unproved_bearer(call.bearer)  # only to know where it is proved
            principal = await authenticator.authenticate(bearer, call.certificate)
        except (Unauthenticated, Forbidden):
            return None
        tenant = own_tenant(principal)
        if call.bearer is not None:
            if len(self._tenant_of) >= TENANTS_REMEMBERED_MAX:
                self._tenant_of.clear()
            self._tenant_of[call.bearer] = tenant
        return tenant

    def has(self, tenant: str | None) -> bool:
        """Tell whether a tenant is this shard's."""
        return tenant is not None and self._directory.find(tenant) == self.number

    def is_here(self, tenant: str | None, bearer: str | None) -> bool:
        """Tell whether it is known already that a call that came by another transport is this shard's own."""
        name = tenant if tenant is not None else self._tenant_of.get(bearer or "")
        return name is not None and self._directory.find(name) == self.number

    async def shard_for(self, tenant: str | None, call: Call) -> int:
        """Return the shard of a tenant, None: of the credential's own, for a call that came by another transport; ShardDown."""
        named = tenant
        if named is not None and self._directory.find(named) is None:
            self._directory.check_whole()
            named = None  # it is refused where the credential's own tenant is
        name = named if named is not None else self._tenant_of.get(call.bearer or "") or await self._own_tenant(call)
        shard = self._directory.find(name) if name is not None else None
        if shard is None or name is None:
            return self.number
        self._directory.check_reachable(name)
        return shard

    async def fleet_poll(self, call: Call, **wanted: Any) -> list[Delivery]:
        """Lease messages in tenants of all shards, for a call that came by another transport."""
        request = Request(self.listener, call)
        request.route = next(route for route, scope in self._scopes.items() if scope == FLEET)
        request.body = msgspec.json.encode(FleetPollRequest(**wanted))
        asking = self.fleet.poll(request)
        try:
            reply = await asking.reply()
        except BaseException:
            asking.give_up()
            raise
        assert isinstance(reply, Reply), "a poll is answered at once"
        if reply.status != HTTPStatus.OK:
            problem = msgspec.json.decode(reply.body, type=Problem)
            raise error_of(problem.code, problem.detail, problem.retry_after_ms or 0)
        return [_delivery(one) for one in msgspec.json.decode(reply.body, type=PollReply).messages]

    # ---- passing on ----

    def begin(self, request: Request, shard: int, how: int = NORMAL, body: bytes | None = None) -> Question:
        """Hand a request over to another shard."""
        call = request.call
        assert request.route is not None
        passed = _Passed(
            self._numbers[request.route], request.tenant, request.queue, request.name, request.raw_query,
            request.encoding, request.accept_encoding, call.bearer, call.certificate, call.remote, call.request_id,
            call.user_agent, how, request.body if body is None else body, request.foreign,
        )  # fmt: skip
        return self.peers.links[shard].begin(_KIND, _encode(passed))

    def reply_of(self, request: Request, shard: int, question: Question, answer: bytes) -> Reply | Stream:
        """Return the other shard's reply as this one sends it."""
        answered = _decode_answered(answer)
        headers = answered.headers
        assert request.route is not None
        if answered.status < _REDIRECTED and self._scopes[request.route] in {BY_TENANT, BY_CREDENTIAL}:
            headers += self._lines[shard]  # only who passed the gates is told that there is such a tenant, and where
        if not question.has_parts:
            return Reply(answered.body, answered.status, answered.kind, headers)
        if request.head_only:
            question.stop(is_gone=True)
            return Stream(_nothing(), answered.kind, headers)
        return Stream(question.parts(), answered.kind, headers)

    async def answer_alone(self, request: Request, asked: Asked | None = None, how: int = NORMAL) -> Reply | Stream:
        """Answer a request on this shard, in a task of its own."""
        return await PassedOn(self, asked or Asked(0, self.number, _KIND, b"")).answer_as(request, how)

    async def make(self, maker: Sharing, request: Request) -> Reply | Stream:
        """Have a tenant made, or changed by who has it; one after the other of a name, here on the shard that says where it goes."""
        name = request.tenant
        assert name is not None
        lock = self._making.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                shard = self._directory.find(name)
                if shard is None or not self._directory.is_known(shard):
                    await self._check_whole_for(request)
                    shard = self._directory.find(name)
                is_there = shard is not None
                if shard is None:
                    shard = self._place_of(name, await self._regions_of(request))
                if shard == self.number:
                    return await (maker.answer_here(request) if is_there else maker.make_here(request))
                question = self.begin(request, shard, CHANGE if is_there else MAKE)
                return self.reply_of(request, shard, question, await question.answer)
        finally:
            if not lock.locked():
                self._making.pop(name, None)

    async def _check_whole_for(self, request: Request) -> None:
        """Raise ShardDown, to somebody who may make tenants, while an unknown name may be a tenant of a silent shard."""
        if self._directory.silent:
            gates = self.listener.service.gates
            await self._regions_of(request)
            assert request.route is not None
            request.route.decode(request.body)  # as its owner would, first of all
            principal = await gates.identify(request.call, "put_tenant")
            gates.check(request.call, principal, request.tenant or "", "put_tenant", None)
            self._directory.check_whole()

    def _place_of(self, name: str, regions: tuple[str, ...]) -> int:
        try:
            return self._directory.place(name, regions)
        except Invalid:
            return self.number  # whose gates let the caller know, if it may

    async def _regions_of(self, request: Request) -> tuple[str, ...]:
        """Return the regions that a new tenant names; none where the body makes no sense, for which the owner refuses it."""
        if request.encoding:
            settings = self.listener.settings
            request.body = await inflate(request.body, settings.body_bytes_max, self.listener.holder(request))
            request.encoding = b""
        try:
            given = msgspec.json.decode(request.body or b"{}")
        except msgspec.DecodeError:
            return ()
        regions = given.get("regions") if isinstance(given, dict) else None
        return tuple(one for one in regions if type(one) is str) if isinstance(regions, list) else ()

    async def tell(self, request: Request) -> None:
        """Return once the other shards know of a tenant that was made."""
        name = request.tenant
        if name is not None and self.has(name):
            await self.peers.tell_made(name)

    # ---- what others pass on ----

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
        request = Request(self.listener, call)
        request.route = self.listener.router.routes[passed.route]
        request.tenant, request.queue, request.name = passed.tenant, passed.queue, passed.name
        request.raw_query, request.body = passed.raw_query, passed.body
        request.encoding, request.accept_encoding = passed.encoding, passed.accept_encoding
        request.foreign = passed.foreign
        reply = await self.answer_alone(request, asked, passed.how)
        if isinstance(reply, Stream):
            asked.parts = reply.parts
            return _encode(_Answered(200, reply.kind, reply.headers, b""))
        return _encode(_Answered(reply.status, reply.kind, reply.headers, reply.body))


class Sharing(Answering):
    """Whoever answers requests on one of several shards."""

    passing: Passing

    async def answer_here(self, request: Request) -> Reply | Stream:
        """Answer a request that is this shard's own."""
        reply = await Answering.answer(self, request)
        if request.route is not None and request.route.action == "put_tenant":
            await self.passing.tell(request)
        return reply

    async def make_here(self, request: Request) -> Reply | Stream:
        """Answer a request that makes a tenant on this shard, or changes it."""
        name, fellows = request.tenant, self._listener.service.fellows
        assert name is not None
        assert fellows is not None
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
        self._asked.on_stop = self._stop
        try:
            turn: asyncio.Future[None] = listener.loop.create_future()
            listener.turns.enter(request.call.bearer, turn)
            await turn
            if how == SHARE:
                return await self.passing.fleet.answer(self, request)
            if request.route is not None and request.route.action == "put_tenant":
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
            return await passing.make(self, request)
        if passing.has(request.tenant):
            return await self.answer_here(request)
        question = passing.begin(request, HOME)
        return passing.reply_of(request, HOME, question, await question.answer)

    def _stop(self) -> None:
        """Answer now, if it only waits."""
        if not self._is_told_to_stop:
            self._is_told_to_stop = True
            if self._waits:
                self._task.cancel()

    async def unless_told_to_stop(self, work: Awaitable[_T], instead: _T) -> _T:
        """Return what comes of work that may wait; at once, where it was told to stop before it began."""
        if self._is_told_to_stop:
            if asyncio.iscoroutine(work):
                work.close()
            return instead
        return await super().unless_told_to_stop(work, instead)


class PassingConnection(Connection, Sharing):
    """A connection to one of several shards."""

    reads_with = PlacedIntake

    def __init__(self, listener: ShardListener) -> None:
        super().__init__(listener)
        self.passing = listener.passing

    async def answer(self, request: Request) -> Reply | Stream:
        """Answer a request, or have the shard do so that it belongs to."""
        if request.refusal is not None:
            return await super().answer(request)
        passing = self.passing
        try:
            place = passing.place_now(request)
            if place is None:
                place = await passing.place(request)
            if place == passing.number:
                if passing.is_fleet(request):
                    return await self._answer_fleet(request)
                if passing.peers.is_home and request.route is not None and request.route.action == "put_tenant":
                    return await passing.make(self, request)
                return await self.answer_here(request)
            return await self._pass_on(request, place)
        except TenantqError as error:
            return problem_reply(error, request.call.request_id)
        except Exception:
            log.exception("a fault in request %s", request.call.request_id)
            return problem_reply(fault(), request.call.request_id)

    async def _pass_on(self, request: Request, shard: int) -> Reply | Stream:
        """Have another shard answer. A call that waits is given up there too when its client is gone, and cut short when told to stop."""
        assert request.route is not None
        question = self.passing.begin(request, shard)
        if request.route.interrupted is None and type(request.route) is not ForeignRoute:
            return self.passing.reply_of(request, shard, question, await question.answer)
        self._waits = True
        try:
            answer = await asyncio.shield(question.answer)
        except asyncio.CancelledError:
            if self._is_lost or not self._is_told_to_stop:
                question.stop(is_gone=True)
                raise
            self._task.uncancel()
            question.stop(is_gone=False)
            answer = await question.answer
        finally:
            self._waits = False
        return self.passing.reply_of(request, shard, question, answer)

    async def _answer_fleet(self, request: Request) -> Reply | Stream:
        asking = self.passing.fleet.poll(request)
        self._waits = True
        try:
            return await asking.reply()
        except asyncio.CancelledError:
            if self._is_lost or not self._is_told_to_stop:
                asking.give_up()
                raise
            self._task.uncancel()
            return await asking.end_now()
        except Exception:
            asking.give_up()
            raise
        finally:
            self._waits = False


class ShardListener(Listener):
    """The listener of one of several shards."""

    def __init__(self, service: Service, peers: Peers, *arguments: Any, **options: Any) -> None:
        super().__init__(service, *arguments, **options)
        self.passing = Passing(self, peers)

    def _new_connection(self) -> Connection:
        return PassingConnection(self)


def _delivery(item: DeliveredItem) -> Delivery:
    """Return a leased message as the service hands it out."""
    return Delivery(
        id_bytes(item.id), item.receipt, bytes_of(item.body, item.body_base64, "body"), item.attempt, item.priority,
        item.attributes, item.group, item.added_at, item.lease_until, item.tenant, item.queue,
    )  # fmt: skip


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield  # which makes it a generator
