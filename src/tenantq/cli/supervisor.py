"""The supervisor of several shards: opens the sockets, starts a process for each shard, and starts again what dies.

It keeps every address for as long as it runs. At the common one each shard listens with a socket of its own, among which the system deals
connections out; a shard that dies is left out until it is back. A shard's own address waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.addresses import Place, cannot_listen, port_of, reserve, shown_address, shown_url
from tenantq.cli.shard_orders import ALIVE_EVERY_MS, CLOSE, DRAIN, LENGTH_BYTES, ShardStartup, ShardStatus
from tenantq.cluster.layout import HOME, check_there, remember_count, shard_dir
from tenantq.cluster.link import error_of
from tenantq.cluster.settings import one_each
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.domain.placement import TopologyShard
from tenantq.engine.catalog import Catalog
from tenantq.errors import Conflict, Invalid, StoreDamaged, StoreFormat, StoreLocked
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import SystemClock
from tenantq.runtime.listener import open_sockets
from tenantq.settings import OFF, RPC_DEFAULT, split_address
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from tenantq.settings import ServerSettings

log = logging.getLogger("tenantq")

DEATHS_MAX: Final = 5
DEATHS_WITHIN_MS: Final = 60_000
"""A shard that dies more often than that in this time is not started again: all stop."""

RESTART_BACKOFF: Final = Backoff(100, 5_000)
DRAIN_EXTRA_MS: Final = 5_000
CLOSE_MS: Final = 60_000
"""How long a shard that has finished its requests may take to export the rest of its journal and to close; then it is killed."""

STALLED_MS: Final = 2_000
"""The same for one that has not even finished its requests in its time: it does not answer."""

LEFT_OVER_MS: Final = 10_000
"""How long shards of a supervisor that was killed are waited for: they stop by themselves."""
_LOOK_MS: Final = 50
_SECRET_BYTES: Final = 32


class _ShardProcess:
    """One shard's process, and the sockets that outlive it."""

    def __init__(self, number: int, sockets: list[socket.socket], peers: socket.socket) -> None:
        self.number = number
        self.http = sockets
        self.rpc: list[socket.socket] = []
        self.peers = peers
        self.process: asyncio.subprocess.Process | None = None
        self.opened = self.ready = self.drained = asyncio.Event()
        self.is_silent = False  # it has hung up, so it ends or has ended
        self.is_given = False  # it was told what to do
        self.was_heard = False  # since somebody asked last
        self.news = ShardStatus(what="")  # of its start: ready or failed
        self.deaths: deque[int] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, orders: ShardStartup) -> None:
        """Start the process and tell it what to do."""
        await self.spawn(orders)
        self.give(orders)

    async def spawn(self, orders: ShardStartup) -> None:
        """Start the process; it waits to be told what to do."""
        self.opened, self.ready, self.drained = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.news, self.is_silent, self.is_given = ShardStatus(what=""), False, False
        mine, its = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tenantq.cli.shard_process", str(its.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(its.fileno(), orders.peers_fd, *orders.http_fds, *orders.rpc_fds),
                start_new_session=True,  # what is typed at the terminal is for the supervisor
            )  # fmt: skip
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        reader, self._writer = await asyncio.open_connection(sock=mine)
        self._listening = asyncio.get_running_loop().create_task(self._listen(reader))

    def give(self, orders: ShardStartup) -> None:
        """Tell it what to do."""
        told = msgspec.json.encode(orders)
        self.is_given = True
        self.tell(len(told).to_bytes(LENGTH_BYTES) + told)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            async for line in reader:
                news = msgspec.json.decode(line, type=ShardStatus)
                self.was_heard = True
                if news.what in {"ready", "failed"}:
                    self.news = news
                    self.ready.set()
                elif news.what == "opened":
                    self.opened.set()
                elif news.what == "drained":
                    self.drained.set()
        self.is_silent = True
        self.opened.set()
        self.ready.set()
        self.drained.set()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    def tell(self, word: bytes) -> None:
        """Say something to it, if it is there."""
        if self._writer is not None and self.is_alive:
            self._writer.write(word)

    def kill(self) -> None:
        """End it at once, which is as safe as a crash."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        assert self.process is not None
        code = await self.process.wait()
        if self._listening is not None:
            await asyncio.wait([self._listening])
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return code


class Supervisor:
    """Runs the shards of one server."""

    def __init__(self, settings: ServerSettings, count: int, admin_token: str | None) -> None:
        self._settings = settings
        self._count = count
        self._admin_token = admin_token
        self._home = Path(settings.data_dir)
        self._secret = secrets.token_hex(_SECRET_BYTES)
        self._clock = SystemClock()
        self._places: list[Place] = []  # of all shards together
        self._rpc_places: list[Place] = []
        self._kept: list[socket.socket] = []  # what keeps them
        self._shards: list[_ShardProcess] = []
        self._shown: tuple[TopologyShard, ...] = ()
        self._claimed: int | None = None  # the descriptor that locks the directory
        self._failure = ""
        self._failed = asyncio.Event()
        self._watching: list[asyncio.Task[None]] = []
        self._stopping = False
        self.rpc_address: str | None = None

    async def start(self, asked: asyncio.Event) -> str | None:
        """Start all shards; return the address as clients write it, or None where a stop was asked for meanwhile.

        Raises what stands in the way, and leaves nothing running.
        """
        self._claim()
        await self._until_free(asked)
        self._open_sockets()
        home, *others = self._shards
        for shard in self._shards:  # they take a while to be there, and can do so together
            await shard.spawn(self._orders(shard))
        home.give(self._orders(home))
        await self._until(home.opened, asked)
        if not self._stopping:
            self._check_started(home)
            remember_count(self._home, self._count)
            for shard in others:
                shard.give(self._orders(shard))
            for shard in others:
                await self._until(shard.opened, asked)
            remember_count(self._home, self._count)  # again: now they have their stores
        for shard in self._shards:
            await self._until(shard.ready, asked)
            if self._stopping:
                return None
            self._check_started(shard)
        self._watching = [asyncio.get_running_loop().create_task(self._watch(shard)) for shard in self._shards]
        return shown_url(self._settings, self._places[0].port)

    def _claim(self) -> None:
        """Take the data directory for this supervisor; StoreLocked where another one has it. Its shards lock what each has."""
        with contextlib.suppress(OSError):  # the first shard says what is wrong with the directory
            self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._claimed = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(self._claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._let_go()
                raise StoreLocked(_who_has(self._home)) from error
            except OSError:
                log.debug("this file system has no locks of directories")

    async def _until_free(self, asked: asyncio.Event) -> None:
        """Wait for shards that a killed supervisor has left; who has the directory after that is named by the shard that cannot open it."""
        until = self._clock.monotonic_ms() + LEFT_OVER_MS
        dirs = [
            path for number in range(self._count) if (path := shard_dir(self._home, number)).joinpath("lock").exists()
        ]
        while not asked.is_set() and self._clock.monotonic_ms() < until:
            try:
                for path in dirs:
                    DirectoryLock(path).close()
            except StoreLocked:
                await asyncio.sleep(_LOOK_MS / 1_000)
            except OSError:
                return  # who opens the shard says what is wrong
            else:
                return

    async def _until(self, event: asyncio.Event, asked: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(one.wait()) for one in (event, asked)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._stopping = asked.is_set()

    def _check_started(self, shard: _ShardProcess) -> None:
        """Raise why a shard has not started, if it has not."""
        news = shard.news
        if news.what == "failed":
            raise error_of(news.code, f"shard {shard.number}: {news.message}" if shard.number != HOME else news.message)
        if shard.is_silent or not shard.is_alive:
            raise error_of("unavailable", f"shard {shard.number} ended while it started; its log says why")

    async def run(self, asked: asyncio.Event) -> str:
        """Serve until a stop is asked for; return why it has to stop by itself, or nothing."""
        waits = [asyncio.ensure_future(one.wait()) for one in (asked, self._failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._failure

    async def stop(self) -> int:
        """Stop all in good order: first nobody takes requests, and when all have finished theirs, all close.

        One that does not end in its time is killed, which is as safe as a crash; the exit code tells.
        """
        self._stopping = True
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for shard in self._shards:
            if shard.is_alive and not shard.is_given:
                shard.kill()  # it has opened nothing, and would take a word for its orders
                await shard.ended()
        alive = [shard for shard in self._shards if shard.is_alive]
        for shard in alive:
            shard.tell(DRAIN)
        with contextlib.suppress(TimeoutError):
            allowed_ms = self._settings.notice_ms + self._settings.grace_ms + DRAIN_EXTRA_MS
            async with asyncio.timeout(allowed_ms / 1_000):
                await asyncio.gather(*(shard.drained.wait() for shard in alive))
        for shard in alive:
            shard.tell(CLOSE)
        codes = await asyncio.gather(*(self._closed(shard) for shard in alive))
        self._let_go()
        return max(map(abs, codes), default=exit_codes.OK) and exit_codes.ERROR

    def _let_go(self) -> None:
        """Close every address, and let another supervisor have the directory."""
        own = (sock for shard in self._shards for sock in (*shard.http, *shard.rpc, shard.peers))
        for sock in (*self._kept, *own):
            sock.close()
        if self._claimed is not None:
            os.close(self._claimed)
            self._claimed = None

    async def _closed(self, shard: _ShardProcess) -> int:
        """Return a shard's exit code once it has closed, or was killed because it does not."""
        wait_ms = CLOSE_MS if shard.drained.is_set() else STALLED_MS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):
                return await shard.ended()
        name = self._shown[shard.number].name
        log.error("shard %s does not stop; it is killed", name, extra={"after_ms": wait_ms})
        shard.kill()
        return await shard.ended()

    def kill(self) -> None:
        """End all shards at once."""
        for shard in self._shards:
            shard.kill()

    async def _watch(self, shard: _ShardProcess) -> None:
        """Start a shard again whenever it dies or stalls, later each time; give up where it keeps dying."""
        while True:
            code = await self._dead(shard)
            now = self._clock.monotonic_ms()
            shard.deaths.append(now)
            while shard.deaths[0] <= now - DEATHS_WITHIN_MS:
                shard.deaths.popleft()
            name = self._shown[shard.number].name
            if len(shard.deaths) > DEATHS_MAX:
                self._failure = f"shard {name} keeps dying, last with exit code {code}: the server stops"
                self._failed.set()
                return
            wait_ms = int(RESTART_BACKOFF.ceiling_ms(len(shard.deaths)))
            log.error("shard %s died; it is started again", name, extra={"exit_code": code, "in_ms": wait_ms})
            await asyncio.sleep(wait_ms / 1_000)
            try:
                check_there(self._home, shard.number)
            except StoreDamaged as error:
                log.error("shard %s cannot start: %s", name, error.message)  # noqa: TRY400  # where it was found says nothing
                continue
            await shard.start(self._orders(shard))
            await shard.ready.wait()
            if shard.news.what == "ready":
                log.info("shard %s is back", name)
            elif shard.news.what == "failed":
                log.error("shard %s cannot start: %s", name, shard.news.message)

    async def _dead(self, shard: _ShardProcess) -> int:
        """Return a shard's exit code once it has ended; one that says nothing for too long is killed.

        Its silence is counted in looks, not by a clock: what is silent with the whole machine is no reason.
        """
        most, silent = self._settings.shards.stalled_ms, 0
        ended = asyncio.ensure_future(shard.ended())
        try:
            while not (await asyncio.wait([ended], timeout=ALIVE_EVERY_MS / 1_000))[0]:
                silent, shard.was_heard = 0 if shard.was_heard else silent + ALIVE_EVERY_MS, False
                if most and silent >= most and shard.news.what == "ready":
                    name = self._shown[shard.number].name
                    log.error("shard %s does nothing any more; it is killed", name, extra={"silent_ms": silent})
                    shard.kill()
                    silent = 0
            return ended.result()
        finally:
            ended.cancel()

    # ---- what it hands down ----

    def _open_sockets(self) -> None:
        settings, shards = self._settings, self._settings.shards
        try:
            self._places, self._kept = reserve("http", settings.http)
        except OSError as error:
            raise cannot_listen(error, "http", settings.http) from error
        for number in range(self._count):
            port = shards.ports + number if shards.ports is not None else 0
            own = _opened("shards.ports", shown_address("http", settings.http, port))
            self._shards.append(_ShardProcess(number, own, _opened("shards", "127.0.0.1:0")[0]))
        self._open_rpc_sockets()
        regions = one_each("regions", shards.regions, self._count, settings.shard.region or "")
        addresses = list(one_each("addresses", shards.addresses, self._count, ""))
        prefix = f"{settings.shard.name}-" if settings.shard.name else ""
        self._shown = tuple(
            TopologyShard(
                f"{prefix}{one.number}", regions[one.number], addresses[one.number] or f":{port_of(one.http)}"
            )
            for one in self._shards
        )

    def _open_rpc_sockets(self) -> None:
        """Open those for Cap'n Proto; where nobody asked for it and it cannot be had, say so and go on without."""
        settings, asked = self._settings, self._settings.rpc is not None
        address = settings.rpc or RPC_DEFAULT
        if address == OFF:
            return
        if find_spec("capnp") is None:
            missing = "Cap'n Proto needs pycapnp: install tenantq[rpc]"
            if asked:
                raise Invalid(f'rpc: {missing}, or set rpc = "off"')
            log.info('no Cap\'n Proto on %s. %s, or set rpc = "off"', address, missing)
            return
        try:
            self._rpc_places, kept = reserve("rpc", address)
            self._kept += kept
        except OSError as error:
            if asked:
                raise cannot_listen(error, "rpc", address) from error
            log.warning("no Cap'n Proto. %s", cannot_listen(error, "rpc", address).message)
            return
        first = settings.shards.rpc_ports
        for shard in self._shards:
            port = first + shard.number if first is not None else 0
            shard.rpc = _opened("shards.rpc_ports", shown_address("rpc", address, port))
        self.rpc_address = shown_address("rpc", address, self._rpc_places[0].port)

    def _orders(self, shard: _ShardProcess) -> ShardStartup:
        """Return what a shard process is told. Its settings are the server's, but for where it is."""
        settings, shown = self._settings, self._shown[shard.number]
        own = msgspec.structs.replace(settings.shard, name=shown.name, region=shown.region or None)
        return ShardStartup(
            seat=ShardSpec(
                number=shard.number,
                shards=self._shown,
                secret=self._secret,
                peer_ports=tuple(one.peers.getsockname()[1] for one in self._shards),
                home_dir=str(self._home),
            ),
            settings=msgspec.structs.replace(
                settings, data_dir=str(shard_dir(self._home, shard.number)), shard=own, rpc=OFF
            ),
            admin_token=self._admin_token if shard.number == HOME else None,
            peers_fd=shard.peers.fileno(),
            http_fds=tuple(sock.fileno() for sock in shard.http),
            rpc_fds=tuple(sock.fileno() for sock in shard.rpc),
            http_places=tuple(self._places),
            rpc_places=tuple(self._rpc_places),
        )


def _who_has(home: Path) -> str:
    """Return which server has a directory: its supervisor, where the system tells, since a shard's process is not to be stopped."""
    try:
        DirectoryLock(home).close()
    except StoreLocked as locked:
        try:
            shard = int((home / "lock").read_text(encoding="ascii"))
            supervisor = Path(f"/proc/{shard}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        except (OSError, ValueError, IndexError):
            return locked.message
        return f"{home} is in use by process {supervisor}; stop it, or choose another directory"
    return f"{home}: another server starts or stops there; wait for it, or choose another directory"


def _opened(setting: str, address: str) -> list[socket.socket]:
    try:
        return open_sockets(*split_address(setting, address))
    except OSError as error:
        raise cannot_listen(error, setting, address) from error


def check_empty(data_dir: Path, count: int, before: int) -> None:
    """Raise Conflict where one of the shards beyond ``count`` has a tenant: it would not be served any more."""
    for number in range(count, before):
        path = shard_dir(data_dir, number)
        if not path.is_dir():
            continue
        try:
            store = RocksStore(path, read_only=True)
        except StoreFormat:
            continue  # it was never opened
        try:
            catalog = Catalog(store)
            catalog.load()
            tenants = sorted(set(catalog.tenants) - {DEFAULT_TENANT, *PROBE_TENANTS})
        finally:
            store.close()
        if tenants:
            more = f" and {len(tenants) - 1} more" if len(tenants) > 1 else ""
            raise Conflict(
                f"shards: {data_dir} has {before}, and shard {number} has the tenant {tenants[0]}{more}:"
                f" move them to another server with tenantq migrate, or serve with --shards {before}",
                tenant=tenants[0],
            )
