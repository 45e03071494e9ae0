"""The other shards of this server, as one of them sees them: who has which tenant, and how each is asked."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.cluster.directory import Directory, announced
from tenantq.cluster.layout import HOME
from tenantq.cluster.link import Link
from tenantq.cluster.server import Door
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from tenantq.cluster.server import Asked, Handler
    from tenantq.cluster.shard_spec import ShardSpec
    from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq.shards")

LOOK_MS: Final = 5_000
"""How often it is seen whether the others know of every tenant; they are told of each at once, so there is seldom one."""

BEAT_MS: Final = 1_000
"""How often each other shard is asked for a sign of life."""

QUICK_MS: Final = 5_000
"""How long is waited for what another shard knows without looking anything up."""

READ_MS: Final = 60_000
"""How long for what it has to read or to count."""

_TENANTS: Final = "tenants"
_CHANGES: Final = "tenant_changes"


class _Tenants(msgspec.Struct, frozen=True, array_like=True):
    names: list[str]


class _Changes(msgspec.Struct, frozen=True, array_like=True):
    made: list[str]
    gone: list[str]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_tenants: Final = msgspec.msgpack.Decoder(_Tenants).decode
_decode_changes: Final = msgspec.msgpack.Decoder(_Changes).decode


class Peers:
    """All shards but this one. Made inside the event loop, after the store is open."""

    def __init__(
        self,
        spec: ShardSpec,
        clock: Clock,
        own: Callable[[], Mapping[str, Any]],
        background: Callable[[Any], None],
    ) -> None:
        """Prepare. ``own`` returns this shard's tenants by name, each with its ``config``."""
        self.spec = spec
        self.number = spec.number
        self.directory = Directory(spec.number, spec.topology, own)
        self._own = own
        self._clock = clock
        self._background = background
        self._told: dict[int, set[str]] = {}  # what each other shard has said that it knows of this one's
        self._handlers: dict[str, Handler] = {_TENANTS: self._learn_all, _CHANGES: self._learn}
        self.is_ready: Callable[[], bool] = lambda: False  # what the others are told; set by who wires the service
        self._door = Door(spec.secret, self._handlers, self._gone, self._says_ready)
        hello = (spec.secret, spec.number)
        self.links = {
            number: Link(number, port, hello, self._introduce)
            for number, port in enumerate(spec.peer_ports)
            if number != spec.number
        }
        self._telling = {number: asyncio.Lock() for number in self.links}
        self._all_linked = asyncio.Event()
        self._timer: Timer | None = None
        self._beat_timer: Timer | None = None
        self._beat_at = clock.monotonic_ms()

    @property
    def is_home(self) -> bool:
        """Whether this shard says where a new tenant goes, and has the platform's keys."""
        return self.number == HOME

    def answers(self, kind: str, handler: Handler) -> None:
        """Have questions of a kind answered; to be said before it opens."""
        self._handlers[kind] = handler

    async def open(self, sock: socket.socket) -> None:
        """Let the others in, and call them."""
        await self._door.open(sock)
        for link in self.links.values():
            link.start()
        self._see_whether_all_linked()
        self._look()
        self._beat_timer = self._clock.call_later(BEAT_MS, self._beat)

    async def wait_for_all(self, wait_ms: int) -> bool:
        """Wait until every other shard can be asked and has told what it has; False: not in time."""
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._all_linked.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End all calls."""
        for timer in (self._timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        await self._door.close()

    # ---- asking ----

    async def ask(self, shard: int, kind: str, payload: bytes = b"", wait_ms: int | None = READ_MS) -> bytes:
        """Ask one other shard; ShardDown where it has no answer in ``wait_ms``."""
        return await self.links[shard].ask(kind, payload, wait_ms)

    async def ask_all(self, kind: str, payload: bytes = b"") -> dict[int, bytes]:
        """Ask all others; raise ShardDown if one does not run, or what one raised."""
        answers = await asyncio.gather(*(link.ask(kind, payload, READ_MS) for link in self.links.values()))
        return dict(zip(self.links, answers, strict=True))

    async def ask_for_one(self, kind: str, payload: bytes) -> bytes:
        """Ask all others what one of them may know; return the first answer that says anything, or nothing where all have said nothing.

        Raises what one raised only where no other knows.
        """
        failure: TenantqError | None = None
        asking = [asyncio.ensure_future(link.ask(kind, payload, QUICK_MS)) for link in self.links.values()]
        try:
            for next_one in asyncio.as_completed(asking):
                try:
                    if answer := await next_one:
                        return answer
                except TenantqError as error:
                    failure = error
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if failure is not None:
            raise failure
        return b""

    async def ask_those_up(
        self, kind: str, payload: bytes = b"", wait_ms: int | None = READ_MS
    ) -> dict[int, bytes | TenantqError]:
        """Ask all others; what one raised stands in place of its answer."""
        answers = await asyncio.gather(
            *(link.ask(kind, payload, wait_ms) for link in self.links.values()), return_exceptions=True
        )
        found: dict[int, bytes | TenantqError] = {}
        for number, answer in zip(self.links, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, TenantqError):
                raise answer
            found[number] = answer
        return found

    # ---- who has which tenant ----

    async def tell_made(self, tenant: str) -> None:
        """Return when all others that run know of a tenant that was made or changed here."""
        await self._tell(tenant)

    async def tell_gone(self, tenant: str) -> None:
        """Return when they know of one that is gone."""
        await self._tell(tenant)

    async def _tell(self, tenant: str) -> None:
        up = [link for link in self.links.values() if link.is_up]
        await asyncio.gather(*(self._catch_up(link, tenant) for link in up), return_exceptions=True)

    async def _introduce(self, link: Link) -> None:
        """Tell a shard that can be asked from now on everything that this one has."""
        async with self._telling[link.number]:
            await self._tell_all(link)

    async def _tell_all(self, link: Link) -> None:
        self._told.pop(link.number, None)
        names = announced(self.number, self._own())
        self._see_whether_all_linked()
        await link.ask(_TENANTS, _encode(_Tenants(names)), QUICK_MS)
        self._told[link.number] = set(names)

    async def _catch_up(self, link: Link, tenant: str | None = None) -> None:
        """Tell a shard how it is with a tenant now, or whatever it does not know; one after the other, so that the last word is true.

        Where it has not said that it knows, it is told everything anew, next time.
        """
        async with self._telling[link.number]:
            told = self._told.get(link.number)
            if told is None:
                await self._tell_all(link)
                return
            names = set(announced(self.number, self._own() if tenant is None else {tenant} & self._own().keys()))
            gone = told - names if tenant is None else {tenant} - names
            made = names - told if tenant is None else names
            if not made and not gone:
                return
            del self._told[link.number]  # until it has said that it knows
            await link.ask(_CHANGES, _encode(_Changes(list(made), list(gone))), QUICK_MS)
            told |= made
            told -= gone
            self._told[link.number] = told

    async def _learn_all(self, asked: Asked) -> bytes:
        told = _decode_tenants(asked.payload)
        twice = self.directory.learn_all(asked.shard, told.names)
        twice += [name for name in announced(self.number, self._own()) if self.directory.is_elsewhere(name)]
        if twice:
            log.error("tenants that two shards have, of which one is not served: %s", ", ".join(sorted(twice)[:10]))
        self._see_whether_all_linked()
        return b""

    async def _learn(self, asked: Asked) -> bytes:
        changes = _decode_changes(asked.payload)
        self.directory.learn(asked.shard, changes.made, changes.gone)
        return b""

    def _gone(self, shard: int) -> None:
        self.directory.lose(shard)

    def _says_ready(self) -> bool:
        return self.is_ready()

    def _see_whether_all_linked(self) -> None:
        if not self.directory.silent and all(link.is_up for link in self.links.values()):
            self._all_linked.set()

    def _look(self) -> None:
        """See whether the others have missed anything."""
        self._timer = self._clock.call_later(LOOK_MS, self._look)
        names = set(announced(self.number, self._own()))
        for number, link in self.links.items():
            if link.is_up and not self._telling[number].locked() and names != self._told.get(number):
                self._background(self._catch_up_later(link))

    async def _catch_up_later(self, link: Link) -> None:
        try:
            await self._catch_up(link)
        except TenantqError as error:
            log.debug("shard %d could not be told what is new: %s", link.number, error)

    def _beat(self) -> None:
        """Ask every other shard for a sign of life. One that gives none is as good as gone, and has to call again."""
        self._beat_timer = self._clock.call_later(BEAT_MS, self._beat)
        before, self._beat_at = self._beat_at, self._clock.monotonic_ms()
        is_late = self._beat_at - before > 2 * BEAT_MS
        for number, link in self.links.items():
            if link.beat(is_late=is_late):
                self._told.pop(number, None)
                self._door.drop(number)
