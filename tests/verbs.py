"""A shard with shortcuts for all message operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tenantq.domain.message import LOCAL, Caller, Delivery, Outcome, Result
from tenantq.engine.ops.redrive import StartRedrive, check_filter
from tenantq.engine.ops.remove import Remove
from tenantq.engine.ops.settle import Ack, Extend, Nack, Release
from tenantq.engine.polls import Poll
from tenantq.engine.redrive_task import RedriveFilter, RedriveTask
from tenantq.engine.shard import Shard as EngineShard
from tenantq.engine.state import DeadLetterEvent, QuotaEvent


class Shard(EngineShard):
    """A shard with shortcuts for message operations. The caller is local by default."""

    async def poll(
        self,
        tenant: str,
        queue: str,
        *,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        whole_groups: bool = False,
        caller: Caller = LOCAL,
    ) -> list[Delivery]:
        """Lease up to ``max`` ready messages."""
        owner = self.tenant(tenant)
        return await self.submit(
            Poll(owner, caller, queue, max=max, wait_ms=wait_ms, lease_ms=lease_ms, whole_groups=whole_groups)
        )

    async def fleet_poll(
        self,
        queue: str,
        *,
        tenants: Collection[str] | None = None,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        caller: Caller = LOCAL,
    ) -> list[Delivery]:
        """Lease messages of one queue name in many tenants (None: all)."""
        allowed = frozenset(self.tenant(name).id for name in tenants) if tenants is not None else None
        platform = self.state.platform
        return await self.submit(
            Poll(platform, caller, queue, max=max, wait_ms=wait_ms, lease_ms=lease_ms, is_fleet=True, allowed=allowed)
        )

    async def ack(
        self,
        tenant: str,
        queue: str,
        receipts: Sequence[str],
        *,
        results: Sequence[Result | None] | None = None,
        caller: Caller = LOCAL,
    ) -> list[Outcome]:
        """Finish leased messages."""
        return await self.submit(Ack(self.tenant(tenant), caller, queue, receipts, results))

    async def nack(
        self,
        tenant: str,
        queue: str,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        any_receipt: bool = False,
        caller: Caller = LOCAL,
    ) -> list[Outcome]:
        """Report messages as failed."""
        owner = self.tenant(tenant)
        return await self.submit(
            Nack(owner, caller, queue, receipts, delay_ms=delay_ms, reason=reason, any_receipt=any_receipt)
        )

    async def release(self, tenant: str, queue: str, receipts: Sequence[str], caller: Caller = LOCAL) -> list[Outcome]:
        """Return messages without using up an attempt."""
        return await self.submit(Release(self.tenant(tenant), caller, queue, receipts))

    async def extend(
        self,
        tenant: str,
        queue: str,
        receipts: Sequence[str],
        *,
        lease_ms: int,
        any_receipt: bool = False,
        held_ms_max: int | None = None,
        caller: Caller = LOCAL,
    ) -> list[Outcome]:
        """Set leases to end ``lease_ms`` from now."""
        owner = self.tenant(tenant)
        return await self.submit(
            Extend(owner, caller, queue, receipts, lease_ms=lease_ms, any_receipt=any_receipt, held_ms_max=held_ms_max)
        )

    async def remove(
        self, tenant: str, queue: str, ids: Sequence[str | bytes], caller: Caller = LOCAL
    ) -> list[Outcome]:
        """Delete messages by id."""
        return await self.submit(Remove(self.tenant(tenant), caller, queue, ids))

    async def redrive(
        self,
        tenant: str,
        queue: str,
        *,
        filter: RedriveFilter | None = None,
        rate: int | None = None,
        dry_run: bool = False,
        caller: Caller = LOCAL,
    ) -> RedriveTask:
        """Start to move dead letters back."""
        wanted = await check_filter(filter)
        return await self.submit(StartRedrive(self.tenant(tenant), caller, queue, wanted, rate, dry_run))

    def on_dead_letter(self, listener: Callable[[DeadLetterEvent], None]) -> None:
        """Call ``listener`` for every message that becomes a dead letter."""
        self.state.listeners.append(lambda event: listener(event) if isinstance(event, DeadLetterEvent) else None)

    def on_quota(self, listener: Callable[[QuotaEvent], None]) -> None:
        """Call ``listener`` when a quota reaches its soft limit, and when it is exhausted."""
        self.state.listeners.append(lambda event: listener(event) if isinstance(event, QuotaEvent) else None)


def verbs(shard: EngineShard) -> Shard:
    """Return a server's shard with these shortcuts."""
    same = object.__new__(Shard)
    same.__dict__ = shard.__dict__
    return same
