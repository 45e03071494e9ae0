"""A poll over tenants of several shards: each leases its share, and what nobody gets is given back."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import TenantqError, Unavailable
from tenantq.http.answering import pack
from tenantq.http.handlers.messages import NO_MESSAGES
from tenantq.http.inflate import inflate
from tenantq.http.problem import problem_reply
from tenantq.http.reply import Reply, json_reply
from tenantq.http.request import parse_query
from tenantq.shards.door import Asked
from tenantq.wire import DeliveredItem, FleetPollRequest, PollReply

if TYPE_CHECKING:
    from tenantq.http.passing import PassedOn, Passing
    from tenantq.http.reply import Stream
    from tenantq.http.request import Request
    from tenantq.shards.link import Question

log = logging.getLogger("tenantq.http")

NOTHING_HERE: Final = Reply(b"", 204)
"""What a shard answers where none of its tenants is the caller's business."""

SHARE: Final = 2
"""How a share is marked where it is passed on."""

_REFUSED: Final = 400
_DOWN: Final = 503
_decode_poll: Final = msgspec.json.Decoder(PollReply).decode
_encode: Final = msgspec.json.Encoder().encode


class FleetShares:
    """Deals fleet polls out to the shards, a different one first each time."""

    def __init__(self, passing: Passing) -> None:
        self.passing = passing
        self._turn = passing.number

    def poll(self, request: Request) -> FleetPoll:
        """Begin a poll of a client's."""
        self._turn += 1
        return FleetPoll(self.passing, request, self._turn)

    async def answer(self, answering: PassedOn, request: Request) -> Reply | Stream:
        """Lease this shard's share for a client of another one's. Who has no business here is no news, and leaves no trace."""
        service = self.passing.listener.service
        assert request.route is not None
        body: FleetPollRequest = request.route.decode(request.body)
        if body.tenants is None:
            principal = await service.gates.authenticator.authenticate(request.call.bearer, request.call.certificate)
            allowed = service.gates.authorizer.tenants_for(principal, "poll", body.queue)
            if allowed is not None and not any(name in service.shard.tenants_served() for name in allowed):
                return NOTHING_HERE
        return await answering.answer_here(request)


class _OwnShare:
    """This shard's own share, which is stopped like another's."""

    def __init__(self, passing: Passing, request: Request) -> None:
        self._asked = Asked(0, passing.number, "", b"")
        self.answer = asyncio.ensure_future(passing.answer_alone(request, self._asked, SHARE))

    def stop(self, *, is_gone: bool) -> None:  # noqa: ARG002  # what it leased is given back in any case
        """Wait no longer."""
        if self._asked.on_stop is not None:
            self._asked.on_stop()


class FleetPoll:
    """One poll: first every shard is asked in turn without waiting, then all of them wait; who delivers first ends it for all."""

    def __init__(self, passing: Passing, request: Request, turn: int) -> None:
        self._passing = passing
        self._request = request
        self._turn = turn
        self._max = 1
        self._asked: dict[int, Question | _OwnShare] = {}  # and not answered yet, or the answer not looked at

    async def reply(self) -> Reply | Stream:
        """Return what was leased, or nothing after the wait, or why the caller may have nothing."""
        request, passing = self._request, self._passing
        started_ms = passing.listener.clock.monotonic_ms()
        body: FleetPollRequest = await self._body()
        self._max = body.max
        shares = self._shares(body)
        count = len(passing.peers.links) + 1
        refusal: Reply | None = None
        left: list[int] = []
        for shard in sorted(shares, key=lambda one: (one - self._turn) % count):
            now = await self._ask_now(shard, msgspec.structs.replace(body, tenants=shares[shard], wait_ms=0))
            if _delivers(now):
                return await self._packed(now)
            if now.status >= _REFUSED:
                refusal = refusal if refusal is not None and now.status == _DOWN else now
            if now.status not in {NOTHING_HERE.status, _DOWN}:
                left.append(shard)
        if refusal is not None and (refusal.status != _DOWN or not left):
            return refusal
        if not left:  # nobody has anything for this caller: it is refused here, and that is noted
            return await passing.answer_alone(request)
        wait_ms = 0 if passing.listener.is_closing else body.wait_ms
        wait_ms -= passing.listener.clock.monotonic_ms() - started_ms
        if wait_ms <= 0:
            return NO_MESSAGES
        for shard in left:
            self._begin(shard, msgspec.structs.replace(body, tenants=shares[shard], wait_ms=wait_ms))
        return await self._first()

    def give_up(self) -> None:
        """Have nobody wait any longer: the client is gone."""
        for one in self._asked.values():
            one.stop(is_gone=True)

    async def end_now(self) -> Reply:
        """Have nobody wait any longer, and return what was leased by now."""
        for one in self._asked.values():
            one.stop(is_gone=False)
        replies: list[tuple[int, Reply]] = []
        for shard in list(self._asked):
            reply = await self._answer(shard)
            if _delivers(reply):
                replies.append((shard, reply))
        return await self._dealt(replies)

    async def _body(self) -> FleetPollRequest:
        request = self._request
        assert request.route is not None
        if request.encoding:
            listener = self._passing.listener
            request.body = await inflate(request.body, listener.settings.body_bytes_max, listener.holder(request))
            request.encoding = b""
        if request.raw_query:
            parse_query(request.raw_query, request.route.query)
        body: FleetPollRequest = request.route.decode(request.body)
        return body

    def _shares(self, body: FleetPollRequest) -> dict[int, list[str] | None]:
        """Return which shards are asked, and for which tenants each; those that nobody has are refused here."""
        directory, number = self._passing.peers.directory, self._passing.number
        if body.tenants is None:
            return dict.fromkeys(range(len(self._passing.peers.links) + 1))
        shares: dict[int, list[str] | None] = {}
        for name in body.tenants:
            shard = directory.find(name)
            if shard is None:
                directory.check_whole()
                shard = number
            named = shares.setdefault(shard, [])
            assert named is not None
            named.append(name)
        return shares or {number: []}

    def _begin(self, shard: int, body: FleetPollRequest) -> None:
        passing, encoded = self._passing, _encode(body)
        share = self._request.likeness(encoded)
        if shard == passing.number:
            self._asked[shard] = _OwnShare(passing, share)
        else:
            self._asked[shard] = passing.begin(share, shard, SHARE)

    async def _ask_now(self, shard: int, body: FleetPollRequest) -> Reply:
        try:
            self._begin(shard, body)
        except Unavailable as error:
            return problem_reply(error, self._request.call.request_id)
        return await self._answer(shard)

    async def _answer(self, shard: int) -> Reply:
        """Return a share's reply; a shard that stopped meanwhile answers that it is down."""
        one = self._asked[shard]
        await asyncio.wait([one.answer])  # not cancelled with whoever waits here: what it leases is not to be lost
        del self._asked[shard]
        try:
            if isinstance(one, _OwnShare):
                reply: Reply | Stream = one.answer.result()
            else:
                reply = self._passing.reply_of(self._request, shard, one, one.answer.result())
        except TenantqError as error:
            return problem_reply(error, self._request.call.request_id)
        assert isinstance(reply, Reply), "a poll is answered at once"
        return reply

    async def _first(self) -> Reply:
        """Return what comes first; the others wait no longer, and what they have leased meanwhile goes to the caller or back."""
        last: Reply = NO_MESSAGES
        while self._asked:
            futures = {one.answer: shard for shard, one in self._asked.items()}
            done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            replies: list[tuple[int, Reply]] = []
            for future in done:
                shard = futures[future]
                reply = await self._answer(shard)
                if _delivers(reply):
                    replies.append((shard, reply))
                elif reply.status >= _REFUSED and reply.status != _DOWN:
                    last = reply
            if replies:
                for one in self._asked.values():
                    one.stop(is_gone=False)
                for shard in list(self._asked):
                    reply = await self._answer(shard)
                    if _delivers(reply):
                        replies.append((shard, reply))
                return await self._dealt(replies)
        return last

    async def _dealt(self, replies: list[tuple[int, Reply]]) -> Reply:
        """Return up to as many messages as were asked for; give the rest back."""
        if not replies:
            return NO_MESSAGES
        if len(replies) == 1:
            return await self._packed(replies[0][1])
        messages: list[DeliveredItem] = []
        for shard, reply in replies:
            found = _decode_poll(reply.body).messages
            kept = max(0, self._max - len(messages))
            messages += found[:kept]
            if found[kept:]:
                await self._put_back(shard, found[kept:])
        return await self._packed(
            json_reply(PollReply(messages=messages, now_at=self._passing.listener.clock.wall_ms()))
        )

    async def _put_back(self, shard: int, messages: list[DeliveredItem]) -> None:
        leased: dict[tuple[str, str], list[str]] = {}
        for one in messages:
            leased.setdefault((one.tenant, one.queue), []).append(one.receipt)
        fellows = self._passing.listener.service.fellows
        assert fellows is not None
        try:
            await fellows.put_back(shard, leased)
        except TenantqError as error:
            log.warning("%d messages leased for nobody come back when their leases end: %s", len(messages), error)

    async def _packed(self, reply: Reply) -> Reply:
        request, listener = self._request, self._passing.listener
        if len(reply.body) >= listener.settings.gzip_min_bytes and request.accept_encoding:
            return await pack(request, reply)
        return reply


def _delivers(reply: Reply) -> bool:
    return reply.status == HTTPStatus.OK and reply.body != NO_MESSAGES.body
