"""Rights of a spread tenant's parts: how they are sent from one part to another, and received once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tenantq.engine.effects import Effects
from tenantq.engine.operation import LAST, Operation
from tenantq.engine.ops.move import part_of
from tenantq.engine.part_state import RightsTransfer
from tenantq.engine.queue_groups import save_part, units_in_transit
from tenantq.engine.usage import COUNTED, Usage, Window
from tenantq.errors import Conflict


@dataclass(eq=False)
class SendRights(Operation[RightsTransfer]):
    """Take rights from this part, to be added to another. Replies the transfer, or the last one if it is not confirmed.

    It takes at most what is free: what is wanted, or one in ``share`` if that is more. With ``settle`` it takes all that is free, or less than nothing: what is used beyond the
    rights, so that they are equal.
    """

    id: int
    receiver: int
    confirmed: int  # the number of the last transfer that the receiver has
    wanted: dict[str, int]
    share: int = 2
    settle: bool = False
    journal_op = "send_rights"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write the part. Raises Conflict if the tenant has no part here, or none there any more."""
        tenant, part = part_of(effects, self.id)
        if self.receiver in part.left:
            raise Conflict("the tenant's part there has left", tenant=tenant.name)
        last = part.sent.get(self.receiver, RightsTransfer())
        if last.number > self.confirmed:
            self.reply = last
            return
        wall_ms = effects.now + effects.wall
        free = part.free(tenant.usage, wall_ms)
        amounts = _settled(free) if self.settle else _granted(free, self.wanted, self.share)
        part.take(amounts)
        in_debt = part.debts(tenant.usage, tenant.config.quotas, wall_ms) if part.is_home else []
        if not amounts and (not part.is_home or in_debt == known_debts(last)):
            self.reply = RightsTransfer(last.number)
            return
        hour, day = tenant.usage.windows(wall_ms)
        self.reply = part.sent[self.receiver] = RightsTransfer(
            last.number + 1, amounts, hour.number, day.number, in_debt=in_debt
        )
        save_part(effects.batch, effects.store, tenant)
        effects.log_tenant("send_rights", tenant, self.caller, f"to shard {self.receiver}: {_amounts(amounts)}")


def known_debts(last: RightsTransfer) -> list[str]:
    """Return the quotas of which a part uses nothing before it has asked home, given the last transfer from there."""
    return last.in_debt if last.number else list(COUNTED)


def _settled(free: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in free.items() if amount}


def _granted(free: Mapping[str, int], wanted: Mapping[str, int], share: int) -> dict[str, int]:
    granted = {name: min(max(amount, free[name] // share), free[name]) for name, amount in wanted.items()}
    return {name: amount for name, amount in granted.items() if amount > 0}


@dataclass(eq=False)
class ReceiveRights(Operation[int]):
    """Add rights that another part has sent, once. Replies the number of the last transfer from there."""

    id: int
    sender: int
    transfer: RightsTransfer
    journal_op = "receive_rights"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write the part, and enter the windows of the sender: what it counted before stays in an earlier one."""
        tenant, part = part_of(effects, self.id)
        sent, usage = self.transfer, tenant.usage
        if sent.number > part.received.get(self.sender, 0):
            part.received[self.sender] = sent.number
            part.give(sent.amounts)
            _enter(usage, sent)
            if self.sender == part.home:
                part.owing = frozenset(sent.in_debt)
            if sent.is_last:
                part.left.add(self.sender)
            save_part(effects.batch, effects.store, tenant)
            effects.state.catalog.save_usage(effects.batch, tenant)
            effects.eased[tenant] = None
            text = f"from shard {self.sender}: {_amounts(sent.amounts)}"
            effects.log_tenant("receive_rights", tenant, self.caller, text)
        self.reply = part.received.get(self.sender, 0)


def _enter(usage: Usage, sent: RightsTransfer) -> None:
    if sent.hour > usage.hour.number:
        usage.hour = Window(sent.hour, 0, usage.hour.left_number, usage.hour.left_messages)
    if sent.day > usage.day.number:
        usage.day = Window(sent.day, 0, usage.day.left_number, usage.day.left_messages)
    if sent.is_last:
        usage.hour.messages += sent.hour_messages if sent.hour == usage.hour.number else 0
        usage.day.messages += sent.day_messages if sent.day == usage.day.number else 0
        totals = usage.dropped.totals
        usage.dropped.totals = [a + b for a, b in zip(totals, [*sent.dropped, *[0] * len(totals)], strict=False)]


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items())) or "none"


@dataclass(eq=False)
class ResetTransfers(Operation[None]):
    """Renumber the transfers between this part and home. What is on its way is void, and the part asks before it uses more.

    It also accepts any settings that home sends next.

    A failover that loses commits leaves numbers behind that contradict each other; see ``cluster/rights_audit.py``.
    """

    id: int
    number: int  # higher than any before
    journal_op = "restore_rights"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write the part. Raises Conflict if the tenant has no part here."""
        tenant, part = part_of(effects, self.id)
        part.sent[part.home], part.received[part.home] = RightsTransfer(self.number), self.number
        part.owing, part.shared_version = frozenset(COUNTED), 0
        save_part(effects.batch, effects.store, tenant)
        effects.log_tenant("restore_rights", tenant, self.caller, f"transfers are numbered from {self.number}")


@dataclass(eq=False)
class RestoreRights(Operation[None]):
    """At home: add rights that no part has, or remove those that two have, and note transfers that were reset."""

    id: int
    missing: dict[str, int]  # below zero: too many
    numbers: dict[int, int]  # by part
    journal_op = "restore_rights"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write the home part. Raises Conflict if the tenant has no part here."""
        tenant, part = part_of(effects, self.id)
        part.give(self.missing)
        for shard, number in self.numbers.items():
            part.sent[shard], part.received[shard] = RightsTransfer(number, in_debt=list(COUNTED)), number
        save_part(effects.batch, effects.store, tenant)
        effects.eased[tenant] = None
        effects.log_tenant("restore_rights", tenant, self.caller, _amounts(self.missing))


@dataclass(eq=False)
class LeavePart(Operation[RightsTransfer]):
    """Send all rights of a part without queues home, with its counts. Replies the transfer.

    It receives the last transfer from home first, which may have been lost, because home forgets it afterwards.
    """

    name: str
    confirmed: int  # the number of the last transfer that home has
    from_home: RightsTransfer
    journal_op = "spread_tenant"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write the part. Raises Conflict while it has queues, or a transfer is not confirmed."""
        tenant = effects.state.catalog.tenant(self.name)
        part, usage = tenant.part, tenant.usage
        if part is None:
            raise Conflict("its queues are on one shard", tenant=tenant.name)
        if not part.has_left:
            if tenant.queues or units_in_transit(effects.state.catalog, tenant):
                raise Conflict("the shard still has queues of the tenant", tenant=tenant.name)
            if any(part.reserved.values()):
                raise Conflict("calls are in progress", tenant=tenant.name)
            last = part.sent.get(part.home, RightsTransfer()).number
            if last > self.confirmed:
                raise Conflict("home has not received all rights yet", tenant=tenant.name)
            if self.from_home.number > part.received.get(part.home, 0):
                part.received[part.home] = self.from_home.number
                part.give(self.from_home.amounts)
            hour, day = usage.windows(effects.now + effects.wall)
            part.sent[part.home] = RightsTransfer(
                last + 1, dict(part.rights), hour.number, day.number, True, hour.messages, day.messages,
                list(usage.dropped.totals),
            )  # fmt: skip
            part.rights = dict.fromkeys(COUNTED, 0)
            part.has_left = True
            save_part(effects.batch, effects.store, tenant)
            effects.log_tenant("spread_tenant", tenant, self.caller, "leaves this shard")
        self.reply = part.sent[part.home]


@dataclass(eq=False)
class ReportQuotas(Operation[None]):
    """At home: journal each quota that all parts together have brought to its soft limit, or used up, once."""

    id: int
    used_by_others: dict[str, int]  # what the other parts use
    journal_op = "quota_warning"
    phase: ClassVar[int] = LAST

    def execute(self, effects: Effects) -> None:
        """Write in the part what was journaled. Raises Conflict if the tenant has no part here."""
        tenant, _ = part_of(effects, self.id)
        if effects.report_quotas(tenant, self.used_by_others):
            save_part(effects.batch, effects.store, tenant)
