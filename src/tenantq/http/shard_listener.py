"""The listener of one of several shards: every shard takes every request, answers its own and passes on what is another's."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tenantq.errors import TenantqError
from tenantq.http.connection import HttpConnection
from tenantq.http.listener import HttpListener
from tenantq.http.passing import Passing, Sharing
from tenantq.http.problem import problem_reply
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.service.problems import fault
from tenantq.service.residency import MOVES_CONTENTS

if TYPE_CHECKING:
    from tenantq.cluster.peers import Peers
    from tenantq.http.reply import Reply, Stream
    from tenantq.http.request import Request
    from tenantq.service import Service

log = logging.getLogger("tenantq.http")


class PassingConnection(HttpConnection, Sharing):
    """A connection to one of several shards."""

    def __init__(self, listener: ShardListener) -> None:
        super().__init__(listener)
        self.passing = listener.passing
        self.places = listener.passing.places

    async def answer(self, request: Request) -> Reply | Stream:
        """Answer a request, or have the shard do so that it belongs to."""
        if request.refusal is not None:
            return await super().answer(request)
        passing = self.passing
        try:
            place = self.places.known(request)
            if place is None:
                place = await self.places.find(request)
            if place == passing.number:
                if request.route in self.places.of_fleets:
                    return await self._answer_fleet(request)
                if passing.peers.is_home and request.route in self.places.making_tenants:
                    return await passing.new_tenants.make(self, request)
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
        if request.route.interrupted is None and type(request.route) is not ProtocolRoute:
            return self.passing.reply_of(request, shard, question, await question.answer)
        if self._is_told_to_stop:
            question.stop(is_gone=False)
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
        asking.waits = not self._is_told_to_stop
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


class ShardListener(HttpListener):
    """The listener of one of several shards."""

    def __init__(self, service: Service, peers: Peers, *arguments: Any, **options: Any) -> None:
        super().__init__(service, *arguments, **options)
        self.passing = Passing(self, peers)

    def new_connection(self) -> HttpConnection:
        """Return what serves a connection."""
        return PassingConnection(self)

    def early_refusal(self, request: Request) -> TenantqError | None:
        """Refuse what a tenant of this shard may not do in its region; only to callers who may know it."""
        misplaced, tenant, route = self.service.admission.residency.misplaced, request.tenant, request.route
        if tenant in misplaced and tenant is not None and route is not None and route.action in MOVES_CONTENTS:
            try:
                self.service.admission.check_residency_early(request.call, tenant, route.action, request.queue or None)
            except TenantqError as refusal:
                return refusal
        return None
