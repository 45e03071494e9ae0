"""One poll over tenants of several shards: each leases its share, and what nobody gets is given back."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.cluster.server import Asked
from tenantq.domain import limits
from tenantq.errors import TenantqError, Unavailable
from tenantq.http.dispatch import pack
from tenantq.http.handlers.messages import NO_MESSAGES
from tenantq.http.inflate import unpack
from tenantq.http.problem import problem_reply
from tenantq.http.query import parse_query
from tenantq.http.reply import Reply, json_reply
from tenantq.http.request import Request
from tenantq.service.fellows import Fellows
from tenantq.service.fleet_poll import wrong_tenants
from tenantq.wire.messages import DeliveredItem, FleetPollRequest, PollReply

if TYPE_CHECKING:
    from tenantq.cluster.link import Question
    from tenantq.http.passing import Passing
    from tenantq.http.reply import Stream

log = logging.getLogger("tenantq.http")

NOTHING_HERE: Final = Reply(b"", 204)
"""What a shard answers where none of its tenants is the caller's business."""

SHARE: Final = 2
"""How a share is marked where it is passed on."""

NOW_MS: Final = 500
"""So long a shard may take to say what it has now, or what it had leased when told to stop; then it is late, and nobody waits for it."""

_REFUSED: Final = 400
_NOT_NOW: Final = frozenset((HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE))
_decode_poll: Final = msgspec.json.Decoder(PollReply).decode
_encode: Final = msgspec.json.Encoder().encode


class _OwnShare:
    """This shard's own share, which is stopped like another's."""

    def __init__(self, passing: Passing, request: Request) -> None:
        self._asked = Asked(0, passing.number, "", b"")
        self.answer = asyncio.ensure_future(passing.answer_alone(request, self._asked, SHARE))

    def stop(self, *, is_gone: bool) -> None:  # noqa: ARG002  # what it leases is put back by who asked
        """Wait no longer."""
        self._asked.stop()


class FleetPoll:
    """One poll: first every shard is asked in turn without waiting, then all of them wait; who delivers first ends it for all.

    What was leased and does not reach the caller goes back, in the background, however the poll ends.
    """

    def __init__(self, passing: Passing, request: Request, turn: int) -> None:
        self.waits = True  # for as long as the client asks for; else for nothing
        self._passing = passing
        self._request = request
        self._turn = turn
        self._max = 1
        self._until_ms = 0
        self._asked: dict[int, Question | _OwnShare] = {}  # and not answered yet, or the answer not looked at
        self._late: set[int] = set()  # of these, who was asked for what there is now
        self._delivered: list[tuple[int, Reply]] = []  # leased, and not on its way to the caller

    async def reply(self) -> Reply | Stream:
        """Return what was leased, or nothing after the wait, or why the caller may have nothing."""
        reply = await self._ask_all()
        if not self._delivered:
            self.give_up()
            return reply
        return await self._dealt()

    def give_up(self) -> None:
        """Have nobody wait any longer, and give back what was leased: the client is gone, or has its answer."""
        asked, self._asked = self._asked, {}
        delivered, self._delivered = self._delivered, []
        for one in asked.values():
            one.stop(is_gone=False)
        if asked or delivered:
            self._passing.listener.service.admission.in_background(self._return(asked, delivered))

    async def end_now(self) -> Reply:
        """Have nobody wait any longer, and return what was leased by now."""
        for one in self._asked.values():
            one.stop(is_gone=False)
        try:
            if self._asked:
                await asyncio.wait([one.answer for one in self._asked.values()], timeout=NOW_MS / 1_000)
            for shard in [shard for shard, one in self._asked.items() if one.answer.done()]:
                self._take(shard)
            return await self._dealt()
        except asyncio.CancelledError:
            self.give_up()
            raise

    async def _body(self) -> FleetPollRequest:
        request = self._request
        assert request.route is not None
        await unpack(request)
        if request.head.raw_query:
            parse_query(request.head.raw_query, request.route.query)
        body: FleetPollRequest = request.route.decode(request.body)
        if body.tenants is not None and not 1 <= len(body.tenants) <= limits.FLEET_TENANTS_MAX:
            raise wrong_tenants()
        return body

    async def _ask_all(self) -> Reply | Stream:
        """Ask who calls, once, and the shards; what they deliver is noted, and anything else is the reply."""
        passing, call = self._passing, self._request.call
        started_ms = passing.listener.clock.monotonic_ms()
        await passing.listener.service.admission.identify(call, "poll")
        body = await self._body()
        self._max, self._until_ms = body.max, started_ms + body.wait_ms
        shares = self._shares(body)
        if body.tenants is not None and len(shares) > 1:
            refusal = await self._refusal(body, body.tenants, shares)
            if refusal is not None or self._delivered:
                return refusal or NO_MESSAGES
        not_now: Reply | None = None
        left: list[int] = []
        has_nothing = False
        for shard in self._in_turn(shares):
            now = await self._ask_now(shard, msgspec.structs.replace(body, tenants=shares[shard], wait_ms=0))
            if self._delivered or (now is not None and _is_refusal(now)):
                return now or NO_MESSAGES
            if now is None:
                self._late.add(shard)
            elif now.status in _NOT_NOW:
                not_now = now
            else:
                has_nothing = has_nothing or now.status == HTTPStatus.OK
            if now is not None and now.status not in {NOTHING_HERE.status, HTTPStatus.SERVICE_UNAVAILABLE}:
                left.append(shard)
        if not left and not self._asked:  # nobody has anything for this caller: it is refused here, and that is noted
            return not_now or await passing.answer_alone(self._request)
        if self._wait_ms() <= 0:
            return NO_MESSAGES if not_now is None or has_nothing or self._asked else not_now
        for shard in left:
            self._begin_waiting(shard, body, shares)
        return await self._first(body, shares)

    def _in_turn(self, shares: dict[int, list[str] | None]) -> list[int]:
        count = len(self._passing.peers.links) + 1
        return sorted(shares, key=lambda one: (one - self._turn) % count)

    def _wait_ms(self) -> int:
        listener = self._passing.listener
        return 0 if listener.is_closing or not self.waits else self._until_ms - listener.clock.monotonic_ms()

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
        return shares

    async def _refusal(
        self, body: FleetPollRequest, tenants: list[str], shares: dict[int, list[str] | None]
    ) -> Reply | None:
        """Return what the shard of the first tenant says that this caller may not poll, before any shard leases anything."""
        fleet, call = self._passing.fleet, self._request.call
        found = await asyncio.gather(
            *(fleet.refused_on(shard, call, body.queue, names or []) for shard, names in shares.items())
        )
        refused = {name for names in found for name in names}
        first = next((name for name in tenants if name in refused), None)
        if first is None:
            return None
        shard = next(shard for shard, names in shares.items() if first in (names or ()))
        said = await self._ask_now(shard, msgspec.structs.replace(body, tenants=[first], wait_ms=0))
        late = Unavailable(f"shard {shard} takes long to answer. Try again later.")
        return said or problem_reply(late, call.request_id)

    def _begin(self, shard: int, body: FleetPollRequest) -> None:
        passing, encoded = self._passing, _encode(body)
        head = msgspec.structs.replace(self._request.head, encoding=b"", accept_encoding=b"", raw_query=b"")
        share = Request(passing.listener, head, self._request.call, encoded)
        if shard == passing.number:
            self._asked[shard] = _OwnShare(passing, share)
        else:
            self._asked[shard] = passing.begin(share, shard, SHARE)

    def _begin_waiting(self, shard: int, body: FleetPollRequest, shares: dict[int, list[str] | None]) -> None:
        wait_ms = self._wait_ms()
        if wait_ms > 0:
            try:
                self._begin(shard, msgspec.structs.replace(body, tenants=shares[shard], wait_ms=wait_ms))
            except Unavailable as error:
                log.debug("a fleet waits without shard %d: %s", shard, error)

    async def _ask_now(self, shard: int, body: FleetPollRequest) -> Reply | None:
        """Return what a shard says at once; None: it is late."""
        try:
            self._begin(shard, body)
        except Unavailable as error:
            return problem_reply(error, self._request.call.request_id)
        # Not cancelled with whoever waits here: what it leases is not to be lost.
        done, _ = await asyncio.wait([self._asked[shard].answer], timeout=NOW_MS / 1_000)
        return self._take(shard) if done else None

    def _take(self, shard: int) -> Reply:
        """Return a share's reply, and note what it delivers; a shard that stopped meanwhile answers that it is down."""
        reply = self._reply_of(shard, self._asked.pop(shard))
        if _delivers(reply):
            self._delivered.append((shard, reply))
        return reply

    def _reply_of(self, shard: int, one: Question | _OwnShare) -> Reply:
        try:
            if isinstance(one, _OwnShare):
                reply: Reply | Stream = one.answer.result()
            else:
                reply = self._passing.reply_of(self._request, shard, one, one.answer.result())
        except TenantqError as error:
            return problem_reply(error, self._request.call.request_id)
        assert isinstance(reply, Reply), "a poll is answered at once"
        return reply

    async def _first(self, body: FleetPollRequest, shares: dict[int, list[str] | None]) -> Reply:
        """Wait until somebody delivers, or refuses; or until the wait is over, which a shard that does not answer cannot make longer."""
        not_now: Reply | None = None
        has_waited = False
        while self._asked and not self._delivered:
            futures = {one.answer: shard for shard, one in self._asked.items()}
            wait_s = (max(0, self._wait_ms()) + NOW_MS) / 1_000
            done, _ = await asyncio.wait(futures, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return NO_MESSAGES
            for shard in [futures[future] for future in done]:
                reply = self._take(shard)
                if _is_refusal(reply):
                    return reply
                if reply.status in _NOT_NOW:
                    not_now = reply
                elif shard in self._late and reply.status == HTTPStatus.OK and not self._delivered:
                    self._begin_waiting(shard, body, shares)
                else:
                    has_waited = True
                self._late.discard(shard)
        return NO_MESSAGES if has_waited or not_now is None else not_now

    async def _dealt(self) -> Reply:
        """Return up to as many messages as were asked for, of what was delivered; what is beyond that, or comes later, goes back."""
        if not self._delivered:
            self.give_up()
            return NO_MESSAGES
        dealt = self._delivered[0][1]
        if len(self._delivered) > 1:
            messages: list[DeliveredItem] = []
            beyond: list[tuple[int, Reply]] = []
            for shard, reply in self._delivered:
                found = _decode_poll(reply.body).messages
                kept = max(0, self._max - len(messages))
                messages += found[:kept]
                if found[kept:]:
                    beyond.append((shard, json_reply(PollReply(messages=found[kept:]))))
            dealt = json_reply(PollReply(messages=messages, now_at=self._passing.listener.clock.wall_ms()))
        else:
            beyond = []
        packed = await self._packed(dealt)
        self._delivered = beyond
        self.give_up()
        return packed

    async def _return(self, asked: dict[int, Question | _OwnShare], delivered: list[tuple[int, Reply]]) -> None:
        """Give back what was delivered, and what those who were told to stop deliver yet."""
        for shard, reply in delivered:
            await self._put_back(shard, reply)
        for shard, one in asked.items():
            await asyncio.wait([one.answer])
            reply = self._reply_of(shard, one)
            if _delivers(reply):
                await self._put_back(shard, reply)

    async def _put_back(self, shard: int, reply: Reply) -> None:
        messages = _decode_poll(reply.body).messages
        leased: dict[tuple[str, str], list[str]] = {}
        for one in messages:
            leased.setdefault((one.tenant, one.queue), []).append(one.receipt)
        fellows = self._passing.listener.service.other_shards
        assert isinstance(fellows, Fellows)
        try:
            await fellows.put_back(shard, leased)
        except TenantqError as error:
            log.warning("%d messages leased for nobody come back when their leases end: %s", len(messages), error)

    async def _packed(self, reply: Reply) -> Reply:
        request, listener = self._request, self._passing.listener
        if len(reply.body) >= listener.settings.gzip_min_bytes and request.head.accept_encoding:
            return await pack(request, reply)
        return reply


def _delivers(reply: Reply) -> bool:
    return reply.status == HTTPStatus.OK and reply.body != NO_MESSAGES.body


def _is_refusal(reply: Reply) -> bool:
    """Tell whether a reply says that this caller may have nothing, not just that there is nothing now."""
    return reply.status >= _REFUSED and reply.status not in _NOT_NOW
