"""Checks that the rights of all parts of a tenant are its quotas, and restores them after a failover that lost commits.

A remote store with asynchronous replicas can lose the last commits of a shard. Then a part has rights that it has sent,
or lacks rights that it has received, and its transfers have numbers that were used before. The shard has a new owner
afterwards. So whenever a shard with a part is opened, home compares what all parts have recorded:

- If the last numbers of the transfers between home and a part differ by more than the one that may be on its way, both
  continue with a higher number, and nothing is on its way between them.
- The same happens if a part has newer settings than home. Home sends its settings again, also if a part has older ones.
- Home gets what is missing to the quotas, or loses what is too much.

Rights change hands through home, under its lock, and with groups of queues that move. The comparison is repeated until
nothing has changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from tenantq.cluster.escrow import ANSWER_MS, Escrow
from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.shared_settings import SharedSettings
from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.rights import RestoreRights
from tenantq.engine.part_state import PartAccount, PartState, RightsTransfer
from tenantq.engine.queue_groups import account_of
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.engine.usage import COUNTED
from tenantq.errors import Conflict

log = logging.getLogger("tenantq.shards")

READINGS: Final = 20
"""How often the parts are read until nothing has changed meanwhile."""

AGAIN_S: Final = 0.05


class RightsAudit:
    """Compares the parts of tenants whose home is one shard. Used on the event loop of the shard."""

    def __init__(
        self,
        number: int,
        shard: Shard,
        calls: CallsFromShard,
        escrow: Escrow,
        parts: Callable[[str], tuple[int, ...]],
        settings: SharedSettings,
    ) -> None:
        """Prepare. ``parts`` returns the shards that may have a part of a tenant."""
        self._number, self._shard, self._calls, self._escrow, self._parts = number, shard, calls, escrow, parts
        self._settings = settings

    async def restore(self, tenant: TenantState) -> None:
        """Have the rights of all parts be the quotas. Raises ShardDown, and Conflict while they change all the time."""
        part = tenant.part
        if part is None or not part.is_home:
            return
        async with self._escrow.lock(tenant):
            accounts, moving = await self._read(tenant)
            others = {shard: one for shard, one in accounts.items() if shard != self._number}
            version = self._shard.state.journal.seq
            wrong = [
                shard for shard, one in others.items() if _differ(part, shard, one) or one.shared_version > version
            ]
            numbers = {shard: _next_number(part, shard, others[shard]) for shard in wrong}
            for shard, number in numbers.items():
                await self._calls.query(shard, "rights.reset_transfers", tenant.id, number, timeout_ms=ANSWER_MS)
            held = _sum(*(one.rights for one in accounts.values()), *moving)
            held.update(
                _sum(*(_on_their_way(part, shard, one) for shard, one in others.items() if shard not in numbers))
            )
            quotas = tenant.config.quotas
            missing = {name: lack for name in COUNTED if (lack := (getattr(quotas, name) or 0) - held[name])}
            if missing or numbers:
                await self._note(tenant, missing, numbers)
        sent = self._settings.sent_version(tenant)
        if numbers or any(one.shared_version != sent for one in others.values()):
            await self._settings.send_again(tenant)
        if missing or numbers:
            await self._escrow.settle(tenant)

    async def _note(self, tenant: TenantState, missing: dict[str, int], numbers: dict[int, int]) -> None:
        await self._shard.submit(RestoreRights(self._shard.state.platform, SYSTEM, tenant.id, missing, numbers))
        shown = ", ".join(f"{name} {amount:+}" for name, amount in missing.items()) or "none"
        log.warning("tenant %s: rights that a failover had lost or doubled are restored: %s", tenant.name, shown)

    async def _read(self, tenant: TenantState) -> tuple[dict[int, PartAccount], list[dict[str, int]]]:
        """Return what all parts have recorded at one time, and the rights of groups of queues on their way then."""
        for _ in range(READINGS):
            before = await self._accounts(tenant)
            moving = await self._moving(tenant, before)
            if await self._accounts(tenant) == before:
                return before, moving
            await asyncio.sleep(AGAIN_S)
        raise Conflict("the rights of its parts change all the time", tenant=tenant.name)

    async def _accounts(self, tenant: TenantState) -> dict[int, PartAccount]:
        part = tenant.part
        recorded = (*part.shards, *part.next_shards) if part is not None else ()  # also if the directory has lost them
        others = sorted({*self._parts(tenant.name), *recorded} - {self._number})
        found = await asyncio.gather(*(self._account(one, tenant) for one in others))
        accounts = {shard: one for shard, one in zip(others, found, strict=True) if one is not None}
        return {self._number: account_of(self._shard.state.catalog, tenant), **accounts}

    async def _account(self, shard: int, tenant: TenantState) -> PartAccount | None:
        try:
            found: PartAccount = await self._calls.query(shard, "rights.account", tenant.id, timeout_ms=ANSWER_MS)
        except Conflict:
            return None  # it has no part
        return found

    async def _moving(self, tenant: TenantState, accounts: dict[int, PartAccount]) -> list[dict[str, int]]:
        """Return the rights of groups that have left one part and are not served by another."""
        moving = []
        for account in accounts.values():
            for unit, (target, rights) in account.leaving.items():
                if not await self._serves(tenant, target, unit):
                    moving.append(rights)
        return moving

    async def _serves(self, tenant: TenantState, shard: int, unit: str) -> bool:
        try:
            return bool(await self._calls.query(shard, "rights.serves", tenant.id, unit, timeout_ms=ANSWER_MS))
        except Conflict:
            return False


def _sum(*amounts: dict[str, int]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in amounts:
        total.update(one)
    return total


def _last(part: PartState, shard: int) -> RightsTransfer:
    return part.sent.get(shard, RightsTransfer())


def _differ(part: PartState, shard: int, account: PartAccount) -> bool:
    """Return whether the numbers of home and a part cannot both be right."""
    to_part, from_part = _last(part, shard).number - account.received, account.sent.number - part.received.get(shard, 0)
    return to_part not in {0, 1} or from_part not in {0, 1}


def _next_number(part: PartState, shard: int, account: PartAccount) -> int:
    known = (_last(part, shard).number, account.received, account.sent.number, part.received.get(shard, 0))
    return 1 + max(known)


def _on_their_way(part: PartState, shard: int, account: PartAccount) -> Counter[str]:
    """Return the rights of transfers between home and a part that have not arrived."""
    to_part, from_part = _last(part, shard), account.sent
    return _sum(
        to_part.amounts if to_part.number > account.received else {},
        from_part.amounts if from_part.number > part.received.get(shard, 0) else {},
    )
