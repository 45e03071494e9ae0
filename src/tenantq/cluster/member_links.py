"""Links between the servers of a cluster: each calls the shards that the others own, and answers for its own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.cluster.error_codec import NotOwner, shard_down
from tenantq.cluster.fleet_poll import FleetShares
from tenantq.cluster.host_fleet import FleetWaits, fleet_weights
from tenantq.cluster.link import Link, PendingReply
from tenantq.cluster.link_certificate import LinkCertificate, client_context, is_loopback
from tenantq.cluster.peer_calls import HELD_BYTES_MAX, RemoteMethod, execute
from tenantq.cluster.peer_queries import PeerQueries
from tenantq.cluster.peer_server import PeerRequest, PeerServer
from tenantq.cluster.routed_service import FACETS
from tenantq.cluster.shard_calls import HOLD_MS, ShardCalls
from tenantq.cluster.shard_thread import HostedExport, ShardThread
from tenantq.cluster.tenant_moves import TenantArrivals, TenantMoves
from tenantq.cluster.value_codec import encode
from tenantq.domain.access import StoredKey
from tenantq.domain.cluster_view import ClusterView, Member
from tenantq.errors import ShardDown, TenantqError
from tenantq.runtime.clock import Clock, Timer
from tenantq.service.admission import Admission
from tenantq.service.call import Call, as_given
from tenantq.service.fleet_poll import FleetPolls
from tenantq.service.problems import no_room

if TYPE_CHECKING:
    import socket

    from tenantq.gates.turns import Turns

log = logging.getLogger("tenantq.cluster")

KIND: Final = "call"
MEMBER: Final = -1
"""In place of a shard: the member itself."""

HEARTBEAT_MS: Final = 500
QUERY_MS: Final = 2_000
"""Timeout of queries that a member answers from memory."""

DIRECT_MS: Final = 300
"""How long a member has to answer a query of its credentials before a third one is asked to pass it on."""

OPENING_MS: Final = 1_000
"""How long a call waits at a member that is opening its shard."""

_decode_call: Final = msgspec.msgpack.Decoder(tuple[int, str, Call | None, list[Any]]).decode


class FoundKey(msgspec.Struct, frozen=True):
    """What a member knows about a token, and the shards that it has looked through."""

    key: StoredKey | None
    shards: list[int]


class MemberQueries:
    """What members ask and tell each other, answered from memory."""

    def __init__(self, links: MemberLinks, waits: FleetWaits) -> None:
        self._links = links
        self._host = links.calls.host
        self._waits = waits

    def look(self) -> None:
        """Read the cluster's rows: some have changed."""
        self._links.hurry()

    def released(self, shard: int) -> None:
        """Claim a shard that its last owner has released."""
        self._host.released(shard)

    def owns(self, member: str, shard: int, epoch: int) -> None:
        """Note the new owner of a shard."""
        self._links.note_owner(member, shard, epoch)

    async def pass_on(self, member: str, query: bytes) -> bytes:
        """Return the reply of another member to a query, for a member that cannot reach it."""
        return await self._links.send_query(member, query)

    def fleet_weights(self, queue: str) -> dict[int, int]:
        """Return the shards here with messages of a queue, and the weights of their tenants."""
        return fleet_weights(self._host, queue)

    async def fleet_work(self, queue: str, wait_ms: int) -> bool:
        """Wait until more messages of a queue arrive; return whether some have."""
        event = self._waits.enter(queue)
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._waits.leave(queue, event)
        return True

    def key(self, hash: bytes) -> FoundKey:
        """Return the API key of a hash if a shard of this member has it."""
        shards = [thread.number for thread in self._host.threads()]
        return FoundKey(self._host.find_key(hash), shards)

    def token_revoked(self, shard: int, tenant: str, token_id: str | None, principal: str) -> bool:
        """Return whether a token is revoked in a tenant. Raises NotOwner if this member does not own the shard."""
        found = self._host.token_revoked(shard, tenant, token_id, principal)
        if found is None:
            raise NotOwner(f"shard {shard} is not here")
        return found


def remote_methods(extra: Mapping[str, type]) -> Iterator[RemoteMethod]:
    """Yield the methods that other members can call; ``extra`` are further classes, by name."""
    for name, kind in {**FACETS, **extra}.items():
        for method, function in vars(kind).items():
            if not method.startswith("_") and inspect.isfunction(function):
                is_local = method.endswith("_local")
                if is_local or "call" in inspect.signature(function).parameters:
                    yield RemoteMethod(f"{name}.{method}", function)
    for name, kind in (
        ("peer", PeerQueries),
        ("fleet_shares", FleetShares),
        ("member", MemberQueries),
        ("arrivals", TenantArrivals),
    ):
        for method, function in vars(kind).items():
            if not method.startswith("_"):
                yield RemoteMethod(f"{name}.{method}", function)
    yield RemoteMethod("fleet.poll", FleetPolls.poll)
    yield RemoteMethod("moves.progress", TenantMoves.progress)
    yield RemoteMethod("admission.authorize", Admission.authorize)


class MemberShard:
    """A shard of another member. See ``shard_calls.Place``."""

    def __init__(self, links: MemberLinks, link: Link, shard: int) -> None:
        self._links = links
        self._link = link
        self._shard = shard

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberShard) and (other._link, other._shard) == (self._link, self._shard)

    def __hash__(self) -> int:
        return hash((self._link, self._shard))

    def call(self, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> asyncio.Future[Any]:
        """Call a method of the shard. The future raises NotOwner if the shard is not there and nothing was begun."""
        return asyncio.ensure_future(self._call(path, call, arguments, options))

    async def _call(self, path: str, call: Call | None, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        method = self._links.methods[path]
        payload = method.encode(call, arguments, options, self._shard)
        if not self._link.is_up:
            raise NotOwner(f"the server that has shard {self._shard} is out of reach. Try again later.")
        pending = self._link.begin(KIND, payload)
        try:
            return method.result(await asyncio.shield(pending.reply), pending)
        except asyncio.CancelledError:
            pending.stop(is_gone=not method.leases)
            if method.leases:
                self._links.background(self._release_reply(method, pending))
            raise

    async def _release_reply(self, method: RemoteMethod, pending: PendingReply) -> None:
        """Release what a call leases whose caller is gone."""
        await asyncio.wait([pending.reply])
        try:
            deliveries = method.result(pending.reply.result(), pending)
        except TenantqError:
            return  # it leased nothing, or its server is gone
        await self._links.calls.release(self._shard, deliveries or [])


class MemberLinks:
    """The other members of the cluster, as this one sees them. Used on the main event loop."""

    def __init__(
        self,
        id: str,
        secret: str,
        calls: ShardCalls,
        extra: Mapping[str, type],
        turns: Turns,
        waits: FleetWaits,
        clock: Clock,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.id = id
        self.calls = calls
        self.background = background
        self.methods = {method.path: method for method in remote_methods(extra)}
        self.view: ClusterView | None = None
        self.hurry: Callable[[], None] = lambda: None  # has the view read again
        self.on_owner: Callable[[int], None] = lambda _: None  # called when another member owns a shard
        self._secret = secret
        self._turns = turns
        self._clock = clock
        self._queries = MemberQueries(self, waits)
        self._links: dict[str, Link] = {}
        self._lookups: dict[bytes, asyncio.Task[StoredKey | None]] = {}  # by hash of the token
        self._closing: set[asyncio.Task[None]] = set()
        self._gained: dict[int, tuple[int, str]] = {}  # by shard: an ownership that may be newer than the view
        self._moved: dict[int, tuple[int, str]] = {}  # by shard: an ownership that has ended, and the successor
        self._server = PeerServer(secret, {KIND: self._answer}, lambda _: None)
        self._client_tls = client_context()
        self._held_bytes = 0
        self._timer: Timer | None = None
        self._heartbeat_ms = clock.monotonic_ms()

    async def open(self, sock: socket.socket, certificate: LinkCertificate | None) -> None:
        """Accept connections of the other members."""
        await self._server.open(sock, certificate)
        self._send_heartbeats()

    async def close(self) -> None:
        """Close all links."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()), *self._closing)
        self._links = {}
        await self._server.close()

    def update(self, view: ClusterView) -> None:
        """Connect to new members, and disconnect from those that are gone."""
        before, self.view = self.view, view
        for id, member in view.members.items():
            if id != self.id and id not in self._links:
                self._links[id] = self._connect(member)
        for id in self._links.keys() - view.members.keys():
            task = asyncio.get_running_loop().create_task(self._links.pop(id).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if before is None or _owners(before) != _owners(view):
            self.calls.notify()

    def _connect(self, member: Member) -> Link:
        host, _, port = member.peer_address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        tls = None if is_loopback(host) else self._client_tls
        link = Link(member.id, int(port), (self._secret, self.id), self._connected, host=host, tls=tls)
        link.start()
        return link

    async def _connected(self, _: Link) -> None:
        self.calls.notify()

    def _send_heartbeats(self) -> None:
        """Send a heartbeat to every other member; one that does not answer is disconnected, and connected again."""
        self._timer = self._clock.call_later(HEARTBEAT_MS, self._send_heartbeats)
        before, self._heartbeat_ms = self._heartbeat_ms, self._clock.monotonic_ms()
        for link in self._links.values():
            link.send_heartbeat(is_late=self._heartbeat_ms - before > 2 * HEARTBEAT_MS)

    # ---- shards of other members; see ``shard_calls.RemotePlaces`` ----

    def place(self, shard: int) -> MemberShard | None:
        """Return where another member has a shard; None: not known, or not reachable."""
        epoch, owner = self._newest_owner(shard)
        ended, successor = self._moved.get(shard, (-1, ""))
        link = self._links.get(owner if epoch > ended else successor)
        return MemberShard(self, link, shard) if link is not None and link.is_up else None

    def _newest_owner(self, shard: int) -> tuple[int, str]:
        """Return the newest ownership that this member knows of: its epoch, and the member."""
        owner = self.view.owner_of(shard) if self.view is not None else None
        seen = (owner.owned[shard], owner.id) if owner is not None else (-1, "")
        return max(seen, self._gained.get(shard, seen))

    def learn(self, error: NotOwner) -> None:
        """Take note of what a member said about a shard that it does not own."""
        self._moved[error.shard] = (self._newest_owner(error.shard)[0], error.owner)
        self.hurry()

    def note_owner(self, member: str, shard: int, epoch: int) -> None:
        """Take note of a new owner, before its heartbeat says so."""
        self._gained[shard] = (epoch, member)
        self.calls.notify()
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

    def _tell(self, members: Iterable[str], path: str, *arguments: Any) -> None:
        for id in members:
            link = self._links.get(id)
            if link is not None and link.is_up:
                self.background(self._send_notice(link, path, *arguments))

    async def _send_notice(self, link: Link, path: str, *arguments: Any) -> None:
        with contextlib.suppress(TenantqError):
            await self._query(link, path, *arguments)

    # ---- credentials; see ``host_credentials.OtherMembers`` ----

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of a hash. Raises ShardDown if it may be on a shard that nobody has at the moment.

        Callers that ask at the same time share the answer: while a shard has no owner, there may be many.
        """
        lookup = self._lookups.get(hash)
        if lookup is None:
            lookup = self._lookups[hash] = asyncio.ensure_future(self._find_key(hash))
            lookup.add_done_callback(lambda _: self._lookups.pop(hash))
        return await asyncio.shield(lookup)

    async def _find_key(self, hash: bytes) -> StoredKey | None:
        until_ms = self._clock.monotonic_ms() + HOLD_MS
        while True:
            here = self._queries.key(hash)
            missing = set(range(self.calls.count)).difference(here.shards)
            found = here.key
            others = self._others() if found is None and missing else []
            asked = [asyncio.ensure_future(self._ask(id, "member.key", hash)) for id in others]
            try:
                for answering in asyncio.as_completed(asked):
                    with contextlib.suppress(TenantqError):
                        answer = await answering
                        found = answer.key
                        missing.difference_update(answer.shards)
                    if found is not None or not missing:
                        break
            finally:
                for one in asked:
                    one.cancel()
            if found is not None or not missing:
                return found
            await self.calls.hold(min(missing), until_ms)

    async def token_revoked(self, shard: int, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the owner of a shard whether a token is revoked."""
        until_ms = self._clock.monotonic_ms() + HOLD_MS
        while True:
            here = self.calls.host.token_revoked(shard, tenant, token_id, principal)
            if here is not None:
                return here
            owner = self.view.owner_of(shard) if self.view is not None else None
            if owner is not None and owner.id != self.id:
                try:
                    return bool(await self._ask(owner.id, "member.token_revoked", shard, tenant, token_id, principal))
                except ShardDown:
                    self.hurry()
            await self.calls.hold(shard, until_ms)

    def _others(self) -> list[str]:
        return [id for id in self.view.members if id != self.id] if self.view is not None else []

    async def _ask(self, member: str, path: str, *arguments: Any) -> Any:
        """Return the reply of a member to a query; through a third member if there is no direct way. Raises ShardDown."""
        method = self.methods[path]
        query = method.encode(None, arguments, {}, MEMBER)
        ways = [id for id in self._others() if id != member and self._links[id].is_up]
        try:
            return method.result(await self.send_query(member, query, DIRECT_MS if ways else QUERY_MS))
        except ShardDown as error:
            if isinstance(error, NotOwner):
                raise
        for way in ways:
            with contextlib.suppress(ShardDown):
                return method.result(await self._query(self._links[way], "member.pass_on", member, query))
        raise shard_down(member)

    async def send_query(self, member: str, query: bytes, timeout_ms: int = QUERY_MS) -> bytes:
        """Send an encoded query to a member, and return its encoded reply. Raises ShardDown."""
        link = self._links.get(member)
        if link is None or (link.is_silent and timeout_ms < QUERY_MS):
            raise shard_down(member)
        return await link.begin(KIND, query).within(timeout_ms)

    # ---- fleets; see ``host_fleet.OtherFleets`` ----

    def members(self) -> list[str]:
        """Return the ids of the other members that can be asked."""
        return [id for id, link in self._links.items() if link.is_up]

    async def fleet_weights(self, member: str, queue: str) -> dict[int, int]:
        """Return the shards of a member with messages of a queue; none of a member out of reach."""
        return await self._ask_fleet(member, "member.fleet_weights", queue) or {}

    async def fleet_work(self, member: str, queue: str, wait_ms: int) -> bool:
        """Wait until more messages of a queue arrive at a member; return whether some have."""
        found = await self._ask_fleet(member, "member.fleet_work", queue, wait_ms, timeout_ms=QUERY_MS + wait_ms)
        return bool(found)

    async def _ask_fleet(self, member: str, path: str, *arguments: Any, timeout_ms: int = QUERY_MS) -> Any:
        link = self._links.get(member)
        if link is None or not link.is_up:
            return None
        try:
            return await self._query(link, path, *arguments, timeout_ms=timeout_ms)
        except TenantqError:
            return None

    async def _query(self, link: Link, path: str, *arguments: Any, timeout_ms: int = QUERY_MS) -> Any:
        method = self.methods[path]
        pending = link.begin(KIND, method.encode(None, arguments, {}, MEMBER))
        return method.result(await pending.within(timeout_ms), pending)

    # ---- answering ----

    async def _answer(self, request: PeerRequest) -> bytes:
        """Execute a call of another member, in its caller's turn."""
        shard, path, call, values = _decode_call(request.payload)
        method = self.methods[path]
        arguments, options = method.arguments(values)
        if shard == MEMBER:
            answer = getattr(self._queries, path.partition(".")[2])
            if not inspect.iscoroutinefunction(answer):
                return encode(answer(*arguments, **options))
            return encode(await execute(method, request, lambda: answer(*arguments, **options)))
        if call is not None:
            call = msgspec.structs.replace(call, certificate=as_given(call.certificate), connection=request)
            await self._take_turn(call)
        thread = await self._owned(shard)
        size = len(request.payload)
        if self._held_bytes + size > HELD_BYTES_MAX:
            raise no_room()
        self._held_bytes += size
        try:
            result = await execute(method, request, lambda: thread.call(path, call, *arguments, **options))
        finally:
            self._held_bytes -= size
        if isinstance(result, HostedExport):
            request.parts = result
            return encode(result.tenant)
        if method.leases and request.is_gone:
            thread.run(lambda: thread.release_leases(result))
        if method.waits and result == [] and not thread.is_open:
            raise thread.not_owner()  # a handover has ended the wait; it continues at the new owner
        return encode(result)

    async def _owned(self, shard: int) -> ShardThread:
        """Return a shard of this member, after it has opened. Raises NotOwner."""
        until_ms = self._clock.monotonic_ms() + OPENING_MS
        while self.calls.host.is_opening(shard) and self._clock.monotonic_ms() < until_ms:
            await self.calls.hold(shard, until_ms)
        thread = self.calls.host.thread(shard)
        if thread is None:
            error = NotOwner(f"shard {shard} is not on this server. Try again later.")
            error.shard, error.owner = shard, self.calls.host.successors.get(shard, "")
            raise error
        return thread

    async def _take_turn(self, call: Call) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.enter(call.bearer, turn)
        await turn


def _owners(view: ClusterView) -> dict[str, dict[int, int]]:
    return {id: member.owned for id, member in view.members.items()}
