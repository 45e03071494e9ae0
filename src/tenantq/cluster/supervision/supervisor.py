"""The supervisor of several shards: opens the sockets, starts a process for each shard, and restarts those that die.

It keeps every address open for as long as it runs. At the common address each shard listens with its own socket, and the
system distributes connections among them. A dead shard gets none until it is back; at its own address, connections wait for it.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tenantq.cluster.error_codec import error_of_code
from tenantq.cluster.settings import one_each
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.cluster.supervision.initial_directory import build_directory
from tenantq.cluster.supervision.messages import ALIVE_EVERY_MS, CLOSE, DRAIN, ShardStartup
from tenantq.cluster.supervision.shard_process import ShardProcess
from tenantq.domain.placement import TopologyShard
from tenantq.errors import StoreDamaged, StoreFailed, StoreLocked
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import SystemClock
from tenantq.runtime.futures import first_of
from tenantq.server.listen_addresses import (
    SharedAddress,
    open_rpc,
    opened,
    port_of,
    reserve,
)
from tenantq.settings import OFF, RPC_DEFAULT, ServerSettings, shown_address, shown_url
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.shard_directories import HOME, check_there, remember_count, shard_dir

log = logging.getLogger("tenantq")

DEATHS_MAX: Final = 5
DEATHS_WITHIN_MS: Final = 60_000
"""A shard that dies more often than that in this time is not restarted: the server stops."""

RESTART_BACKOFF: Final = Backoff(100, 5_000)
DRAIN_EXTRA_MS: Final = 5_000
CLOSE_MS: Final = 60_000
"""How long a drained shard may take to export the rest of its journal and close. Then it is killed."""

STALLED_MS: Final = 2_000
"""The same for a shard that did not drain in time: it does not respond."""

LEFT_OVER_MS: Final = 10_000
"""How long to wait for the shards of a killed supervisor, which stop by themselves."""
_RETRY_LOCK_MS: Final = 50
_SECRET_BYTES: Final = 32


class Supervisor:
    """Runs the processes of one server: one for each embedded shard, or several members of a cluster."""

    def __init__(self, settings: ServerSettings, count: int, admin_token: str | None, command: Sequence[str]) -> None:
        """Prepare ``count`` processes. ``command`` starts one; it gets a file descriptor as its last argument."""
        self._settings = settings
        self._are_members = settings.store is not None
        self._kind = "process" if self._are_members else "shard"  # in messages
        self._command = command
        self._count = count
        self._admin_token = admin_token
        self._home = Path(settings.data_dir)
        self._secret = secrets.token_hex(_SECRET_BYTES)
        self._clock = SystemClock()
        self._http_addresses: list[SharedAddress] = []  # of all shards together
        self._rpc_addresses: list[SharedAddress] = []
        self._reserved: list[socket.socket] = []  # keep the common addresses
        self._shards: list[ShardProcess] = []
        self._topology: tuple[TopologyShard, ...] = ()
        self._lock_fd: int | None = None  # locks the directory
        self._failure = ""
        self._failed = asyncio.Event()
        self._watching: list[asyncio.Task[None]] = []
        self._stopping = False
        self.rpc_address: str | None = None

    async def start(self, asked: asyncio.Event) -> str | None:
        """Start all shards. Return the URL, or None if a stop was requested meanwhile. Raise if a shard cannot start."""
        self._lock_directory()
        await self._wait_until_free(asked)
        if not self._are_members:
            await self._build_directory()
        self._open_sockets()
        home, *others = self._shards
        for shard in self._shards:  # in parallel: starting a process takes a while
            await shard.spawn(self._command, self._startup(shard))
        home.send_startup(self._startup(home))
        await self._wait_for(home.opened, asked)
        if not self._stopping:
            self._check_started(home)
            self._remember_count()
            for shard in others:
                shard.send_startup(self._startup(shard))
            for shard in others:
                await self._wait_for(shard.opened, asked)
            self._remember_count()  # again, since all have their stores now
        for shard in self._shards:
            await self._wait_for(shard.ready, asked)
            if self._stopping:
                return None
            self._check_started(shard)
        self._watching = [asyncio.get_running_loop().create_task(self._watch(shard)) for shard in self._shards]
        return shown_url(self._settings, self._http_addresses[0].port)

    def _remember_count(self) -> None:
        if not self._are_members:
            remember_count(self._home, self._count)

    async def _build_directory(self) -> None:
        """Write the tenant directory if there is none. Without it, the shards would find no tenant."""
        try:
            await asyncio.to_thread(build_directory, self._home, self._count)
        except OSError as error:
            where, what = error.filename or self._home, error.strerror or error
            raise StoreFailed(f"{where}: {what}; check the path, its permissions and the free space") from error

    def _lock_directory(self) -> None:
        """Lock the data directory; raise StoreLocked if another supervisor has it. Each shard also locks its own directory."""
        with contextlib.suppress(OSError):  # the first shard reports what is wrong with the directory
            self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_fd = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._release()
                raise StoreLocked(_holder_of(self._home)) from error
            except OSError:
                log.debug("this file system has no locks of directories")

    async def _wait_until_free(self, asked: asyncio.Event) -> None:
        """Wait for the shards that a killed supervisor left running. After that, opening the store reports who holds it."""
        until = self._clock.monotonic_ms() + LEFT_OVER_MS
        dirs = [
            path for number in range(self._count) if (path := shard_dir(self._home, number)).joinpath("lock").exists()
        ]
        while not asked.is_set() and self._clock.monotonic_ms() < until:
            try:
                for path in dirs:
                    DirectoryLock(path).close()
            except StoreLocked:
                await asyncio.sleep(_RETRY_LOCK_MS / 1_000)
            except OSError:
                return  # opening the shard reports what is wrong
            else:
                return

    async def _wait_for(self, event: asyncio.Event, asked: asyncio.Event) -> None:
        await first_of(event.wait(), asked.wait())
        self._stopping = asked.is_set()

    def _check_started(self, shard: ShardProcess) -> None:
        """Raise if a shard has not started."""
        status = shard.status
        if status.state == "failed":
            text = f"{self._kind} {shard.number}: {status.message}" if shard.number != HOME else status.message
            raise error_of_code(status.code, text)
        if shard.has_hung_up or not shard.is_alive:
            raise error_of_code("unavailable", f"{self._kind} {shard.number} ended while it started. See its log.")

    async def run(self, asked: asyncio.Event) -> str:
        """Serve until a stop is requested. Return the reason if the server has to stop by itself, else an empty text."""
        await first_of(asked.wait(), self._failed.wait())
        return self._failure

    async def stop(self) -> bool:
        """Stop all shards gracefully: first all drain, and when all have finished their requests, all close.

        A shard that does not end in time is killed, which is as safe as a crash. Return whether all ended cleanly.
        """
        self._stopping = True
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for shard in self._shards:
            if shard.is_alive and not shard.has_startup:
                shard.kill()  # it has opened nothing, and would read the message as its startup
                await shard.ended()
        alive = [shard for shard in self._shards if shard.is_alive]
        for shard in alive:
            shard.send(DRAIN)
        with contextlib.suppress(TimeoutError):
            allowed_ms = self._settings.notice_ms + self._settings.grace_ms + DRAIN_EXTRA_MS
            async with asyncio.timeout(allowed_ms / 1_000):
                await asyncio.gather(*(shard.drained.wait() for shard in alive))
        for shard in alive:
            shard.send(CLOSE)
        codes = await asyncio.gather(*(self._wait_for_close(shard) for shard in alive))
        self._release()
        return not any(codes)

    def _release(self) -> None:
        """Close every address and unlock the directory."""
        own = (sock for shard in self._shards for sock in (*shard.http, *shard.rpc, shard.peers))
        for sock in (*self._reserved, *own):
            if sock is not None:
                sock.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def _wait_for_close(self, shard: ShardProcess) -> int:
        """Wait until a shard has closed, or kill it. Return its exit code."""
        wait_ms = CLOSE_MS if shard.drained.is_set() else STALLED_MS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):
                return await shard.ended()
        name = self._topology[shard.number].name
        log.error("%s %s does not stop; killing it", self._kind, name, extra={"after_ms": wait_ms})
        shard.kill()
        return await shard.ended()

    def kill(self) -> None:
        """Kill all shards."""
        for shard in self._shards:
            shard.kill()

    async def _watch(self, shard: ShardProcess) -> None:
        """Restart a shard whenever it dies or stalls, with a growing delay. Give up if it keeps dying."""
        while True:
            code = await self._wait_for_death(shard)
            now = self._clock.monotonic_ms()
            shard.deaths.append(now)
            while shard.deaths[0] <= now - DEATHS_WITHIN_MS:
                shard.deaths.popleft()
            name = self._topology[shard.number].name
            if len(shard.deaths) > DEATHS_MAX:
                self._failure = f"{self._kind} {name} keeps dying, last with exit code {code}: the server stops"
                self._failed.set()
                return
            wait_ms = int(RESTART_BACKOFF.ceiling_ms(len(shard.deaths)))
            log.error("%s %s died; restarting it", self._kind, name, extra={"exit_code": code, "in_ms": wait_ms})
            await asyncio.sleep(wait_ms / 1_000)
            try:
                check_there(self._home, shard.number)
            except StoreDamaged as error:
                log.error("%s %s cannot start: %s", self._kind, name, error.message)  # noqa: TRY400  # the traceback says nothing
                continue
            startup = self._startup(shard)
            try:
                await shard.spawn(self._command, startup)
            except OSError as error:  # too many processes or files: it counts as one more death
                log.error("%s %s cannot start: %s", self._kind, name, error)  # noqa: TRY400  # the traceback says nothing
                continue
            shard.send_startup(startup)
            await shard.ready.wait()
            if shard.status.state == "ready":
                log.info("%s %s is back", self._kind, name)
            elif shard.status.state == "failed":
                log.error("%s %s cannot start: %s", self._kind, name, shard.status.message)

    async def _wait_for_death(self, shard: ShardProcess) -> int:
        """Wait until a shard has ended, and kill it if it is silent for too long. Return its exit code.

        Silence is counted in checks, not by a clock, so that a suspended machine does not count.
        """
        most, silent = self._settings.shards.stalled_ms, 0
        ended = asyncio.ensure_future(shard.ended())
        try:
            while not (await asyncio.wait([ended], timeout=ALIVE_EVERY_MS / 1_000))[0]:
                silent, shard.was_heard = 0 if shard.was_heard else silent + ALIVE_EVERY_MS, False
                if most and silent >= most and shard.status.state == "ready":
                    name = self._topology[shard.number].name
                    log.error("%s %s is unresponsive; killing it", self._kind, name, extra={"silent_ms": silent})
                    shard.kill()
                    silent = 0
            return ended.result()
        finally:
            ended.cancel()

    # ---- what the shards get ----

    def _open_sockets(self) -> None:
        settings, shards = self._settings, self._settings.shards
        self._http_addresses, self._reserved = reserve("http", settings.http)
        for number in range(self._count):
            port = shards.ports + number if shards.ports is not None else 0
            own = opened("shards.ports", shown_address("http", settings.http, port))
            peers = None if self._are_members else opened("shards", "127.0.0.1:0")[0]
            self._shards.append(ShardProcess(number, own, peers))
        self._open_rpc_sockets()
        regions = one_each("regions", shards.regions, self._count, settings.shard.region or "")
        addresses = list(one_each("addresses", shards.addresses, self._count, ""))
        prefix = f"{settings.shard.name}-" if settings.shard.name else ""
        self._topology = tuple(
            TopologyShard(
                f"{prefix}{one.number}", regions[one.number], addresses[one.number] or f":{port_of(one.http)}"
            )
            for one in self._shards
        )

    def _open_rpc_sockets(self) -> None:
        """Open the sockets for Cap'n Proto, if it is available."""
        settings = self._settings
        address, reserved = open_rpc(settings, RPC_DEFAULT, reserve)
        if address is None or reserved is None:
            return
        self._rpc_addresses, sockets = reserved
        self._reserved += sockets
        first = settings.shards.rpc_ports
        for shard in self._shards:
            port = first + shard.number if first is not None else 0
            shard.rpc = opened("shards.rpc_ports", shown_address("rpc", address, port))
        self.rpc_address = shown_address("rpc", address, self._rpc_addresses[0].port)

    def _startup(self, shard: ShardProcess) -> ShardStartup:
        """Return the startup message of a shard: the server's settings, with the place of this shard."""
        settings, place = self._settings, self._topology[shard.number]
        peers = [one.peers for one in self._shards if one.peers is not None]
        spec = ShardSpec(
            number=shard.number,
            shards=self._topology,
            secret=self._secret,
            peer_ports=tuple(one.getsockname()[1] for one in peers),
            home_dir=str(self._home),
        )
        own = msgspec.structs.replace(settings.shard, name=place.name, region=place.region or None)
        if self._are_members:
            settings = msgspec.structs.replace(settings, rpc=OFF)
        else:
            data_dir = str(shard_dir(self._home, shard.number))
            settings = msgspec.structs.replace(settings, data_dir=data_dir, shard=own, rpc=OFF)
        return ShardStartup(
            number=shard.number,
            spec=None if self._are_members else spec,
            settings=settings,
            admin_token=self._admin_token if self._are_members or shard.number == HOME else None,
            peers_fd=shard.peers.fileno() if shard.peers is not None else None,
            http_fds=tuple(sock.fileno() for sock in shard.http),
            rpc_fds=tuple(sock.fileno() for sock in shard.rpc),
            http_addresses=tuple(self._http_addresses),
            rpc_addresses=tuple(self._rpc_addresses),
        )


def _holder_of(home: Path) -> str:
    """Return which server holds a directory: its supervisor if known, because stopping a shard process is no use."""
    try:
        DirectoryLock(home).close()
    except StoreLocked as locked:
        try:
            shard = int((home / "lock").read_text(encoding="ascii"))
            supervisor = Path(f"/proc/{shard}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        except (OSError, ValueError, IndexError):
            return locked.message
        return f"{home} is in use by process {supervisor}; stop it, or choose another directory with --data-dir"
    return f"{home}: another server starts or stops there; wait for it, or choose another directory with --data-dir"
