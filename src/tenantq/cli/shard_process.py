"""The process of one shard, started by its supervisor: ``python -m tenantq.cli.shard_process FD``.

What it is to do comes over that descriptor. When the supervisor is gone, so is the other end, and the shard stops in good order, within
seconds: whoever starts the server again waits for that. Signals are for the supervisor, which tells its shards; where a service manager sends
them to every process, a shard does not mind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.addresses import shown_url
from tenantq.cli.commands.serve import closed, run_loop, show_token
from tenantq.cli.logs import set_up_logs
from tenantq.cli.shard_orders import ALIVE_EVERY_MS, CLOSE, LENGTH_BYTES, ShardStartup, ShardStatus
from tenantq.cluster.shard_spec import Sockets
from tenantq.errors import TenantqError, Unavailable
from tenantq.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.cli.addresses import Place

log = logging.getLogger("tenantq")

ORPHAN_GRACE_MS: Final = 2_000
"""How long requests in flight are waited for where the supervisor is gone: another one may be waiting for the directory."""


def main() -> int:
    """Serve until told to stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    size = int.from_bytes(_receive(control, LENGTH_BYTES))
    orders = msgspec.json.decode(_receive(control, size), type=ShardStartup)
    settings = orders.settings
    set_up_logs(settings.log_level, settings.log_format, orders.seat.shards[orders.seat.number].name)
    return run_loop(_serve(orders, control))


def _receive(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            sys.exit(exit_codes.ERROR)  # the supervisor is gone already
        data += part
    return data


class _Control:
    """The shard's end of the talk with its supervisor."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def tell(self, news: ShardStatus) -> None:
        self._writer.write(msgspec.json.encode(news) + b"\n")

    async def keep_telling(self) -> None:
        """Say that the shard is alive, again and again."""
        while True:
            self.tell(ShardStatus(what="alive"))
            await asyncio.sleep(ALIVE_EVERY_MS / 1_000)

    async def heard(self) -> bytes:
        """Return the next word; nothing where the supervisor is gone."""
        try:
            return await self._reader.readline()
        except OSError:
            return b""


async def _serve(orders: ShardStartup, sock: socket.socket) -> int:
    control = _Control(*await asyncio.open_connection(sock=sock))
    sockets = Sockets(
        _socket(orders.peers_fd),
        _sockets(orders.http_fds, orders.http_places),
        _sockets(orders.rpc_fds, orders.rpc_places),
    )
    heard = asyncio.ensure_future(control.heard())
    server = Server(
        orders.settings,
        admin_token=orders.admin_token,
        seat=orders.seat,
        sockets=sockets,
        opened=lambda: control.tell(ShardStatus(what="opened")),
        show_token=lambda token: show_token(token, shown_url(orders.settings, orders.http_places[0].port)),
    )
    try:
        if not await _started(server, heard):
            return exit_codes.OK
    except (TenantqError, OSError) as error:
        failure = (
            error
            if isinstance(error, TenantqError)
            else Unavailable(f"{error.filename or 'the shard'}: {error.strerror}")
        )
        control.tell(ShardStatus(what="failed", code=failure.code, message=failure.message))
        return exit_codes.UNAVAILABLE
    log.info("store open", extra={"data_dir": orders.settings.data_dir, "pid": os.getpid()})
    control.tell(ShardStatus(what="ready"))
    telling = asyncio.ensure_future(control.keep_telling())
    stops = [heard, asyncio.ensure_future(server.shard.stopped.wait())]
    await asyncio.wait(stops, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    if server.shard.failure is not None:
        return await closed(server, grace_ms=0)
    has_supervisor = not heard.done() or bool(heard.result())
    await server.drain(None if has_supervisor else min(ORPHAN_GRACE_MS, orders.settings.grace_ms))
    if has_supervisor:  # else nobody is there who could say that the others are done
        control.tell(ShardStatus(what="drained"))
        await _until_closing(control, heard)
    return await closed(server)


async def _started(server: Server, heard: asyncio.Future[bytes]) -> bool:
    """Start; False where it was told to stop meanwhile, or the supervisor went."""
    starting = asyncio.ensure_future(server.start())
    waits: list[asyncio.Future[Any]] = [starting, heard]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if starting.cancelled():
        return False
    starting.result()
    return True


async def _until_closing(control: _Control, heard: asyncio.Future[bytes]) -> None:
    word = await heard
    while word and word != CLOSE:
        word = await control.heard()


def _socket(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def _sockets(descriptors: Iterable[int], places: Iterable[Place]) -> tuple[socket.socket, ...]:
    return (*(_socket(descriptor) for descriptor in descriptors), *(place.opened(listens=False) for place in places))


if __name__ == "__main__":
    sys.exit(main())
