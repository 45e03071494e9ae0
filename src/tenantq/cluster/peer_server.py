"""The server for requests of other shards."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from tenantq.cluster import frames
from tenantq.cluster.error_codec import encode_error
from tenantq.cluster.frames import LinkFrame, PeerConnection
from tenantq.cluster.handshake import CALLER, SERVER, PeerName, is_nonce, is_proof, nonce, proof
from tenantq.errors import Closed, TenantqError
from tenantq.store.shard_directories import SHARDS_MAX

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tenantq.cluster.link_certificate import LinkCertificate

    PeerHandler = Callable[["PeerRequest"], Awaitable[bytes]]

log = logging.getLogger("tenantq.shards")


HANDSHAKE_S: Final = 5.0
"""How long a handshake may take."""

UNAUTHENTICATED_MAX: Final = 2 * SHARDS_MAX
"""Connections whose handshake is not complete; one more is closed."""
_FAULT: Final = encode_error(TenantqError("internal server error; see the server log"))


class PeerRequest:
    """A request of another shard, as its handler sees it."""

    __slots__ = ("id", "is_gone", "is_stopped", "kind", "on_stop", "parts", "payload", "pulled", "shard", "task")

    def __init__(self, id: int, shard: PeerName, kind: str, payload: bytes) -> None:
        self.id = id
        self.shard = shard  # that sent it, or the server
        self.kind = kind
        self.payload = payload
        self.parts: AsyncIterator[bytes] | None = None  # what follows the reply, to be pulled
        self.pulled = asyncio.Event()  # the next part is wanted
        self.on_stop: Callable[[], object] | None = None  # ends the wait of the handler; None: it does not wait
        self.is_stopped = False  # the handler must not wait any more
        self.is_gone = False  # nobody waits for the reply any more
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Tell the handler to reply now."""
        self.is_stopped = True
        if self.on_stop is not None:
            self.on_stop()


class _ConnectedPeer:
    """Another shard that is connected, and its requests."""

    __slots__ = ("connection", "requests", "shard")

    def __init__(self, shard: PeerName, connection: PeerConnection) -> None:
        self.shard = shard
        self.connection = connection
        self.requests: dict[int, PeerRequest] = {}


class PeerServer:
    """Accepts connections of the other shards, and answers their requests by the handler of each kind."""

    def __init__(
        self, secret: str, handlers: dict[str, PeerHandler], is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._secret = secret
        self._is_ready = is_ready  # sent with every heartbeat
        self._handlers = handlers
        self._callers: dict[PeerConnection, _ConnectedPeer] = {}
        self._connections: set[PeerConnection] = set()
        self._challenged: dict[
            PeerConnection, tuple[PeerName, bytes]
        ] = {}  # by connection: the number and the expected proof
        self._server: asyncio.Server | None = None
        self._binding = b""
        self._has_rejected = False  # since the last successful handshake

    async def open(self, sock: socket.socket, certificate: LinkCertificate | None = None) -> None:
        """Accept connections, with TLS if there is a certificate."""
        tls = certificate.server_context if certificate is not None else None
        self._binding = certificate.digest if certificate is not None else b""
        self._server = await asyncio.get_running_loop().create_server(self._new_connection, sock=sock, ssl=tls)

    async def close(self) -> None:
        """Close all connections, and wait for the handlers."""
        if self._server is not None:
            self._server.close()
        tasks = [
            one.task for caller in self._callers.values() for one in caller.requests.values() if one.task is not None
        ]
        for connection in list(self._connections):
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new_connection(self) -> PeerConnection:
        connection = PeerConnection(self._receive, self._lost)
        is_one_too_many = len(self._connections) - len(self._callers) >= UNAUTHENTICATED_MAX
        self._connections.add(connection)
        asyncio.get_running_loop().call_later(0 if is_one_too_many else HANDSHAKE_S, _close_unauthenticated, connection)
        return connection

    def _receive(self, connection: PeerConnection, frame: LinkFrame) -> None:
        caller = self._callers.get(connection)
        if caller is None:
            self._shake_hands(connection, frame)
        elif frame[0] == frames.PING:
            connection.send(frames.PONG, self._is_ready())
        elif frame[0] == frames.REQUEST:
            request = PeerRequest(frame[1], caller.shard, frame[2], frame[3])
            caller.requests[request.id] = request
            request.task = asyncio.get_running_loop().create_task(self._answer(caller, request))
        elif (found := caller.requests.get(frame[1])) is None:
            return  # answered meanwhile
        elif frame[0] == frames.STOP:
            if frame[2] and found.parts is not None and not found.is_gone:
                del caller.requests[found.id]
            _stop(found, is_gone=frame[2])
        elif frame[0] == frames.PULL:
            found.pulled.set()

    def _shake_hands(self, connection: PeerConnection, frame: LinkFrame) -> None:
        """Authenticate a shard that proves to know the secret, and prove the same to it."""
        match frame:
            case [frames.HELLO, int() | str() as number, bytes(callers)] if (
                connection not in self._challenged and is_nonce(callers)
            ):
                own = nonce()
                self._challenged[connection] = number, proof(self._secret, CALLER, number, callers, own, self._binding)
                connection.send(frames.CHALLENGE, own, proof(self._secret, SERVER, number, callers, own, self._binding))
            case [frames.PROOF, given] if connection in self._challenged:
                number, expected = self._challenged.pop(connection)
                if not is_proof(given, expected):
                    self._reject(connection)
                    return
                connection.is_authenticated = True
                self._callers[connection] = _ConnectedPeer(number, connection)
                self._has_rejected = False
                connection.send(frames.WELCOME)
            case _:
                self._reject(connection)

    def _reject(self, connection: PeerConnection) -> None:
        if not self._has_rejected:
            log.warning(
                "a process that does not know the secret connected to the internal address; it was disconnected."
                " Further ones are not logged until another process has connected."
            )
        self._has_rejected = True
        connection.close()

    async def _answer(self, caller: _ConnectedPeer, request: PeerRequest) -> None:
        """Answer one request. Errors are replies, too."""
        try:
            answer = await self._handlers.get(request.kind, _not_ready)(request)
        except TenantqError as error:
            self._end(caller, request, frames.FAILED, encode_error(error))
        except asyncio.CancelledError:
            caller.requests.pop(request.id, None)
            raise
        except Exception:
            log.exception("internal error while answering %s: %s", caller.shard, request.kind)
            self._end(caller, request, frames.FAILED, _FAULT)
        else:
            if request.parts is None:
                self._end(caller, request, frames.REPLY, answer, False)
            else:
                await self._send_parts(caller, request, answer, request.parts)

    async def _send_parts(
        self, caller: _ConnectedPeer, request: PeerRequest, answer: bytes, parts: AsyncIterator[bytes]
    ) -> None:
        """Send a reply, and its parts as they are pulled. Close their source in any case."""
        try:
            async with aclosing(parts):  # type: ignore[type-var]  # they are generators
                if not request.is_gone:
                    caller.connection.send(frames.REPLY, request.id, answer, True)
                while not request.is_gone:
                    await request.pulled.wait()
                    request.pulled.clear()
                    part = await anext(parts, None)
                    if part is None:
                        break
                    caller.connection.send(frames.PART, request.id, part)
        except TenantqError as error:
            self._end(caller, request, frames.FAILED, encode_error(error))
        except Exception:
            log.exception("internal error in a streamed reply to %s: %s", caller.shard, request.kind)
            self._end(caller, request, frames.FAILED, _FAULT)
        else:
            self._end(caller, request, frames.PART, None)

    @staticmethod
    def _end(caller: _ConnectedPeer, request: PeerRequest, kind: int, *rest: Any) -> None:
        caller.requests.pop(request.id, None)
        caller.connection.send(kind, request.id, *rest)

    def _lost(self, connection: PeerConnection) -> None:
        self._connections.discard(connection)
        self._challenged.pop(connection, None)
        caller = self._callers.pop(connection, None)
        if caller is None:
            return
        for request in list(caller.requests.values()):
            _stop(request, is_gone=True)


def _close_unauthenticated(connection: PeerConnection) -> None:
    if not connection.is_authenticated:
        connection.close()


async def _not_ready(_: PeerRequest) -> bytes:
    raise Closed("the shard is still starting. Try again later.")


def _stop(request: PeerRequest, *, is_gone: bool) -> None:
    """End the wait of a handler. Other work is finished, whether or not anybody reads its reply."""
    was_gone, request.is_gone = request.is_gone, request.is_gone or is_gone
    if request.parts is not None:
        if is_gone and not was_gone and request.task is not None:
            request.task.cancel()
        return
    request.stop()
