"""The shares of polls over tenants of several shards: dealt out here, and answered where another shard dealt them."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.cluster.link import error_of
from tenantq.domain.message import Delivery
from tenantq.errors import Unavailable
from tenantq.http.fleet_poll import NOTHING_HERE, NOW_MS, FleetPoll
from tenantq.http.reply import Reply
from tenantq.http.request import Request
from tenantq.http.request_head import RequestHead
from tenantq.runtime.randomness import id_bytes
from tenantq.service.call import as_given
from tenantq.wire.json_bytes import bytes_of
from tenantq.wire.kinds import Problem
from tenantq.wire.messages import DeliveredItem, FleetPollRequest, PollReply

if TYPE_CHECKING:
    from tenantq.cluster.server import Asked
    from tenantq.http.passing import PassedOn, Passing
    from tenantq.http.reply import Stream
    from tenantq.service import Call

_MAY: Final = "may_poll"
_pack: Final = msgspec.msgpack.Encoder().encode


class _May(msgspec.Struct, frozen=True, array_like=True):
    """A question: which of these tenants a caller may not poll."""

    bearer: str | None
    certificate: Any
    queue: str
    tenants: list[str]


_decode_may: Final = msgspec.msgpack.Decoder(_May).decode
_decode_names: Final = msgspec.msgpack.Decoder(list[str]).decode


class FleetShares:
    """Deals fleet polls out to the shards, a different one first each time."""

    def __init__(self, passing: Passing) -> None:
        self.passing = passing
        self._turn = passing.number
        passing.peers.answers(_MAY, self._tell_refused)

    def poll(self, request: Request) -> FleetPoll:
        """Begin a poll of a client's."""
        self._turn += 1
        return FleetPoll(self.passing, request, self._turn)

    async def poll_for(self, call: Call, **wanted: Any) -> list[Delivery]:
        """Lease messages in tenants of all shards, for a call that came by another transport."""
        (route,) = self.passing.places.of_fleets
        body = msgspec.json.encode(FleetPollRequest(**wanted))
        request = Request(self.passing.listener, RequestHead(route=route), call, body)
        asking = self.poll(request)
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

    async def answer(self, answering: PassedOn, request: Request) -> Reply | Stream:
        """Lease this shard's share for a client of another one's. Who has no business here is no news, and leaves no trace."""
        service = self.passing.listener.service
        assert request.route is not None
        body: FleetPollRequest = request.route.decode(request.body)
        if body.tenants is None:
            principal = await service.admission.authenticator.authenticate(
                request.call.bearer, request.call.certificate
            )
            allowed = service.admission.authorizer.tenants_for(principal, "poll", body.queue)
            if allowed is not None and not any(name in service.shard.state.catalog.tenants for name in allowed):
                return NOTHING_HERE
        return await answering.answer_here(request)

    async def _refused(self, asked: _May) -> list[str]:
        """Return the tenants of this shard, of those named, that a caller may not poll. It leaves no trace: a share that is refused does."""
        admission = self.passing.listener.service.admission
        principal = await admission.authenticator.authenticate(asked.bearer, asked.certificate)
        misplaced = admission.residency.misplaced_now()
        return [
            name
            for name in asked.tenants
            if name in misplaced or not admission.authorizer.allowed(principal, name, "poll", asked.queue)
        ]

    async def _tell_refused(self, asked: Asked) -> bytes:
        may = _decode_may(asked.payload)
        return _pack(await self._refused(msgspec.structs.replace(may, certificate=as_given(may.certificate))))

    async def refused_on(self, shard: int, call: Call, queue: str, tenants: list[str]) -> list[str]:
        """Return the tenants of a shard that a caller may not poll; of one that does not run nothing is leased, so that nobody is refused there."""
        asked = _May(call.bearer, call.certificate, queue, tenants)
        if shard == self.passing.number:
            return await self._refused(asked)
        try:
            async with asyncio.timeout(NOW_MS / 1_000):
                return _decode_names(await self.passing.peers.ask(shard, _MAY, _pack(asked)))
        except (Unavailable, TimeoutError):
            return []


def _delivery(item: DeliveredItem) -> Delivery:
    """Return a leased message as the service hands it out."""
    return Delivery(
        id_bytes(item.id), item.receipt, bytes_of(item.body, item.body_base64, "body"), item.attempt, item.priority,
        item.attributes, item.group, item.added_at, item.lease_until, item.tenant, item.queue,
    )  # fmt: skip
