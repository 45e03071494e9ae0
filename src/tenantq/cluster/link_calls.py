"""Calls over links: of the shards of another process, and of the process itself."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from tenantq.cluster.error_codec import NotOwner
from tenantq.cluster.link import Link, PendingReply
from tenantq.cluster.remote_method import RemoteMethod
from tenantq.domain.message import Delivery
from tenantq.errors import TenantqError
from tenantq.service.call import Call

KIND: Final = "call"
"""How these requests are marked on a link."""

MEMBER: Final = -1
"""In place of a shard: the process itself."""


class LinkCalls:
    """Calls methods over links. If a call is cancelled, the owner stops to wait, and what it has leased goes back."""

    def __init__(
        self,
        methods: Mapping[str, RemoteMethod],
        release: Callable[[int, list[Delivery]], Awaitable[None]],
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Prepare. ``release`` releases messages of a shard."""
        self.methods = methods
        self._release = release
        self._background = background

    async def call(
        self, link: Link, shard: int, path: str, call: Call | None, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Return the result of a method; raise what it raised, ShardDown, or NotOwner if the call was not sent."""
        method = self.methods[path]
        payload = method.encode(shard, call, arguments, options)
        if not link.is_up:
            raise NotOwner(f"the server that has shard {shard} is out of reach. Try again later.")
        pending = link.begin(KIND, payload)
        try:
            return method.result(await asyncio.shield(pending.reply), pending)
        except asyncio.CancelledError:
            pending.stop(is_gone=not method.leases)
            if method.leases:
                self._background(self._release_reply(shard, method, pending))
            raise

    async def _release_reply(self, shard: int, method: RemoteMethod, pending: PendingReply) -> None:
        """Release what a call leases whose caller is gone."""
        await asyncio.wait([pending.reply])
        try:
            deliveries = method.result(pending.reply.result(), pending)
        except TenantqError:
            return  # it leased nothing, or its owner is gone
        await self._release(shard, deliveries or [])

    async def query(self, link: Link, path: str, *arguments: Any, timeout_ms: int) -> Any:
        """Return the answer of a process, which it gives from memory. Raises ShardDown."""
        method = self.methods[path]
        return method.result(await link.begin(KIND, self.encode_query(path, *arguments)).within(timeout_ms))

    def encode_query(self, path: str, *arguments: Any) -> bytes:
        """Return a query of a process as it travels."""
        return self.methods[path].encode(MEMBER, None, arguments, {})


class LinkedShard:
    """A shard at the other end of a link. See ``shard_calls.Place``."""

    def __init__(self, calls: LinkCalls, link: Link, shard: int, epoch: int = -1) -> None:
        """``epoch`` is the ownership that the caller knows of, where shards have owners."""
        self._calls = calls
        self._link = link
        self._shard = shard
        self._epoch = epoch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinkedShard) and (other._link, other._shard) == (self._link, self._shard)

    def __hash__(self) -> int:
        return hash((self._link, self._shard))

    async def call(self, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> Any:
        """Call a method of the shard. Raises NotOwner if the shard is not there and nothing was begun."""
        try:
            return await self._calls.call(self._link, self._shard, path, call, arguments, options)
        except NotOwner as error:
            error.epoch = self._epoch
            raise
