"""A server for real clients of Amazon SQS, on its own event loop, with a clock that tests can move."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

import boto3
from botocore.config import Config

from tenantq.domain.access import Grant
from tenantq.engine.settings import ShardSettings
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tenantq.sqs import SqsSettings
from tenantq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from tenantq.wire.access import CreatedKey

_T = TypeVar("_T")
ADMIN_TOKEN = "administrator-of-the-sqs-tests"  # noqa: S105  # valid for this test only
REGION = "eu-north-1"


class LeaseClock(FakeClock):
    """A clock for leases, delays and pauses that tests move. The wall clock is real, so that signatures stay valid."""

    def wall_ms(self) -> int:
        return self._real.wall_ms()


class SqsServer:
    """One server in a thread, with its own event loop."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        shard = ShardSettings(memory_bytes=8 << 20, disk_reserve_bytes=0)
        self._settings = ServerSettings(data_dir=str(directory), http="127.0.0.1:0", rpc="off", shard=shard, **settings)
        self.clock = LeaseClock()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with Server(self._settings, admin_token=ADMIN_TOKEN, clock=self.clock) as self.server:
                self.clock.attach(self.run, self._settled)
                self.url = f"http://127.0.0.1:{self.server.port}"
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._failure = error
            self._ready.set()
            raise

    async def _settled(self) -> None:
        shard = self.server.shard
        while True:
            await asyncio.sleep(0)
            await shard.loop._idle.wait()
            if not shard.loop._step_scheduled and not shard.state.lines:
                return

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the server's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def admin(self) -> Call:
        """A call of the platform administrator."""
        return Call(bearer=ADMIN_TOKEN)

    def tenant(self, name: str, **changes: Any) -> int:
        """Create a tenant, or change it; return its number."""
        return self.run(self.server.service.tenants.put(self.admin, name, changes))[1].id

    def key(self, tenant: str = "default", role: str | None = "tenant-admin", **grant: Any) -> CreatedKey:
        """Return a new key."""
        return self.run(self.server.service.access.create_key(self.admin, tenant, "a key", Grant(role=role, **grant)))

    def client(self, tenant: str = "default", role: str = "tenant-admin", **options: Any) -> Any:
        """Return a boto3 client with a new key."""
        key = self.key(tenant, role)
        return client_of(self.url, key.key_id, key.secret, **options)


def client_of(url: str, key_id: str, secret: str, **options: Any) -> Any:
    """Return a boto3 client for one key, without retries."""
    return boto3.client(
        "sqs", endpoint_url=url, region_name=REGION, aws_access_key_id=key_id, aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, parameter_validation=False), **options,
    )  # fmt: skip


NO_PAUSES = SqsSettings(purge_pause_ms=0, recreate_pause_ms=0)
