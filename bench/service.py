"""A service on its own store, for benchmarks without a transport."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tenantq.runtime.clock import SystemClock
from tenantq.runtime.futures import BackgroundTasks
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.encryption_setup import open_encryption
from tenantq.service.gate_settings import GateSettings
from tenantq.service.service import Service
from tests.verbs import Shard

_ADMIN = "bench-admin-token-0123456789"


@asynccontextmanager
async def open_service(path: Path) -> AsyncIterator[tuple[Service, Call]]:
    """Yield a service and a call with an administrator's credential."""
    clock = SystemClock()
    async with Shard(path) as shard:
        admission = Admission(shard, clock, GateSettings(), BackgroundTasks().start)
        encryption = open_encryption(shard, path, clock)
        service = Service(shard, admission, clock, encryption)
        await service.access.bootstrap(_ADMIN)
        yield service, Call(bearer=_ADMIN, remote="127.0.0.1")
        await admission.close()
        await encryption.close()
