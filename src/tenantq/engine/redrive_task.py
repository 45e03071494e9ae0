"""A redrive: what it was asked to do, and its progress. Both are stored."""

import asyncio
from typing import Annotated, Final, Literal, NamedTuple, Self

import msgspec

from tenantq.domain.limits import RedriveLimit, RedriveRate, WallTime
from tenantq.domain.message import Caller
from tenantq.engine.queue_state import QueueState

RedriveState = Literal["running", "done", "cancelled", "failed"]
_MessageCount = Annotated[int, msgspec.Meta(ge=0)]
_FORGOTTEN: Final = Caller("")

SLICE_MS: Final = 100
"""At a limited rate, a slice moves what the rate allows in this time, but at least one message."""


class RedriveFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to take; every condition given must hold."""

    source: str | None = None  # the queue they came from
    reason: str | None = None  # the reason contains this text
    ids: frozenset[str | bytes] | None = None
    limit: int | None = None  # at most this many
    to: str | None = None  # the queue they go to; None: the one they came from


class RedriveOrder(msgspec.Struct, frozen=True):
    """What a redrive was asked to do. Stored when it starts. The conditions are those of its filter."""

    source: str | None
    reason: str | None
    ids: frozenset[bytes] | None
    limit: RedriveLimit | None
    to: str | None
    rate: RedriveRate | None  # messages per second; None: as fast as fair rounds allow
    dry_run: bool
    caller: Caller
    found: _MessageCount  # dead letters when it started
    started_at: WallTime

    def without_conditions(self) -> Self:
        """Return what is kept of it after the end: no conditions that nobody can read, and no caller."""
        return msgspec.structs.replace(self, reason=None, ids=None, limit=None, caller=_FORGOTTEN)


class RedriveProgress(msgspec.Struct, frozen=True):
    """The progress of a redrive. Stored in the commits that move its messages, at intervals, and when it ends."""

    state: RedriveState = "running"
    moved: _MessageCount = 0
    skipped: _MessageCount = 0
    missing: str | None = None  # a queue to which messages should go and that does not exist
    last: bytes = b""  # the message that it looked at last
    reason: str | None = None  # why it failed, or was cancelled by the server

    @property
    def checked(self) -> int:
        """How many messages it has looked at."""
        return self.moved + self.skipped


class SavedRedrive(NamedTuple):
    """What of a redrive a round can change."""

    order: RedriveOrder
    progress: RedriveProgress
    stored: RedriveProgress


class RedriveTask:
    """A redrive of an open shard. Its registry changes it."""

    __slots__ = ("ended", "id", "letters", "order", "progress", "stored")

    def __init__(self, id: str, letters: QueueState, order: RedriveOrder, progress: RedriveProgress) -> None:
        self.id = id
        self.letters = letters  # the dead-letter queue
        self.order = order
        self.progress = progress
        self.stored = progress  # what the store has of it; a new one has no row, which means the same
        self.ended = asyncio.Event()  # set as soon as this object does not change any more

    def save(self) -> SavedRedrive:
        """Return it as it is, for ``restore``."""
        return SavedRedrive(self.order, self.progress, self.stored)

    def restore(self, saved: SavedRedrive) -> None:
        """Make it as it was."""
        self.order, self.progress, self.stored = saved

    @property
    def is_running(self) -> bool:
        return self.progress.state == "running"

    @property
    def cursor(self) -> bytes:
        """The first key that it has not looked at, in families whose keys are P and a message ID."""
        last = self.progress.last
        return self.letters.prefix + last + b"\0" if last else self.letters.prefix

    @property
    def pause_ms(self) -> int:
        """The time before the next slice. The first one needs none."""
        return 0 if self.order.rate is None or not self.progress.checked else max(SLICE_MS, 1_000 // self.order.rate)

    def slice_rows(self, rows_max: int) -> int:
        """Return how many rows the next slice may move."""
        limit, rate = self.order.limit, self.order.rate
        rows = rows_max if limit is None else max(0, min(rows_max, limit - self.progress.moved))
        return rows if rate is None else min(rows, max(1, rate * SLICE_MS // 1_000))
