"""A tenantq server for your own tests: in this process, without a port, with a clock that the test can move.

    with tenantq.testing.FakeServer() as server:
        client = server.client()
        client.queue("mail").add("hello")
        server.clock.advance(60_000)

It is the real server, from the HTTP protocol down to the store. Only the network is replaced, and the data is in a
temporary directory, in memory if the system has one. So your tests exercise the code that runs in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

from tenantq.client.async_client import AsyncClient
from tenantq.client.loop_thread import LoopThread
from tenantq.client.settings import Settings, parse
from tenantq.client.sync_client import Client
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.settings import ShardSettings
from tenantq.engine.shard import Shard
from tenantq.errors import Closed, Invalid, TenantqError
from tenantq.gates.key_maker import KeyMaker
from tenantq.http.connection import HttpConnection
from tenantq.http.listener import HttpListener
from tenantq.journal.signing import SigningKey
from tenantq.runtime.clock import Clock, SystemClock, Timer
from tenantq.service.admission import Admission
from tenantq.service.encryption_setup import open_encryption
from tenantq.service.gate_settings import GateSettings
from tenantq.service.service import Service

_MEMORY_BYTES = 8 << 20
_IN_MEMORY = Path("/dev/shm")  # noqa: S108  # a new directory in it is readable only by this user
ADMIN_TOKEN = "fake-administrator-of-the-platform"  # noqa: S105  # valid only for this fake server


class FakeClock:
    """A running clock that a test can move forward."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._ahead_ms = 0
        self._timers: set[_FakeTimer] = set()
        self._run: Callable[[Coroutine[Any, Any, None]], None] | None = None
        self._settled: Callable[[], Coroutine[Any, Any, None]] | None = None

    def advance(self, ms: int) -> None:
        """Let ``ms`` pass at once, as if the machine had slept. Returns when everything due has happened.

        Leases end, delays are over, messages expire. Clients keep their own time.
        """
        if self._run is None:
            raise Closed("the fake server is not running")
        self._run(self._advance(ms))

    async def _advance(self, ms: int) -> None:
        assert self._settled is not None
        await self._settled()
        self._ahead_ms += ms
        now = self.monotonic_ms()
        for timer in sorted(self._timers, key=lambda timer: timer.due_ms):
            if timer.due_ms <= now:
                timer.fire()
            else:
                timer.arm(timer.due_ms - now)
        await self._settled()

    def wall_ms(self) -> int:
        """Return the wall clock plus the added time."""
        return self._real.wall_ms() + self._ahead_ms

    def monotonic_ms(self) -> int:
        """Return the monotonic clock plus the added time."""
        return self._real.monotonic_ms() + self._ahead_ms

    def monotonic_us(self) -> int:
        """Return the monotonic clock plus the added time."""
        return self._real.monotonic_us() + self._ahead_ms * 1_000

    def boot_id(self) -> bytes:
        """Return the machine's boot id."""
        return self._real.boot_id()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Set a timer of the running event loop, which ``advance`` moves closer."""
        timer = _FakeTimer(self._timers, callback, self.monotonic_ms() + max(0, delay_ms))
        timer.arm(delay_ms)
        return timer

    def attach(
        self, run: Callable[[Coroutine[Any, Any, None]], None], settled: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Set how to run on the server's event loop, and how to wait until it is idle."""
        self._run = run
        self._settled = settled


class _FakeTimer:
    def __init__(self, armed: set[_FakeTimer], callback: Callable[[], None], due_ms: int) -> None:
        self._armed = armed
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self.due_ms = due_ms

    def arm(self, delay_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed.add(self)
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1_000, self.fire)

    def fire(self) -> None:
        if self in self._armed:
            self.cancel()
            self._callback()

    def cancel(self) -> None:
        self._armed.discard(self)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class FakeServer:
    """A server in this process. Use it with ``with``, or with ``start`` and ``stop``."""

    def __init__(self, *, gates: GateSettings | None = None) -> None:
        self.clock = FakeClock()
        self.admin_token = ADMIN_TOKEN
        self._gate_settings = gates or GateSettings()
        self._loop_thread: LoopThread | None = None
        self._directory: Path | None = None
        self._reachable = True
        self._clients: list[Client] = []

    # ---- starting and stopping ----

    def start(self) -> None:
        """Start the server, which takes some milliseconds. A stopped one starts again empty."""
        if self._loop_thread is not None:
            raise Invalid("the fake server is already running. Stop it first, or create another one.")
        home = _IN_MEMORY if _IN_MEMORY.is_dir() else None
        self._directory = Path(tempfile.mkdtemp(prefix="tenantq-fake-", dir=home))
        self._loop_thread = LoopThread.start("tenantq-fake-server")
        try:
            self._loop_thread.run(self._open())
        except BaseException:
            self._loop_thread.stop()
            self._loop_thread = None
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self.clock.attach(self._loop_thread.run, self._settled)

    def stop(self) -> None:
        """Stop the server and drop its data. Closes the clients created by ``client``."""
        if self._loop_thread is None or self._directory is None:
            return
        for client in self._clients:
            client.close()
        self._loop_thread.run(self._close())
        self._loop_thread.stop()
        self._loop_thread = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _open(self) -> None:
        assert self._directory is not None
        settings = ShardSettings(memory_bytes=_MEMORY_BYTES, disk_reserve_bytes=0)
        clock: Clock = self.clock
        self._shard = Shard(self._directory / "data", settings=settings, clock=clock)
        await self._shard.open()
        keys = KeyMaker.load_or_make(self._directory / "data")
        self._admission = Admission(self._shard, clock, self._gate_settings, self._in_background, keys=keys)
        self._encryption = open_encryption(self._shard, self._directory / "data", clock)
        key = SigningKey.load_or_make(self._directory / "data")
        self._service = Service(self._shard, self._admission, clock, self._encryption, signing_key=key)
        await self._service.access.bootstrap(self.admin_token)
        self._listener = HttpListener(self._service, clock=clock)
        self._service.metrics.include(self._listener.context.metrics)

    async def _close(self) -> None:
        await self._listener.close(grace_ms=0)
        await self._service.close()
        with contextlib.suppress(TenantqError):
            await self._admission.close()
        await self._encryption.close()
        await self._shard.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settled(self) -> None:
        """Wait until the engine has nothing to do at the current time."""
        shard = self._shard
        while True:
            await asyncio.sleep(0)
            await shard.loop._idle.wait()  # noqa: SLF001  # test code may use internals
            if not shard.loop._step_scheduled and not shard.state.lines:  # noqa: SLF001  # likewise
                return

    # ---- clients ----

    def client(self, tenant: str | None = None, *, role: str = "tenant-admin", **options: Any) -> Client:
        """Return a client of the platform administrator or, with ``tenant``, one with ``role`` in that tenant.

        A missing tenant is created. ``options`` are those of ``Client``. The client is closed when the server stops.
        """
        client = Client(settings=self.settings(tenant, role=role, **options))
        self._clients.append(client)
        return client

    def async_client(self, tenant: str | None = None, *, role: str = "tenant-admin", **options: Any) -> AsyncClient:
        """Return the same for asyncio. Close it, or use ``async with``."""
        return AsyncClient(settings=self.settings(tenant, role=role, **options))

    def settings(self, tenant: str | None = None, *, role: str = "tenant-admin", **options: Any) -> Settings:
        """Return the settings for ``Client``, ``AsyncClient`` or ``Worker``."""
        token = options.pop("token", None)
        if token is None:
            token = self.admin_token if tenant is None else self.token(tenant, role=role)
        return parse("http://fake.invalid", token, connect=self._connect, **options)

    def token(self, tenant: str = DEFAULT_TENANT, *, role: str = "tenant-admin", **grant: Any) -> str:
        """Create an API key with a role in a tenant and return its token. A missing tenant is created."""
        with Client(settings=self.settings()) as admin:
            found = admin.tenant(tenant)
            found.configure()
            return found.create_key(f"fake {role}", role=role, **grant).token

    # ---- outages ----

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Make the server unreachable inside the block: connections are lost and new ones are refused."""
        assert self._loop_thread is not None
        self._reachable = False
        self._loop_thread.run(self._break_connections())
        try:
            yield
        finally:
            self._reachable = True

    async def _break_connections(self) -> None:
        for connection in list(self._listener.context.connections):
            connection.abort()

    async def _connect(self, make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.BaseProtocol:
        """Connect a client's protocol with one of the server's, by a pair of sockets."""
        if self._loop_thread is None or not self._reachable:
            raise ConnectionRefusedError("the fake server is not reachable")
        near, far = socket.socketpair()
        self._loop_thread.soon(lambda: self._in_background(self._accept(far)))
        _, protocol = await asyncio.get_running_loop().create_connection(make_protocol, sock=near)
        return protocol

    async def _accept(self, far: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: HttpConnection(self._listener.context), far)
