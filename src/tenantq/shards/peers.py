"""The other shards of this server, as one of them sees them: who has which tenant, and how each is asked."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.errors import TenantqError
from tenantq.shards.directory import Directory, announced
from tenantq.shards.door import Door
from tenantq.shards.layout import HOME
from tenantq.shards.link import Link

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from tenantq.clock import Clock, Timer
    from tenantq.shards.door import Asked, Handler
    from tenantq.shards.seat import Seat

log = logging.getLogger("tenantq.shards")

LOOK_MS: Final = 5_000
"""How often it is seen whether the others know of every tenant; they are told of each at once, so there is seldom one."""

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
        seat: Seat,
        clock: Clock,
        own: Callable[[], Mapping[str, Any]],
        background: Callable[[Any], None],
    ) -> None:
        """Prepare. ``own`` returns this shard's tenants by name, each with its ``config``."""
        self.seat = seat
        self.number = seat.number
        self.directory = Directory(seat.number, seat.topology, own)
        self._own = own
        self._clock = clock
        self._background = background
        self._told: dict[int, set[str]] = {}  # what each other shard knows of this one's
        self._handlers: dict[str, Handler] = {_TENANTS: self._learn_all, _CHANGES: self._learn}
        self._door = Door(seat.secret, self._handlers, self._gone)
        hello = (seat.secret, seat.number)
        self.links = {
            number: Link(number, port, hello, self._introduce)
            for number, port in enumerate(seat.peer_ports)
            if number != seat.number
        }
        self._all_linked = asyncio.Event()
        self._timer: Timer | None = None

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
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        await self._door.close()

    # ---- asking ----

    async def ask(self, shard: int, kind: str, payload: bytes = b"") -> bytes:
        """Ask one other shard."""
        return await self.links[shard].ask(kind, payload)

    async def ask_all(self, kind: str, payload: bytes = b"") -> dict[int, bytes]:
        """Ask all others; raise ShardDown if one does not run, or what one raised."""
        answers = await asyncio.gather(*(link.ask(kind, payload) for link in self.links.values()))
        return dict(zip(self.links, answers, strict=True))

    async def ask_those_up(self, kind: str, payload: bytes = b"") -> dict[int, bytes | TenantqError]:
        """Ask all others; what one raised stands in place of its answer."""
        answers = await asyncio.gather(
            *(link.ask(kind, payload) for link in self.links.values()), return_exceptions=True
        )
        found: dict[int, bytes | TenantqError] = {}
        for number, answer in zip(self.links, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, TenantqError):
                raise answer
            found[number] = answer
        return found

    # ---- who has which tenant ----

    async def tell_made(self, tenant: str) -> None:
        """Return when all others that run know of a tenant that was made here."""
        await self._tell([tenant], [])

    async def tell_gone(self, tenant: str) -> None:
        """Return when they know of one that is gone."""
        await self._tell([], [tenant])

    async def _tell(self, made: list[str], gone: list[str]) -> None:
        changes = _encode(_Changes(made, gone))
        up = [link for link in self.links.values() if link.number in self._told]
        for link in up:
            self._told[link.number].difference_update(gone)
            self._told[link.number].update(made)
        await asyncio.gather(*(link.ask(_CHANGES, changes) for link in up), return_exceptions=True)

    async def _introduce(self, link: Link) -> None:
        """Tell a shard that can be asked from now on everything that this one has."""
        names = announced(self.number, self._own())
        self._told[link.number] = set(names)
        self._see_whether_all_linked()
        await link.ask(_TENANTS, _encode(_Tenants(names)))

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

    def _see_whether_all_linked(self) -> None:
        if not self.directory.silent and all(link.is_up for link in self.links.values()):
            self._all_linked.set()

    def _look(self) -> None:
        """See whether the others have missed anything."""
        self._timer = self._clock.call_later(LOOK_MS, self._look)
        for number, told in list(self._told.items()):
            if not self.links[number].is_up:
                del self._told[number]
                continue
            names = set(announced(self.number, self._own()))
            if names != told:
                self._background(self._catch_up(number, names - told, told - names))

    async def _catch_up(self, number: int, made: Iterable[str], gone: Iterable[str]) -> None:
        self._told[number].difference_update(gone)
        self._told[number].update(made)
        await self.links[number].ask(_CHANGES, _encode(_Changes(list(made), list(gone))))
