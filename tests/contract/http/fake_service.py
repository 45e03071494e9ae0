"""A service without rules, for tests of the transport alone: it records its calls and replies as configured."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tenantq.domain.message import AddResult, Delivery, Outcome, Result
from tenantq.service.other_shards import OtherShards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.domain.message import NewMessage
    from tenantq.errors import TenantqError
    from tenantq.service.call import Call


class FakeService:
    """Replies at once, unless ``held``; polls wait until messages are put into ``ready``, or are told to stop."""

    def __init__(self) -> None:
        self.durability = "fsync"
        self.other_shards = OtherShards()
        self.messages = self.settlement = self.message_reads = self.queues = self.access = self.status = self
        self.is_ready = True
        self.calls: list[tuple[str, Call, tuple[Any, ...]]] = []
        self.fails: Exception | None = None  # what every call raises
        self.held: asyncio.Event | None = None  # adds wait for it
        self.asked = asyncio.Event()  # a call has arrived
        self.given_up = 0  # calls that were cancelled
        self.ready: list[Delivery] = []
        self.added: list[AddResult] | None = None  # what add returns
        self.outcomes: list[Outcome] | None = None
        self.found = Result("pending")
        self.admission = self  # everything is allowed, unless it is in ``forbids``
        self.forbids: TenantqError | None = None
        self.residency = SimpleNamespace(misplaced=frozenset())  # every tenant may be here
        self._registry = CollectorRegistry(auto_describe=False)
        self.include_metrics = self._registry.register

    async def authorize(self, call: Call, *_: object) -> None:
        """Admit everybody."""
        if self.forbids is not None:
            raise self.forbids

    identify = authorize

    async def add(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        key: str | None = None,
    ) -> Sequence[AddResult]:
        """Pretend to add."""
        await self._asked("add", call, tenant, queue, list(messages), key)
        if self.held is not None:
            await self.held.wait()
        return self.added or [AddResult(len(self.calls).to_bytes(16)) for _ in messages]

    async def poll(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        *,
        max: int,
        wait_ms: int,
        lease_ms: int | None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        """Return what is ready; with ``wait_ms``, wait forever."""
        await self._asked("poll", call, tenant, queue, max, wait_ms, lease_ms, consumer)
        if not self.ready and wait_ms:
            await self._wait()
        return self.ready[:max]

    async def ack(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        receipts: list[str],
        results: list[Result | None] | None = None,
    ) -> list[Outcome]:
        """Pretend to settle."""
        await self._asked("ack", call, tenant, queue, receipts, results)
        return self.outcomes or [Outcome(ok=True) for _ in receipts]

    async def result(
        self, call: Call, tenant: str | None, queue: str, id: str, *, wait_ms: int = 0
    ) -> tuple[Result, bool]:
        """Return a result; with ``wait_ms``, wait forever."""
        await self._asked("result", call, tenant, queue, id, wait_ms)
        if wait_ms:
            await self._wait()
        return self.found, False

    async def list(self, call: Call, tenant: str | None, *, after: str | None, limit: int) -> list[Any]:
        """Return nothing."""
        await self._asked("list_queues", call, tenant, after, limit)
        return []

    async def put_grant(self, call: Call, tenant: str | None, principal: str, grant: Any) -> None:
        """Pretend to store."""
        await self._asked("put_grant", call, tenant, principal, grant)

    async def metrics(self, call: Call) -> bytes:
        """Return one metric, and those of the listeners."""
        await self._asked("metrics", call)
        return b"tenantq_up 1\n" + generate_latest(self._registry)

    def readiness(self) -> dict[str, Any]:
        """Return what the test configured."""
        return {"ready": self.is_ready}

    async def _asked(self, what: str, call: Call, *arguments: Any) -> None:
        self.calls.append((what, call, arguments))
        self.asked.set()
        if self.fails is not None:
            raise self.fails

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
