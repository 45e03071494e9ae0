"""The other shards of this server, as one of them sees them: which tenants each has, and the links to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.cluster.directory import Directory, announced
from tenantq.cluster.layout import HOME
from tenantq.cluster.link import Link
from tenantq.cluster.link_calls import LinkCalls, LinkedShard
from tenantq.cluster.link_heartbeats import LinkHeartbeats
from tenantq.cluster.peer_server import PeerServer
from tenantq.cluster.shard_calls import QUICK_MS
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from tenantq.cluster.error_codec import NotOwner
    from tenantq.cluster.handshake import PeerName
    from tenantq.cluster.peer_server import Handler, PeerRequest
    from tenantq.cluster.shard_spec import ShardSpec
    from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq.shards")

CATCH_UP_MS: Final = 5_000
"""How often a shard checks that the others know all its tenants. Each change is announced at once, so they usually do."""

HEARTBEAT_MS: Final = 1_000
"""How often each other shard gets a heartbeat."""

_TENANTS: Final = "tenants"
_CHANGES: Final = "tenant_changes"


class _TenantNames(msgspec.Struct, frozen=True, array_like=True):
    names: list[str]


class _TenantNameChanges(msgspec.Struct, frozen=True, array_like=True):
    made: list[str]
    gone: list[str]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_tenants: Final = msgspec.msgpack.Decoder(_TenantNames).decode
_decode_changes: Final = msgspec.msgpack.Decoder(_TenantNameChanges).decode


class CreatableTenants:
    """The tenants that may be created on this shard now, because the first shard said so."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._counts

    @contextlib.contextmanager
    def including(self, tenant: str) -> Iterator[None]:
        """Let a tenant be created inside the block."""
        self._counts[tenant] += 1
        try:
            yield
        finally:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]


class Peers:
    """All shards but this one. Created inside the event loop, after the store is open."""

    def __init__(
        self,
        spec: ShardSpec,
        clock: Clock,
        own: Callable[[], Mapping[str, Any]],
        background: Callable[[Any], None],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare. ``own`` returns this shard's tenants by name, ``is_ready`` what the others are told of this shard."""
        self.spec = spec
        self.number = spec.number
        self.directory = Directory(spec.number, spec.topology, own)
        self.creatable = CreatableTenants()
        self._own = own
        self._clock = clock
        self._background = background
        self._announced: dict[int, set[str]] = {}  # by shard: the tenants of this one that it has confirmed to know
        self._handlers: dict[str, Handler] = {_TENANTS: self._learn_all, _CHANGES: self._learn}
        self._server = PeerServer(spec.secret, self._handlers, self._gone, is_ready)
        hello = (spec.secret, spec.number)
        self.links = {
            number: Link(number, port, hello, self._announce_on_connect)
            for number, port in enumerate(spec.peer_ports)
            if number != spec.number
        }
        self._announcing = {number: asyncio.Lock() for number in self.links}
        self.calls: LinkCalls  # set before the server opens
        self.hurry: Callable[[], None] = lambda: None  # each shard stays in its process
        self._all_linked = asyncio.Event()
        self._timer: Timer | None = None
        self._heartbeats = LinkHeartbeats(clock, HEARTBEAT_MS, self.links.values, self._disconnect)

    def may_create(self, tenant: str) -> bool:
        """Return whether the first shard lets a tenant be created here. Only that shard knows that no other has it."""
        return tenant in self.creatable

    async def record_regions(self, _tenant: str, _regions: tuple[str, ...]) -> None:
        """Do nothing: all shards are on one machine."""

    def is_up(self, shard: int) -> tuple[bool, bool]:
        """Return whether another shard runs, and whether it is ready, as of its last heartbeat."""
        link = self.links[shard]
        is_up = link.is_up and self.directory.is_known(shard)
        return is_up, is_up and link.is_ready

    @property
    def is_home(self) -> bool:
        """Whether this is the first shard, which places new tenants and has the platform's keys."""
        return self.number == HOME

    def answers(self, kind: str, handler: Handler) -> None:
        """Set the handler of a kind of request, before the server opens."""
        self._handlers[kind] = handler

    async def open(self, sock: socket.socket) -> None:
        """Accept connections of the others, and connect to them."""
        await self._server.open(sock)
        for link in self.links.values():
            link.start()
        self._check_all_linked()
        self._check_announced()
        self._heartbeats.start()

    async def wait_for_all(self, wait_ms: int) -> bool:
        """Wait until every other shard is connected and has announced its tenants; False if that takes too long."""
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._all_linked.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close all links."""
        self._heartbeats.stop()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        await self._server.close()

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

    # ---- tenants ----

    async def announce(self, tenant: str) -> None:
        """Return when all running shards know that this one has a tenant, or has it no more."""
        up = [link for link in self.links.values() if link.is_up]
        await asyncio.gather(*(self._catch_up(link, tenant) for link in up), return_exceptions=True)

    async def _announce_on_connect(self, link: Link) -> None:
        """Announce all tenants to a shard that is connected now."""
        async with self._announcing[int(link.number)]:
            await self._announce_all(link)

    async def _announce_all(self, link: Link) -> None:
        self._announced.pop(int(link.number), None)
        names = announced(self.number, self._own())
        self._check_all_linked()
        await link.begin(_TENANTS, _encode(_TenantNames(names))).within(QUICK_MS)
        self._announced[int(link.number)] = set(names)

    async def _catch_up(self, link: Link, tenant: str | None = None) -> None:
        """Announce the state of one tenant, or of all that a shard does not know. One at a time, so that the last one is true.

        If the shard does not confirm, everything is announced again next time.
        """
        async with self._announcing[int(link.number)]:
            known = self._announced.get(int(link.number))
            if known is None:
                await self._announce_all(link)
                return
            names = set(announced(self.number, self._own() if tenant is None else {tenant} & self._own().keys()))
            gone = known - names if tenant is None else {tenant} - names
            made = names - known if tenant is None else names
            if not made and not gone:
                return
            del self._announced[int(link.number)]  # until it confirms
            await link.begin(_CHANGES, _encode(_TenantNameChanges(list(made), list(gone)))).within(QUICK_MS)
            known |= made
            known -= gone
            self._announced[int(link.number)] = known

    async def _learn_all(self, request: PeerRequest) -> bytes:
        announced_now = _decode_tenants(request.payload)
        twice = self.directory.learn_all(int(request.shard), announced_now.names)
        twice += [name for name in announced(self.number, self._own()) if self.directory.is_on_another_shard(name)]
        if twice:
            log.error("tenants that two shards have, of which one is not served: %s", ", ".join(sorted(twice)[:10]))
        self._check_all_linked()
        return b""

    async def _learn(self, request: PeerRequest) -> bytes:
        changes = _decode_changes(request.payload)
        self.directory.learn(int(request.shard), changes.made, changes.gone)
        return b""

    def _gone(self, shard: PeerName) -> None:
        self.directory.lose(int(shard))

    def _check_all_linked(self) -> None:
        if not self.directory.silent and all(link.is_up for link in self.links.values()):
            self._all_linked.set()

    def _check_announced(self) -> None:
        """Announce what the others have missed."""
        self._timer = self._clock.call_later(CATCH_UP_MS, self._check_announced)
        names = set(announced(self.number, self._own()))
        for number, link in self.links.items():
            if link.is_up and not self._announcing[number].locked() and names != self._announced.get(number):
                self._background(self._catch_up_later(link))

    async def _catch_up_later(self, link: Link) -> None:
        try:
            await self._catch_up(link)
        except TenantqError as error:
            log.debug("shard %s was not updated: %s", link.number, error)

    def _disconnect(self, link: Link) -> None:
        """Close also the other direction of a link that does not answer. A shard that runs connects again."""
        self._announced.pop(int(link.number), None)
        self._server.drop(link.number)
