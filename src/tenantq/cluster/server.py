"""The answering end of connections between shards."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from tenantq.cluster.frames import (
    ASK,
    CHALLENGE,
    FAILED,
    HELLO,
    PART,
    PING,
    PONG,
    PROOF,
    PULL,
    REPLY,
    STOP,
    WELCOME,
    Frame,
    Wire,
)
from tenantq.cluster.handshake import CALLER, DOOR, is_nonce, is_proof, nonce, proof
from tenantq.cluster.layout import SHARDS_MAX
from tenantq.errors import Closed, TenantqError

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[["Asked"], Awaitable[bytes]]

log = logging.getLogger("tenantq.shards")


HELLO_S: Final = 5.0
"""In this time whoever calls has to show who it is."""

STRANGERS_MAX: Final = 2 * SHARDS_MAX
"""Who have not shown yet who they are, at a time; one more is shown out."""


_MISTAKE: Final = (TenantqError.code, "the server made a mistake; its log says which", 0)


class Asked:
    """A question of another shard, as whoever answers it sees it."""

    __slots__ = ("id", "is_gone", "is_stopped", "kind", "on_stop", "parts", "payload", "pulled", "shard", "task")

    def __init__(self, id: int, shard: int, kind: str, payload: bytes) -> None:
        self.id = id
        self.shard = shard  # who asks
        self.kind = kind
        self.payload = payload
        self.parts: AsyncIterator[bytes] | None = None  # what follows the answer, to be pulled
        self.pulled = asyncio.Event()  # the next of them is wanted
        self.on_stop: Callable[[], None] | None = (
            None  # answers now, with what there is; None: the answer takes no waiting
        )
        self.is_stopped = False  # whoever answers is to wait for nothing, from the beginning where it has not begun
        self.is_gone = False  # nobody waits for the answer any more
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Have it answered now, with what there is."""
        self.is_stopped = True
        if self.on_stop is not None:
            self.on_stop()


class _Caller:
    """One other shard that has called, and what it has asked."""

    __slots__ = ("asked", "shard", "wire")

    def __init__(self, shard: int, wire: Wire) -> None:
        self.shard = shard
        self.wire = wire
        self.asked: dict[int, Asked] = {}


class Door:
    """Lets the other shards of this server in, and has their questions answered by ``handlers``."""

    def __init__(
        self,
        secret: str,
        handlers: dict[str, Handler],
        gone: Callable[[int], None],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._secret = secret
        self._is_ready = is_ready  # what the others are told with every sign of life
        self._handlers = handlers
        self._gone = gone  # told when a shard's connection has ended
        self._callers: dict[Wire, _Caller] = {}
        self._wires: set[Wire] = set()
        self._challenged: dict[Wire, tuple[int, bytes]] = {}  # by who has said hello: its number, and its proof to come
        self._server: asyncio.Server | None = None

    async def open(self, sock: socket.socket) -> None:
        """Take calls."""
        self._server = await asyncio.get_running_loop().create_server(self._new_wire, sock=sock)

    async def close(self) -> None:
        """Take no more calls, and end those that are under way."""
        if self._server is not None:
            self._server.close()
        tasks = [one.task for caller in self._callers.values() for one in caller.asked.values() if one.task is not None]
        for wire in list(self._wires):
            wire.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop(self, shard: int) -> None:
        """End the calls of a shard; if it is there, it calls again."""
        for caller in list(self._callers.values()):
            if caller.shard == shard:
                caller.wire.close()

    def _new_wire(self) -> Wire:
        wire = Wire(self._take, self._lost)
        is_one_too_many = len(self._wires) - len(self._callers) >= STRANGERS_MAX
        self._wires.add(wire)
        asyncio.get_running_loop().call_later(0 if is_one_too_many else HELLO_S, _end_stranger, wire)
        return wire

    def _take(self, wire: Wire, frame: Frame) -> None:
        caller = self._callers.get(wire)
        if caller is None:
            self._greet(wire, frame)
        elif frame[0] == PING:
            wire.send(PONG, self._is_ready())
        elif frame[0] == ASK:
            asked = Asked(frame[1], caller.shard, frame[2], frame[3])
            caller.asked[asked.id] = asked
            asked.task = asyncio.get_running_loop().create_task(self._answer(caller, asked))
        elif (found := caller.asked.get(frame[1])) is None:
            return  # it was answered meanwhile
        elif frame[0] == STOP:
            if frame[2] and found.parts is not None and not found.is_gone:
                del caller.asked[found.id]
            _stop(found, is_gone=frame[2])
        elif frame[0] == PULL:
            found.pulled.set()

    def _greet(self, wire: Wire, frame: Frame) -> None:
        """Let in who shows that it knows the secret, which is not said; and show it that it has called the right one."""
        match frame:
            case [kind, int(number), bytes(callers)] if (
                kind == HELLO and wire not in self._challenged and is_nonce(callers)
            ):
                own = nonce()
                self._challenged[wire] = number, proof(self._secret, CALLER, number, callers, own)
                wire.send(CHALLENGE, own, proof(self._secret, DOOR, number, callers, own))
            case [kind, given] if kind == PROOF and wire in self._challenged:
                number, expected = self._challenged.pop(wire)
                if not is_proof(given, expected):
                    self._show_out(wire)
                    return
                wire.is_known = True
                self._callers[wire] = _Caller(number, wire)
                wire.send(WELCOME)
            case _:
                self._show_out(wire)

    @staticmethod
    def _show_out(wire: Wire) -> None:
        log.warning("somebody who is no shard of this server called at its inner address; the call was ended")
        wire.close()

    async def _answer(self, caller: _Caller, asked: Asked) -> None:
        """Answer one question; whatever goes wrong is an answer too."""
        try:
            answer = await self._handlers.get(asked.kind, _not_ready)(asked)
        except TenantqError as error:
            self._end(caller, asked, FAILED, error.code, error.message, getattr(error, "retry_after_ms", 0))
        except asyncio.CancelledError:
            caller.asked.pop(asked.id, None)
            raise
        except Exception:
            log.exception("a fault in answering shard %d: %s", caller.shard, asked.kind)
            self._end(caller, asked, FAILED, *_MISTAKE)
        else:
            if asked.parts is None:
                self._end(caller, asked, REPLY, answer, False)
            else:
                await self._send_parts(caller, asked, answer, asked.parts)

    async def _send_parts(self, caller: _Caller, asked: Asked, answer: bytes, parts: AsyncIterator[bytes]) -> None:
        """Send an answer, and what follows it as it is pulled; however that ends, what it comes from is let go."""
        try:
            async with aclosing(parts):  # type: ignore[type-var]  # they are generators
                if not asked.is_gone:
                    caller.wire.send(REPLY, asked.id, answer, True)
                while not asked.is_gone:
                    await asked.pulled.wait()
                    asked.pulled.clear()
                    part = await anext(parts, None)
                    if part is None:
                        break
                    caller.wire.send(PART, asked.id, part)
        except TenantqError as error:
            self._end(caller, asked, FAILED, error.code, error.message, 0)
        except Exception:
            log.exception("a fault in what follows an answer to shard %d: %s", caller.shard, asked.kind)
            self._end(caller, asked, FAILED, *_MISTAKE)
        else:
            self._end(caller, asked, PART, None)

    @staticmethod
    def _end(caller: _Caller, asked: Asked, kind: int, *rest: Any) -> None:
        caller.asked.pop(asked.id, None)
        caller.wire.send(kind, asked.id, *rest)

    def _lost(self, wire: Wire) -> None:
        self._wires.discard(wire)
        self._challenged.pop(wire, None)
        caller = self._callers.pop(wire, None)
        if caller is None:
            return
        for asked in list(caller.asked.values()):
            _stop(asked, is_gone=True)
        if all(other.shard != caller.shard for other in self._callers.values()):  # else it has called anew already
            self._gone(caller.shard)


def _end_stranger(wire: Wire) -> None:
    if not wire.is_known:
        wire.close()


async def _not_ready(_: Asked) -> bytes:
    raise Closed("the shard has not started wholly yet. Try again later.")


def _stop(asked: Asked, *, is_gone: bool) -> None:
    """Have a question answered now, if its answer only waits; what is at work is finished, whether or not anybody reads it."""
    was_gone, asked.is_gone = asked.is_gone, asked.is_gone or is_gone
    if asked.parts is not None:
        if is_gone and not was_gone and asked.task is not None:
            asked.task.cancel()
        return
    asked.stop()
