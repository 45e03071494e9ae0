"""Links between the servers of a cluster: each calls the shards that the others own, and answers for its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tenantq.cluster.call_server import CallServer
from tenantq.cluster.error_codec import NotOwner, shard_down
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.handshake import PeerName
from tenantq.cluster.host import ShardHost
from tenantq.cluster.link import Link
from tenantq.cluster.link_calls import KIND, LinkCalls, LinkedShard
from tenantq.cluster.link_certificate import LinkCertificate, client_context
from tenantq.cluster.link_heartbeats import LinkHeartbeats
from tenantq.cluster.member_queries import MemberQueries
from tenantq.cluster.part_rights import RightsQueries
from tenantq.cluster.peer_server import PeerServer
from tenantq.cluster.platform_keys import PlatformKeys, read_platform_keys
from tenantq.cluster.routed_service import shard_methods
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_thread import ShardThread
from tenantq.cluster.spread_changes import SpreadChanges
from tenantq.cluster.tenant_arrivals import TenantArrivals
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.cluster.tenant_parts import PartQueries
from tenantq.domain.cluster_view import ClusterView, Member
from tenantq.domain.urls import is_loopback
from tenantq.errors import ShardDown, TenantqError
from tenantq.runtime.clock import Clock

if TYPE_CHECKING:
    import socket

    from tenantq.gates.turns import Turns

log = logging.getLogger("tenantq.cluster")

HEARTBEAT_MS: Final = 500
QUERY_MS: Final = 2_000
"""Timeout of queries that a member answers from memory."""

DIRECT_MS: Final = 300
"""How long a member has to answer a query of its credentials before a third one is asked to pass it on."""

UNREACHABLE_S: Final = 3.0
"""A member without a link for this long counts as unreachable: longer than a dead one stays in the view."""

OPENING_MS: Final = 1_000
"""How long a call waits at a member that is opening its shard."""

_NEVER: Final = (-1, "")
"""An ownership before all others."""


class ClusterMemberQueries(MemberQueries):
    """What members ask and tell each other."""

    def __init__(self, memory: ShardMemory, waits: FleetWaits, links: MemberLinks, host: ShardHost) -> None:
        super().__init__(memory, waits)
        self._links = links
        self._host = host

    def look(self) -> None:
        """Read the cluster's rows: some have changed."""
        self._links.hurry()

    def released(self, shard: int) -> None:
        """Claim a shard that its last owner has released."""
        self._host.released(shard)

    def owns(self, member: str, shard: int, epoch: int) -> None:
        """Note the new owner of a shard."""
        self._links.note_owner(member, shard, epoch)

    def platform_keys(self, epoch: int, version: int) -> PlatformKeys | None:
        """Return the platform's keys if the first shard is here; without the keys if the caller has this version."""
        return read_platform_keys(self._host, epoch, version)

    async def pass_on(self, member: str, query: bytes) -> bytes:
        """Return the reply of another member to a query, for a member that cannot reach it."""
        return await self._links.send_query(member, query)


class MemberLinks:
    """The other members of the cluster, as this one sees them. Used on the main event loop."""

    def __init__(
        self,
        id: str,
        secret: str,
        host: ShardHost,
        calls: ShardCalls,
        extra: Mapping[str, type],
        turns: Turns,
        memory: ShardMemory,
        waits: FleetWaits,
        clock: Clock,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Prepare. ``extra`` are further facet classes that other members can call, by name."""
        self.id = id
        self._host = host
        self._shards = calls
        self._background = background
        methods = shard_methods(
            extra,
            {"member": ClusterMemberQueries, "arrivals": TenantArrivals, "parts": PartQueries, "rights": RightsQueries},
            {"moves.progress": TenantMoves.progress, "spread.problem": SpreadChanges.problem},
        )
        self._calls = LinkCalls(methods, calls.release, background)
        self.view: ClusterView | None = None
        self.hurry: Callable[[], None] = lambda: None  # has the view read again
        self.on_owner: Callable[[int], None] = lambda _: None  # called when another member owns a shard
        self._secret = secret
        self._clock = clock
        self._links: dict[PeerName, Link] = {}
        self._unreachable: set[str] = set()  # as of the last call of that name
        self._absent: dict[PeerName, Member] = {}  # cannot reach the registry, but answer this member
        self._gained: dict[int, tuple[int, str]] = {}  # by shard: an ownership that may be newer than the view
        self._moved: dict[int, tuple[int, str]] = {}  # by shard: an ownership that has ended, and the successor
        answers = CallServer(
            methods, {"member": ClusterMemberQueries(memory, waits, self, host)}, self._owned, calls.release
        )
        answers.turns = turns
        self._server = PeerServer(secret, {KIND: answers.answer})
        self._client_tls = client_context()
        self._heartbeats = LinkHeartbeats(clock, HEARTBEAT_MS, self._links.values)

    async def open(self, sock: socket.socket, certificate: LinkCertificate | None) -> None:
        """Accept connections of the other members."""
        await self._server.open(sock, certificate)
        self._heartbeats.start()

    async def close(self) -> None:
        """Close all links."""
        self._heartbeats.stop()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()
        await self._server.close()

    def update(self, view: ClusterView) -> None:
        """Connect to new members, and disconnect from those that are gone.

        A member whose heartbeats do not reach the registry still serves its shards, so it stays connected while it answers.
        """
        before, self.view = self.view, view
        for id, member in view.members.items():
            if id != self.id and id not in self._links:
                self._links[id] = self._connect(member)
        for gone in self._links.keys() - view.members.keys():
            if not self._links[gone].is_up or self._links[gone].is_silent:
                self._background(self._links.pop(gone).close())
        known: dict[PeerName, Member] = dict(self._absent)
        known.update(before.members.items() if before is not None else ())
        self._absent = {id: one for id, one in known.items() if id in self._links and id not in view.members}
        if before is None or _owners(before) != _owners(view):
            self._shards.notify()

    def _connect(self, member: Member) -> Link:
        host, _, port = member.peer_address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        tls = None if is_loopback(host) else self._client_tls
        link = Link(member.id, int(port), (self._secret, self.id), self._connected, host=host, tls=tls)
        link.start()
        return link

    async def _connected(self, _: Link) -> None:
        self._shards.notify()

    # ---- shards of other members; see ``shard_calls.RemotePlaces`` ----

    def place(self, shard: int) -> LinkedShard | None:
        """Return where another member has a shard; None: not known, or not reachable."""
        newest = self._newest_owner(shard)
        ended = max(self._moved.get(shard, _NEVER), self._host.successors.get(shard, _NEVER))
        epoch, member = newest if newest[0] > ended[0] else ended
        link = self._links.get(member)
        return LinkedShard(self._calls, link, shard, epoch) if link is not None and link.is_up else None

    def _newest_owner(self, shard: int) -> tuple[int, str]:
        """Return the newest ownership that this member knows of: its epoch, and the member."""
        members = (*self.view.members.values(), *self._absent.values()) if self.view is not None else ()
        seen = max(((one.owned[shard], one.id) for one in members if shard in one.owned), default=_NEVER)
        return max(seen, self._gained.get(shard, seen))

    def learn(self, error: NotOwner) -> None:
        """Take note of what a member said about a shard that it does not own.

        The reply may come after the notice of the next owner, so it ends only the ownership that the caller knew.
        """
        if error.shard >= 0:
            ended = error.epoch if error.epoch >= 0 else self._newest_owner(error.shard)[0]
            if ended >= self._moved.get(error.shard, _NEVER)[0]:
                self._moved[error.shard] = (ended, error.owner)
        self.hurry()

    def note_owner(self, member: str, shard: int, epoch: int) -> None:
        """Take note of a new owner, before its heartbeat says so."""
        self._gained[shard] = (epoch, member)
        self._shards.notify()
        self.on_owner(shard)

    # ---- see ``membership.MemberNotices`` ----

    def look(self, members: Iterable[str]) -> None:
        """Have other members read the cluster's rows now."""
        self._tell(members, "member.look")

    def released(self, shard: int, successor: str) -> None:
        """Tell the successor that it can own a shard."""
        self._tell([successor], "member.released", shard)

    def owns(self, shard: int, epoch: int) -> None:
        """Tell all members that this one owns a shard now."""
        self._tell(list(self._links), "member.owns", self.id, shard, epoch)

    def _tell(self, members: Iterable[PeerName], path: str, *arguments: Any) -> None:
        for id in members:
            link = self._links.get(id)
            if link is not None and link.is_up:
                self._background(self._send_notice(link, path, *arguments))

    async def _send_notice(self, link: Link, path: str, *arguments: Any) -> None:
        with contextlib.suppress(TenantqError):
            await self._calls.query(link, path, *arguments, timeout_ms=QUERY_MS)

    # ---- queries; see ``member_queries.OtherMembers`` ----

    def others(self) -> list[PeerName]:
        """Return the ids of all other members."""
        return list(self._links)

    def members(self) -> list[PeerName]:
        """Return the ids of the other members that can be reached directly."""
        return [id for id, link in self._links.items() if link.is_up]

    def owner(self, shard: int) -> PeerName | None:
        """Return the other member that owns a shard; None if it is not known."""
        owner = self._newest_owner(shard)[1]
        return owner if owner in self._links else None

    def unreachable(self) -> tuple[str, ...]:
        """Return the members in the view that have not been reached for a while, and log when that changes."""
        now_s, members = asyncio.get_running_loop().time(), self.view.members if self.view is not None else {}
        found = {
            id
            for id in members
            if (link := self._links.get(id)) is not None
            and link.down_since_s is not None
            and now_s - link.down_since_s >= UNREACHABLE_S
        }
        for id in found - self._unreachable:
            log.warning(
                "cannot reach member %s at %s; calls for its shards fail here. Check cluster.peer there, and the network",
                id,
                members[id].peer_address,
            )
        for id in (self._unreachable - found) & members.keys():
            log.info("member %s can be reached again", id)
        self._unreachable = found
        return tuple(sorted(found))

    async def query(self, member: PeerName, path: str, *arguments: Any, timeout_ms: int = QUERY_MS) -> Any:
        """Return the answer of a member, which it gives from memory. Raises ShardDown."""
        link = self._links.get(member)
        if link is None:
            raise shard_down(member)
        return await self._calls.query(link, path, *arguments, timeout_ms=timeout_ms)

    async def ask(self, member: PeerName, path: str, *arguments: Any) -> Any:
        """Return the answer of a member; through a third member if there is no direct way. Raises ShardDown."""
        method, query = self._calls.methods[path], self._calls.encode_query(path, *arguments)
        ways = [id for id in self.others() if id != member and self._links[id].is_up]
        try:
            return method.result(await self.send_query(member, query, DIRECT_MS if ways else QUERY_MS))
        except ShardDown as error:
            if isinstance(error, NotOwner):
                raise
        for way in ways:
            with contextlib.suppress(ShardDown):
                return method.result(await self.query(way, "member.pass_on", member, query))
        raise shard_down(member)

    async def send_query(self, member: PeerName, query: bytes, timeout_ms: int = QUERY_MS) -> bytes:
        """Send an encoded query to a member, and return its encoded reply. Raises ShardDown."""
        link = self._links.get(member)
        if link is None or (link.is_silent and timeout_ms < QUERY_MS):
            raise shard_down(member)
        return await link.begin(KIND, query).within(timeout_ms)

    # ---- answering ----

    async def _owned(self, shard: int) -> ShardThread:
        """Return a shard of this member, after it has opened. Raises NotOwner, at once if another member is to own it."""
        until_ms = self._clock.monotonic_ms() + OPENING_MS
        before = newest = self._newest_owner(shard)
        while self._is_expected(shard) and newest <= before and self._clock.monotonic_ms() < until_ms:
            await self._shards.hold(shard, until_ms)
            newest = self._newest_owner(shard)
        thread = self._host.thread(shard)
        if thread is None:
            error = NotOwner(f"shard {shard} is not on this server. Try again later.")
            _, error.owner = newest if newest > before else self._host.successors.get(shard, _NEVER)
            error.shard = shard
            raise error
        return thread

    def _is_expected(self, shard: int) -> bool:
        """Return whether this member is opening a shard that it should own."""
        is_assigned = self.view is not None and self.view.assignment.get(shard) == self.id
        return is_assigned and self._host.is_opening(shard)


def _owners(view: ClusterView) -> dict[str, dict[int, int]]:
    return {id: member.owned for id, member in view.members.items()}
