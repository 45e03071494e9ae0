"""New tenants of several shards: the first one says where each goes, and has it made there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import Invalid
from tenantq.http.dispatch import judge
from tenantq.http.inflate import unpack

if TYPE_CHECKING:
    from tenantq.http.passing import Passing, Sharing
    from tenantq.http.reply import Reply, Stream
    from tenantq.http.request import Request


MAKE: Final = 1
CHANGE: Final = 3
"""How a request is passed on that makes a tenant, or changes one if it is there."""


class NewTenants:
    """Places them, one after the other of a name."""

    def __init__(self, passing: Passing) -> None:
        self._passing = passing
        self._directory = passing.peers.directory
        self._making: dict[str, asyncio.Lock] = {}

    async def make(self, maker: Sharing, request: Request) -> Reply | Stream:
        """Have a tenant made, or changed by who has it; one after the other of a name, here on the shard that says where it goes."""
        name = request.tenant
        assert name is not None
        await judge(request)
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
                if shard == self._directory.number:
                    return await (maker.answer_here(request) if is_there else maker.make_here(request))
                question = self._passing.begin(request, shard, CHANGE if is_there else MAKE)
                return self._passing.reply_of(request, shard, question, await question.answer)
        finally:
            if not lock.locked():
                self._making.pop(name, None)

    async def _check_whole_for(self, request: Request) -> None:
        """Raise ShardDown, to somebody who may make tenants, while an unknown name may be a tenant of a silent shard."""
        if self._directory.silent:
            await self._regions_of(request)
            assert request.route is not None
            request.route.decode(request.body)  # as its owner would, first of all
            self._directory.check_whole()

    def _place_of(self, name: str, regions: tuple[str, ...]) -> int:
        try:
            return self._directory.place(name, regions)
        except Invalid:
            return self._directory.number  # whose gates let the caller know, if it may

    async def _regions_of(self, request: Request) -> tuple[str, ...]:
        """Return the regions that a new tenant names; none where the body makes no sense, for which the owner refuses it."""
        await unpack(request)
        try:
            given = msgspec.json.decode(request.body or b"{}")
        except msgspec.DecodeError:
            return ()
        regions = given.get("regions") if isinstance(given, dict) else None
        return tuple(one for one in regions if type(one) is str) if isinstance(regions, list) else ()

    async def tell(self, request: Request) -> None:
        """Return once the other shards know of a tenant that was made."""
        name = request.tenant
        if name is not None and self._passing.places.has(name):
            await self._passing.peers.tell_made(name)
