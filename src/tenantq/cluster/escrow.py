"""Quotas of a tenant whose queues are spread over shards: parts ask home for rights before they refuse work.

Home grants what is free there, and recalls what other parts do not use. See ``engine/part_state.py`` for why rights are
never lost or doubled, whatever messages are lost or repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final

from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.rights import ReceiveRights, SendRights, known_debts
from tenantq.engine.part_state import PartState, RightsTransfer
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.reservation import Reservation
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, ShardDown, TenantMoved, TenantqError, Unavailable

ANSWER_MS: Final = 5_000
"""Timeout of one question to another part."""

ATTEMPTS: Final = 100
"""How often a call asks again while others hold reservations that they may not need."""

AGAIN_S: Final = 0.01
FLEET_S: Final = 1.0
LEASES_AHEAD: Final = 32
"""Leases that a part asks for at a time when its queues have messages and may deliver none."""


class Escrow:
    """Obtains rights for the parts of one shard. Used on the event loop of the shard."""

    def __init__(
        self, number: int, shard: Shard, calls: CallsFromShard, parts: Callable[[str], tuple[int, ...]]
    ) -> None:
        """Prepare. ``parts`` returns the shards that may have a part of a tenant."""
        self._number, self._shard, self._calls, self._parts = number, shard, calls, parts
        self._locks: dict[int, asyncio.Lock] = {}  # by tenant id
        self._fed: dict[int, float] = {}  # by tenant id: when leases are obtained again without a poll that waits

    # ---- for calls ----

    @contextlib.asynccontextmanager
    async def reserve(self, tenant: TenantState, need: Mapping[str, int]) -> AsyncIterator[Reservation | None]:
        """Reserve as much of what is needed as the tenant's quotas allow, for the length of the block.

        Raises Unavailable if home does not answer and this part has not enough.
        """
        part = tenant.part
        if part is None:
            yield None
            return
        limited = {name: amount for name, amount in need.items() if amount and tenant.allowed(name) is not None}
        await self.obtain(tenant, limited)
        free = self._free(tenant, part)
        reservation = Reservation(part, {name: min(amount, free[name]) for name, amount in limited.items()})
        try:
            yield reservation
        finally:
            reservation.close()

    async def obtain(self, tenant: TenantState, need: Mapping[str, int]) -> None:
        """Return when what is needed is free on this shard, or not free on any."""
        for _ in range(ATTEMPTS):
            part = tenant.part
            if part is None or part.has_left or not self._short(tenant, part, need):
                return
            async with self.lock(tenant):
                if not (short := self._short(tenant, part, need)):
                    return
                others_busy = await self._ask(tenant, part, short)
            if not self._short(tenant, part, need):
                return
            if not others_busy and not any(part.reserved[name] for name in short):
                return
            await asyncio.sleep(AGAIN_S)

    def _short(self, tenant: TenantState, part: PartState, need: Mapping[str, int]) -> dict[str, int]:
        free = self._free(tenant, part)
        return {name: amount - free[name] for name, amount in need.items() if amount > free[name]}

    def _free(self, tenant: TenantState, part: PartState) -> dict[str, int]:
        return part.available(tenant.usage, self._shard.state.wall_ms())

    def lock(self, tenant: TenantState) -> asyncio.Lock:
        """Return what prevents transfers to and from home while it is held there."""
        return self._locks.setdefault(tenant.id, asyncio.Lock())

    async def _ask(self, tenant: TenantState, part: PartState, short: dict[str, int]) -> bool:
        """Get rights from home, or at home from the other parts. Return whether calls elsewhere hold reservations."""
        if part.is_home:
            return await self._recall(tenant, part, short, without=self._number)
        confirmed = part.received.get(part.home, 0)
        try:
            sent, is_busy = await self._calls.query(
                part.home, "rights.grant", tenant.id, self._number, confirmed, short, timeout_ms=ANSWER_MS
            )
        except (ShardDown, Conflict) as error:
            raise Unavailable(
                f"shard {part.home}, which keeps the quotas of this tenant, does not answer: {error.message}",
                tenant=tenant.name,
            ) from error
        await self._receive(tenant, part.home, sent)
        return bool(is_busy) or sent.number > confirmed

    async def _receive(self, tenant: TenantState, sender: int, sent: RightsTransfer) -> None:
        part = tenant.part
        if part is not None and not part.has_left and sent.number > part.received.get(sender, 0):
            await self._shard.submit(ReceiveRights(self._shard.state.platform, SYSTEM, tenant.id, sender, sent))

    # ---- at home ----

    async def grant(
        self, id: int, receiver: int, confirmed: int, wanted: dict[str, int]
    ) -> tuple[RightsTransfer, bool]:
        """Send rights to a part that is short of them; return also whether other calls hold reservations."""
        tenant, part = self._home(id)
        is_busy = False
        async with self.lock(tenant):
            if part.sent.get(receiver, RightsTransfer()).number <= confirmed:
                short = self._short(tenant, part, wanted)
                if short:
                    owes = bool(known_debts(part.sent.get(receiver, RightsTransfer())))
                    is_busy = await self._recall(tenant, part, short, without=self._number if owes else receiver)
                is_busy = is_busy or any(part.reserved[name] for name in short)
            share = 2 * max(1, len(part.shards))
            sent = await self._shard.submit(
                SendRights(self._shard.state.platform, SYSTEM, id, receiver, confirmed, wanted, share)
            )
        return sent, is_busy

    def _home(self, id: int) -> tuple[TenantState, PartState]:
        tenant = self._shard.state.catalog.tenants_by_id.get(id)
        if tenant is None or tenant.part is None or not tenant.part.is_home:
            raise Conflict("this shard is not the tenant's home")
        return tenant, tenant.part

    async def _recall(self, tenant: TenantState, part: PartState, short: dict[str, int], *, without: int) -> bool:
        """Get back what other parts do not use. Return whether asking again may bring more.

        Raises ShardDown if a part does not answer, and the others have not enough.
        """
        wanted = {name: amount + self._free(tenant, part)[name] for name, amount in short.items()}
        others = [one for one in self._parts(tenant.name) if one not in {self._number, without}]
        asked = (self._recall_from(tenant, part, one, short) for one in others)
        found = await asyncio.gather(*asked, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and (not isinstance(one, ShardDown) or self._short(tenant, part, wanted)):
                raise one
        return any(one is True for one in found)

    async def _recall_from(
        self, tenant: TenantState, part: PartState, other: int, short: dict[str, int], *, settle: bool = False
    ) -> bool:
        try:
            sent, is_busy = await self._calls.query(
                other, "rights.give", tenant.id, part.received.get(other, 0), short, settle, timeout_ms=ANSWER_MS
            )
        except (Conflict, TenantMoved):
            return False  # it has no part, or has none any more
        is_new = sent.number > part.received.get(other, 0)
        await self._receive(tenant, other, sent)
        return bool(is_busy) or is_new

    async def settle(self, tenant: TenantState) -> None:
        """Get back from all parts what they do not use, because the quotas have changed. Raises ShardDown."""
        part = tenant.part
        if part is None:
            return
        async with self.lock(tenant):
            for other in self._parts(tenant.name):
                if other != self._number:
                    for _ in range(2):  # the first answer may be a transfer that was not confirmed
                        await self._recall_from(tenant, part, other, {}, settle=True)
            for other in self._parts(tenant.name):
                if other != self._number:
                    await self._tell_debts(tenant, part, other)

    async def _tell_debts(self, tenant: TenantState, part: PartState, other: int) -> None:
        """Have another part ask before it uses more, if home is in debt, or not any more."""
        last = part.sent.get(other, RightsTransfer())
        if not part.debts(tenant.usage, tenant.config.quotas, self._shard.state.wall_ms()) and not known_debts(last):
            return
        platform = self._shard.state.platform
        try:
            confirmed = await self._calls.query(
                other, "rights.receive", tenant.id, self._number, last, timeout_ms=ANSWER_MS
            )
            sent = await self._shard.submit(SendRights(platform, SYSTEM, tenant.id, other, confirmed, {}))
            await self._calls.query(other, "rights.receive", tenant.id, self._number, sent, timeout_ms=ANSWER_MS)
        except (Conflict, TenantMoved):
            return  # it has no part yet, or has none any more

    async def take_back(self, tenant: TenantState, other: int) -> None:
        """Get all rights of a part that leaves. Raises Conflict while it has queues, and ShardDown."""
        part = tenant.part
        if part is None:
            return
        async with self.lock(tenant):  # nothing is granted meanwhile
            if other not in part.left:
                await self._recall_from(tenant, part, other, {})  # a transfer that was not confirmed
            confirmed, last = part.received.get(other, 0), part.sent.get(other, RightsTransfer())
            sent = await self._calls.query(other, "rights.leave", tenant.name, confirmed, last, timeout_ms=ANSWER_MS)
            await self._receive(tenant, other, sent)

    # ---- at other parts ----

    async def give(self, id: int, confirmed: int, wanted: dict[str, int], settle: bool) -> tuple[RightsTransfer, bool]:  # noqa: FBT001  # it travels
        """Send rights home that are not used here; return also whether calls hold reservations."""
        tenant = self._shard.state.catalog.tenants_by_id.get(id)
        if tenant is None or tenant.part is None:
            raise Conflict("the tenant has no part on this shard")
        part = tenant.part
        sent = await self._shard.submit(
            SendRights(self._shard.state.platform, SYSTEM, id, part.home, confirmed, wanted, settle=settle)
        )
        return sent, any(part.reserved[name] for name in wanted)

    async def receive(self, id: int, sender: int, sent: RightsTransfer) -> int:
        """Add rights that another part has sent; return the number of its last transfer that this part has."""
        return await self._shard.submit(ReceiveRights(self._shard.state.platform, SYSTEM, id, sender, sent))

    async def feed(self, names: Iterable[str]) -> None:
        """Obtain leases for tenants whose queues have messages for polls and may deliver none."""
        for name in names:
            tenant = self._shard.state.catalog.tenants.get(name)
            if tenant is None:
                continue
            part, starved = tenant.part, [queue for queue in tenant.starved if queue.ready]
            if part is None or not starved or not self._short(tenant, part, {"in_flight": 1}):
                continue
            now = asyncio.get_running_loop().time()
            if not any(self._has_polls(queue) for queue in starved) and now < self._fed.get(tenant.id, 0.0):
                continue  # a fleet that does not wait comes back
            self._fed[tenant.id] = now + FLEET_S
            wanted = min(LEASES_AHEAD, sum(queue.ready for queue in starved))
            with contextlib.suppress(TenantqError):  # the next look tries again
                await self.obtain(tenant, {"in_flight": wanted})

    def _has_polls(self, queue: QueueState) -> bool:
        lane = self._shard.state.lanes.get(queue.name)
        return bool(queue.demands) or (lane is not None and bool(lane.demands))
