"""The part of a tenant on one shard, if the queues of the tenant are spread over several.

Each part holds rights: how much of each quota it may use. Together with rights that are on their way between parts, the
rights of all parts are the tenant's quotas. The home part takes part in every transfer. A transfer has a number that
grows with each one between two parts: the sender takes the rights from its own in the commit that notes the transfer,
and the receiver adds them in the commit that notes its number. So a transfer can be repeated until it is confirmed.

If home uses more than its rights, because a quota was reduced, the other parts together may hold more than the quota.
Then home tells them, and they use nothing before they have asked. A new part asks as well.

A quota that is not set has rights as well, which sum up to zero and are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tenantq.domain.placement import spread_shard
from tenantq.domain.quotas import Quotas, QuotaState
from tenantq.engine.usage import COUNTED, Usage

LEVELS: Final = ("backlog", "stored_bytes", "in_flight", "queues")
"""The quotas whose use moves with a queue to another shard."""

BLOCK_IDS: Final = 1 << 20
"""Ids of queues that one part can use. Each part has its own, so that a queue keeps its id when it moves."""


class RightsTransfer(msgspec.Struct, frozen=True):
    """Rights on their way from one part to another."""

    number: int = 0
    amounts: dict[str, int] = {}
    hour: int = 0  # the windows of the sender, which the receiver enters: adds it counted before stay in theirs
    day: int = 0
    is_last: bool = False  # the sender leaves, and these are its counts of messages
    hour_messages: int = 0
    day_messages: int = 0
    dropped: list[int] = []  # totals of the queues that were deleted there
    in_debt: list[str] = []  # from home: quotas of which it uses more than its rights


class PartAccount(msgspec.Struct, frozen=True):
    """What a part has recorded about its rights, as home reads it."""

    rights: dict[str, int]
    sent: RightsTransfer  # the last one to home
    received: int  # the number of the last one from home
    leaving: dict[str, tuple[int, dict[str, int]]]  # groups of queues on their way: to which shard, with which rights
    shared_version: int  # of the settings that it has
    changes: int  # differs if rights have changed since another reading


class PartRow(msgspec.Struct, frozen=True):
    """A stored part."""

    shard: int  # this one
    home: int
    shards: tuple[int, ...]
    next_shards: tuple[int, ...]
    rights: dict[str, int]
    sent: dict[int, RightsTransfer]
    received: dict[int, int]
    shared_version: int
    has_left: bool
    owing: list[str] = []
    left: list[int] = []
    reported: dict[str, QuotaState] = {}
    reported_hour: int = 0  # the windows that ``reported`` is about; 0: stored by an older version
    reported_day: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PartRow).decode


class PartState:
    """What one shard knows about its part of a tenant."""

    __slots__ = (
        "changes", "has_left", "home", "left", "next_shards", "owing", "received", "reported", "reported_day",
        "reported_hour", "reserved", "rights", "sent", "shard", "shards", "shared_version",
    )  # fmt: skip

    def __init__(self, shard: int, home: int, shards: tuple[int, ...], next_shards: tuple[int, ...] = ()) -> None:
        self.shard = shard
        self.home = home
        self.shards = shards
        self.next_shards = next_shards
        self.rights: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.sent: dict[int, RightsTransfer] = {}  # by receiver: the last one
        self.received: dict[int, int] = {}  # by sender: the number of the last one
        self.shared_version = 0  # of the tenant's settings that home sent last
        self.has_left = False  # all its rights went home, and nothing may be added
        self.owing: frozenset[str] = frozenset()  # quotas of which nothing more is used before home was asked
        self.left: set[int] = set()  # at home: shards whose part has left, and gets no rights
        self.reported: dict[str, QuotaState] = {}  # as of the last change: what ``Usage.reported`` is after loading
        self.reported_hour = self.reported_day = 0  # the windows that it is about
        self.changes = 0  # of its rights, since the shard was opened; not stored
        self.reserved: dict[str, int] = dict.fromkeys(COUNTED, 0)  # for calls in progress; not stored

    @property
    def is_home(self) -> bool:
        """Whether the tenant's settings and keys are changed here."""
        return self.shard == self.home

    def places_here(self, tenant: str, queue: str) -> bool:
        """Return whether the hash puts a queue on this shard, also after a change that is being prepared."""
        return all(
            spread_shard(tenant, queue, shards) == self.shard for shards in (self.shards, self.next_shards) if shards
        )

    def free(self, usage: Usage, wall_ms: int) -> dict[str, int]:
        """Return how much of each right is neither used nor reserved; below zero if more is used."""
        return {name: self.rights[name] - used - self.reserved[name] for name, used in usage.used(wall_ms).items()}

    def available(self, usage: Usage, wall_ms: int) -> dict[str, int]:
        """Return how much of each right a call can use without asking home."""
        free = self.free(usage, wall_ms)
        return {name: min(0, amount) if name in self.owing else amount for name, amount in free.items()}

    def debts(self, usage: Usage, quotas: Quotas, wall_ms: int) -> list[str]:
        """Return the quotas of which more is used here than there are rights."""
        used = usage.used(wall_ms)
        return [name for name in COUNTED if getattr(quotas, name) is not None and used[name] > self.rights[name]]

    def change_limits(self, before: Quotas, after: Quotas) -> bool:
        """Add the change of the quotas to the rights of home. Return whether a quota that is counted has changed."""
        changed = False
        for name in COUNTED:
            old, new = getattr(before, name), getattr(after, name)
            self.rights[name] += (new or 0) - (old or 0)
            changed = changed or old != new
        return changed

    def take(self, amounts: Mapping[str, int]) -> None:
        """Remove rights."""
        self.changes += 1
        for name, amount in amounts.items():
            self.rights[name] -= amount

    def give(self, amounts: Mapping[str, int]) -> None:
        """Add rights."""
        self.changes += 1
        for name, amount in amounts.items():
            self.rights[name] += amount

    def pack(self) -> bytes:
        """Return the stored row."""
        return _encode(
            PartRow(
                self.shard, self.home, self.shards, self.next_shards, self.rights, self.sent, self.received,
                self.shared_version, self.has_left, sorted(self.owing), sorted(self.left), self.reported,
                self.reported_hour, self.reported_day,
            )
        )  # fmt: skip

    @classmethod
    def load(cls, value: bytes) -> PartState:
        """Return the part of a stored row."""
        row = _decode(value)
        part = cls(row.shard, row.home, row.shards, row.next_shards)
        part.rights |= row.rights
        part.sent, part.received = row.sent, row.received
        part.shared_version, part.has_left = row.shared_version, row.has_left
        part.owing, part.left, part.reported = frozenset(row.owing), set(row.left), row.reported
        part.reported_hour, part.reported_day = row.reported_hour, row.reported_day
        return part
