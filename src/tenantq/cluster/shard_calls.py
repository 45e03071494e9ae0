"""Calls of methods of shards, wherever the shards are: in this process, or in another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tenantq.cluster.error_codec import NotOwner, shard_down
from tenantq.domain.message import Delivery
from tenantq.errors import ShardDown, TenantMoved, TenantqError, no_tenant
from tenantq.runtime.clock import Clock
from tenantq.service.call import Call
from tenantq.service.part_export import PieceStream

_R = TypeVar("_R")
log = logging.getLogger("tenantq.shards")

HOLD_MS: Final = 6_000
"""How long a call waits for a tenant on its way to another shard, or a shard on its way to another member.

A takeover takes up to 4 seconds.
"""

HELD_MAX: Final = 10_000
"""Calls that wait for a shard at a time; one more is refused."""

RETRY_MS: Final = 25
"""How long a held call waits at most before it looks for its shard again."""

QUICK_MS: Final = 5_000
"""Timeout of queries that a shard answers from memory."""

READ_MS: Final = 60_000
"""Timeout of queries for which a shard has to read or to count."""


class Place(Protocol):
    """Where a shard is."""

    def call(self, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> Awaitable[Any]:
        """Call a method of the shard. It raises NotOwner if the shard is not there and nothing was begun."""


class LocalShards(Protocol):
    """Finds shards of this process."""

    on_change: Callable[[], None]  # called after a shard has opened or closed

    def thread(self, shard: int) -> Place | None:
        """Return a shard of this process; None: another process has it, or nobody."""


class RemotePlaces(Protocol):
    """Finds shards of other processes."""

    def place(self, shard: int) -> Place | None:
        """Return where another process has a shard; None: not known, or not reachable."""

    def learn(self, error: NotOwner) -> None:
        """Take note of what a process said about a shard that it does not own."""


class ShardCalls:
    """Calls shards from the main event loop. A call that has not begun follows its shard to another process."""

    def __init__(self, host: LocalShards, clock: Clock, count: int, hold_ms: int = HOLD_MS) -> None:
        """Prepare calls of ``count`` shards. ``hold_ms`` 0: shards stay in their processes, and calls wait for tenants only."""
        self.host = host
        self.count = count
        self.hold_ms = hold_ms
        self.remote: RemotePlaces | None = None
        self.region: str | None = None  # of this server; None: the cluster has no regions
        self.unserved: Callable[[int], str] = lambda _: ""  # the region of a shard if no server of that region runs
        self.find: Callable[[str, str | None], int | None] = lambda _, __: (
            None
        )  # the shard of a queue, by the directory
        self.refresh: Callable[[], Coroutine[Any, Any, None]] = _nothing  # reads what has changed in the directory
        self._refreshing: asyncio.Future[None] | None = None
        self._clock = clock
        self._held = 0
        self._change = asyncio.get_running_loop().create_future()
        host.on_change = self.notify

    def notify(self) -> None:
        """Let held calls look for their shards again."""
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        change.set_result(None)

    def _place(self, shard: int) -> Place | None:
        return self.host.thread(shard) or (self.remote.place(shard) if self.remote is not None else None)

    def is_reachable(self, shard: int) -> bool:
        """Return whether a shard is here, or at a process that can be reached."""
        return self._place(shard) is not None

    async def call(self, owner: int, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> Any:
        """Execute a method of a shard and return its result. Raises what it raises, or ShardDown if the shard has no owner.

        A poll that a handover ends early continues at the new owner.
        """
        if call is not None and self.region is not None and call.entry_region is None:
            call = msgspec.structs.replace(call, entry_region=self.region)
        started_ms = self._clock.monotonic_ms()
        wait_ms = options.get("wait_ms") or 0
        held_until_ms, follows = started_ms + self.hold_ms, False
        while True:
            place = self._place(owner)
            if place is not None:
                try:
                    result = await place.call(path, call, *arguments, **options)
                except NotOwner as error:
                    if self.remote is not None:
                        self.remote.learn(error)
                    place = None if self._place(owner) == place else place
                except TenantMoved as error:
                    if not follows:  # a poll may have waited for long
                        follows, held_until_ms = True, self._clock.monotonic_ms() + HOLD_MS
                    before, owner = owner, await self._follow(error)
                    place = None if owner == before else place
                else:
                    left_ms = wait_ms - (self._clock.monotonic_ms() - started_ms)
                    if result != [] or left_ms <= 0 or self._place(owner) == place:
                        return result
                    held_until_ms = self._clock.monotonic_ms() + self.hold_ms
                if wait_ms:
                    options["wait_ms"] = max(0, wait_ms - (self._clock.monotonic_ms() - started_ms))
            if place is None or self._place(owner) is None:
                await self.hold(owner, held_until_ms)

    async def call_here(
        self,
        method: Callable[..., Awaitable[Any]],
        owner: int,
        path: str,
        call: Call,
        /,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Execute a method of a shard on this event loop, and follow the tenant if it moves."""
        started_ms = self._clock.monotonic_ms()
        try:
            return await method(call, *arguments, **options)
        except TenantMoved:
            if wait_ms := options.get("wait_ms"):
                options["wait_ms"] = max(0, wait_ms - (self._clock.monotonic_ms() - started_ms))
            return await self.call(owner, path, call, *arguments, **options)

    async def _follow(self, error: TenantMoved) -> int:
        """Return the shard of a tenant that has left the one that was called. Raises NotFound if it was deleted."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self.refresh())
            self._refreshing.add_done_callback(lambda _: setattr(self, "_refreshing", None))
        await asyncio.wait([self._refreshing])  # of all calls; if it fails, they look again
        shard = self.find(error.tenant or "", error.queue)
        if shard is None:
            raise no_tenant(error.tenant or "")
        return shard

    async def hold(self, shard: int, until_ms: int) -> None:
        """Wait until something changes. Raises ShardDown if that takes too long, or too many calls wait."""
        if self._held >= HELD_MAX or self._clock.monotonic_ms() >= until_ms:
            raise shard_down(shard, self.unserved(shard))
        self._held += 1
        try:
            await asyncio.wait([self._change], timeout=RETRY_MS / 1_000)
        finally:
            self._held -= 1

    async def query(
        self, owner: int, path: str, /, *arguments: Any, timeout_ms: int | None = READ_MS, **options: Any
    ) -> Any:
        """Execute a method that takes no call; raise ShardDown if its shard does not answer in time."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000 if timeout_ms is not None else None):
                return await self.call(owner, path, None, *arguments, **options)
        except TimeoutError:
            raise ShardDown(f"shard {owner} has not answered in time. Try again later.") from None

    async def query_each(
        self, shards: Iterable[int], path: str, *arguments: Any, **options: Any
    ) -> dict[int, Any | TenantqError]:
        """Execute a method that takes no call on some shards; errors stand in place of results."""
        shards = list(shards)
        found = await asyncio.gather(
            *(self.query(shard, path, *arguments, **options) for shard in shards), return_exceptions=True
        )
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, TenantqError):
                raise one
        return dict(zip(shards, found, strict=True))

    async def release(self, owner: int, deliveries: list[Delivery]) -> None:
        """Release messages that were leased for a caller who is gone."""
        if not deliveries:
            return
        leases = [msgspec.structs.replace(one, body=b"") for one in deliveries]
        try:
            await self.query(owner, "peer.release", leases)
        except TenantqError as error:
            log.warning("%d undelivered messages stay leased until their leases expire: %s", len(leases), error)


async def _nothing() -> None:
    pass


class CallsFromShard:
    """Calls other shards from the event loop of one shard, through the main event loop."""

    def __init__(self, number: int, calls: ShardCalls, main: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self._calls = calls
        self._main = main

    async def query(
        self, owner: int, path: str, /, *arguments: Any, timeout_ms: int | None = READ_MS, **options: Any
    ) -> Any:
        """Execute a method that takes no call; raise ShardDown if its shard does not answer in time."""
        work = self._calls.query(owner, path, *arguments, timeout_ms=timeout_ms, **options)
        return await on_loop(self._main, work)

    async def call(self, owner: int, path: str, call: Call, /, *arguments: Any) -> Any:
        """Execute a method of another shard for a caller, who is authorized there."""
        return await on_loop(self._main, self._calls.call(owner, path, call, *arguments))

    async def open_stream(
        self, owner: int, path: str, /, *arguments: Any, timeout_ms: int | None = READ_MS
    ) -> ShardStream:
        """Start a method of another shard that takes no call and replies piece by piece. Close the stream in any case."""
        return ShardStream(self._main, await self.query(owner, path, *arguments, timeout_ms=timeout_ms))

    async def query_all(self, path: str, /, *arguments: Any, **options: Any) -> dict[int, Any | TenantqError]:
        """Execute a method that takes no call on all other shards; errors stand in place of results."""
        others = [shard for shard in range(self._calls.count) if shard != self.number]
        return await on_loop(self._main, self._calls.query_each(others, path, *arguments, **options))


class ShardStream:
    """A reply of another shard that arrives piece by piece, read from the event loop of one shard."""

    def __init__(self, main: asyncio.AbstractEventLoop, stream: PieceStream) -> None:
        self._main = main
        self._stream, self._pieces = stream, aiter(stream)

    def __aiter__(self) -> ShardStream:
        return self

    async def __anext__(self) -> bytes:
        piece = await on_loop(self._main, self._next())
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _next(self) -> bytes | None:
        return await anext(self._pieces, None)

    async def aclose(self) -> None:
        """Stop the reply."""
        with contextlib.suppress(NotOwner):  # its shard has closed, and so has the reply
            await on_loop(self._main, self._stream.aclose())


async def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _R]) -> _R:
    """Await a coroutine on an event loop, from there or from another thread."""
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
