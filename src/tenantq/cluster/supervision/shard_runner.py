"""A process of a server: serves one shard, or takes part in a cluster, until its supervisor tells it to stop.

When the supervisor is gone, the shard stops gracefully within seconds; whoever starts the server again waits for that.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from tenantq.cluster.shard_spec import Sockets
from tenantq.cluster.supervision.messages import ALIVE_EVERY_MS, CLOSE, LENGTH_BYTES, ShardStartup, ShardStatus
from tenantq.errors import TenantqError, Unavailable
from tenantq.runtime.futures import run_until
from tenantq.server import Server
from tenantq.server.cluster_member import HostServer
from tenantq.server.listen_addresses import SharedAddress

log = logging.getLogger("tenantq")

ORPHAN_GRACE_MS: Final = 2_000
"""How long requests in flight may take if the supervisor is gone: another one may be waiting for the directory."""


def receive_startup(control: socket.socket) -> ShardStartup:
    """Return the supervisor's first message; end the process if the supervisor is gone."""
    size = int.from_bytes(_receive(control, LENGTH_BYTES))
    return msgspec.json.decode(_receive(control, size), type=ShardStartup)


def _receive(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            sys.exit(1)
        data += part
    return data


class ShardRunner:
    """Runs the server of one shard, and reports to the supervisor."""

    def __init__(self, startup: ShardStartup, control: socket.socket, show_token: Callable[[str], None]) -> None:
        self._startup = startup
        self._control = control
        self.has_started = False
        sockets = Sockets(
            socket.socket(fileno=startup.peers_fd) if startup.peers_fd is not None else None,
            _sockets(startup.http_fds, startup.http_addresses),
            _sockets(startup.rpc_fds, startup.rpc_addresses),
        )
        self.server: Server | HostServer
        if startup.spec is None:
            self.server = HostServer(
                startup.settings,
                admin_token=startup.admin_token,
                process=startup.number,
                sockets=sockets,
                opened=self._report_opened,
                show_token=show_token,
            )
        else:
            self.server = Server(
                startup.settings,
                admin_token=startup.admin_token,
                spec=startup.spec,
                sockets=sockets,
                opened=self._report_opened,
                show_token=show_token,
            )

    async def run(self) -> int | None:
        """Serve until told to stop; return the grace in which the server is to be closed, None for its own.

        ``has_started`` is False afterwards if it was told to stop before. Raise TenantqError if it cannot start; the
        supervisor has been told why.
        """
        self._reader, self._writer = await asyncio.open_connection(sock=self._control)
        server, command = self.server, asyncio.ensure_future(self._next_command())
        try:
            starting = await run_until(command, server.start())
            self.has_started = not starting.cancelled()  # else it was told to stop meanwhile, or the supervisor is gone
            if self.has_started:
                starting.result()
        except (TenantqError, OSError) as error:
            failure = error if isinstance(error, TenantqError) else _unavailable(error)
            self._report(ShardStatus(state="failed", code=failure.code, message=failure.message))
            raise failure from error
        if not self.has_started:
            return None
        log.info("store open", extra={"data_dir": self._startup.settings.data_dir, "pid": os.getpid()})
        self._report(ShardStatus(state="ready"))
        reporting = asyncio.ensure_future(self._keep_reporting())
        stops = [command, asyncio.ensure_future(server.failed())]
        await asyncio.wait(stops, return_when=asyncio.FIRST_COMPLETED)
        stops[1].cancel()
        reporting.cancel()
        if server.failure is not None:
            return 0
        has_supervisor = not command.done() or bool(command.result())
        await server.drain(None if has_supervisor else min(ORPHAN_GRACE_MS, self._startup.settings.grace_ms))
        if has_supervisor:  # without one, nobody can tell when the other shards have drained
            self._report(ShardStatus(state="drained"))
            word = await command
            while word and word != CLOSE:
                word = await self._next_command()
        return None

    def _report_opened(self) -> None:
        self._report(ShardStatus(state="opened"))

    def _report(self, status: ShardStatus) -> None:
        self._writer.write(msgspec.json.encode(status) + b"\n")

    async def _keep_reporting(self) -> None:
        while True:
            self._report(ShardStatus(state="alive"))
            await asyncio.sleep(ALIVE_EVERY_MS / 1_000)

    async def _next_command(self) -> bytes:
        """Return the supervisor's next command; empty if the supervisor is gone."""
        try:
            return await self._reader.readline()
        except OSError:
            return b""


def _unavailable(error: OSError) -> Unavailable:
    return Unavailable(f"{error.filename or 'the shard'}: {error.strerror}")


def _sockets(descriptors: Iterable[int], addresses: Iterable[SharedAddress]) -> tuple[socket.socket, ...]:
    own = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    return (*own, *(address.open(listens=False) for address in addresses))
