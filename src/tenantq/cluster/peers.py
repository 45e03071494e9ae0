"""The other shards of this server, as one of them sees them: the links to them, and what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from tenantq.cluster.link import Link
from tenantq.cluster.link_calls import LinkCalls, LinkedShard
from tenantq.cluster.link_heartbeats import LinkHeartbeats
from tenantq.cluster.peer_server import PeerServer
from tenantq.cluster.shard_calls import QUICK_MS
from tenantq.errors import TenantqError
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.futures import BackgroundTasks
from tenantq.store.placement_file import tenants_moving

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from tenantq.cluster.error_codec import NotOwner
    from tenantq.cluster.handshake import PeerName
    from tenantq.cluster.peer_server import PeerHandler
    from tenantq.cluster.shard_calls import ShardCalls
    from tenantq.cluster.shard_spec import ShardSpec
    from tenantq.cluster.tenant_directory import TenantDirectory
    from tenantq.runtime.clock import Clock
    from tenantq.store.placement_file import PlacementFile

log = logging.getLogger("tenantq.shards")

HEARTBEAT_MS: Final = 1_000
"""How often each other shard gets a heartbeat."""

TOLD_MS: Final = 1_000
"""How long a change of the directory waits for shards that do not answer. They read it later by themselves."""

RELEASE_BACKOFF: Final = Backoff(100, 5_000)
"""How often a shard tries to allow moves again after a backup."""


class Peers:
    """All shards but this one. Created inside the event loop, after the store is open."""

    def __init__(self, spec: ShardSpec, clock: Clock, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Prepare. ``is_ready`` returns what the others are told of this shard."""
        self.spec = spec
        self.number = spec.number
        self._handlers: dict[str, PeerHandler] = {}
        self._server = PeerServer(spec.secret, self._handlers, is_ready)
        hello = (spec.secret, spec.number)
        self.links = {
            number: Link(number, port, hello, self._connected)
            for number, port in enumerate(spec.peer_ports)
            if number != spec.number
        }
        self.calls: LinkCalls  # set before the server opens
        self.hurry: Callable[[], None] = lambda: None  # each shard stays in its process
        self._all_linked = asyncio.Event()
        self._heartbeats = LinkHeartbeats(clock, HEARTBEAT_MS, self.links.values)

    def answers(self, kind: str, handler: PeerHandler) -> None:
        """Set the handler of a kind of request, before the server opens."""
        self._handlers[kind] = handler

    async def open(self, sock: socket.socket) -> None:
        """Accept connections of the others, and connect to them."""
        await self._server.open(sock)
        for link in self.links.values():
            link.start()
        self._check_all_linked()
        self._heartbeats.start()

    async def wait_for_all(self, wait_ms: int) -> bool:
        """Wait until every other shard is connected; False if that takes too long."""
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._all_linked.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close all links."""
        self._heartbeats.stop()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        await self._server.close()

    async def _connected(self, _: Link) -> None:
        self._check_all_linked()

    def _check_all_linked(self) -> None:
        if all(link.is_up for link in self.links.values()):
            self._all_linked.set()

    def runs(self, shard: int) -> bool:
        """Return whether a shard runs, as far as this one knows."""
        return shard == self.number or self.links[shard].is_up

    # ---- the other shards; see ``shard_calls.RemotePlaces`` and ``member_queries.OtherMembers`` ----

    def place(self, shard: int) -> LinkedShard | None:
        """Return where another shard is."""
        link = self.links.get(shard)
        return LinkedShard(self.calls, link, shard) if link is not None else None

    def learn(self, error: NotOwner) -> None:
        """Do nothing: each shard stays in its process."""

    def others(self) -> list[PeerName]:
        """Return all other shards."""
        return list(self.links)

    def members(self) -> list[PeerName]:
        """Return the other shards that run."""
        return [number for number, link in self.links.items() if link.is_up]

    def owner(self, shard: int) -> PeerName | None:
        """Return the shard: it is a process of its own."""
        return shard

    async def query(self, member: PeerName, path: str, *arguments: Any, timeout_ms: int = QUICK_MS) -> Any:
        """Return the answer of another shard, which it gives from memory. Raises ShardDown."""
        return await self.calls.query(self.links[int(member)], path, *arguments, timeout_ms=timeout_ms)

    async def ask(self, member: PeerName, path: str, *arguments: Any) -> Any:
        """Return the answer of another shard: between two shards there is one way. Raises ShardDown."""
        return await self.query(member, path, *arguments)

    # ---- the directory ----

    async def tell_all(self) -> None:
        """Return when the other running shards have read the directory, or do not answer."""
        await asyncio.gather(*(self._tell(number) for number, link in self.links.items() if link.is_up))

    async def _tell(self, shard: int) -> None:
        with contextlib.suppress(TenantqError):
            await self.query(shard, "process.read_directory", timeout_ms=TOLD_MS)


class PeerFacts:
    """What one shard tells the others, and knows about them. See ``scatter_gather.ShardFacts``."""

    def __init__(self, directory: TenantDirectory, peers: Peers, calls: ShardCalls, stored: PlacementFile) -> None:
        self._directory, self._peers, self._calls, self._stored = directory, peers, calls, stored
        self._background = BackgroundTasks()

    def may_create(self, tenant: str) -> bool:
        """Return whether an unknown tenant may be created on this shard. May block the shard for a moment."""
        return self._directory.may_create(tenant)

    async def announce(self, tenant: str) -> None:
        """Remove the row of a tenant that was deleted. Return when all running shards know that."""
        await self._directory.announce(tenant)
        await self._peers.tell_all()

    async def record_regions(self, tenant: str, regions: tuple[str, ...]) -> None:
        """Write the regions that a tenant allows into its row."""
        await self._directory.record_regions(tenant, regions)

    def is_up(self, shard: int) -> tuple[bool, bool]:
        """Return whether another shard runs, and whether it is ready, as of its last heartbeat."""
        link = self._peers.links[shard]
        return link.is_up, link.is_up and link.is_ready

    @contextlib.asynccontextmanager
    async def moves_on_hold(self) -> AsyncIterator[None]:
        """Prevent moves of tenants inside the block. Raises Conflict if one is moving, or ShardDown."""
        # a cancelled caller cannot stop the thread that holds the moves
        holding = asyncio.ensure_future(asyncio.to_thread(self._stored.hold_moves, self._peers.number))
        try:
            await asyncio.shield(holding)
            for moving in (await self._calls.query_each(range(self._calls.count), "moves.has_work")).values():
                if isinstance(moving, TenantqError):
                    raise moving
                if moving:  # the directory has decided the move, and a shard has not ended it
                    raise tenants_moving()
            yield
        finally:
            tried = asyncio.Event()
            self._background.start(self._release_moves(holding, tried))
            await tried.wait()

    async def _release_moves(self, holding: asyncio.Future[None], tried: asyncio.Event) -> None:
        """Allow moves again, if they were held. Try until that succeeds; ``tried`` is set after the first attempt."""
        await asyncio.wait([holding])
        if holding.exception() is not None:
            tried.set()
            return
        for attempt in itertools.count(1):
            try:
                await asyncio.to_thread(self._stored.release_moves, self._peers.number)
            except TenantqError as error:
                if attempt == 1:  # further attempts are not logged
                    log.warning("tenants cannot move after a backup until this succeeds; retrying: %s", error)
            else:
                return
            finally:
                tried.set()
            await asyncio.sleep(RELEASE_BACKOFF.ceiling_ms(attempt) / 1_000)
