"""What every source of a migration offers: its queues, and its messages in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from tenantq.errors import Invalid

Mode = Literal["snapshot", "drain"]
"""``snapshot`` leaves the source as it is; ``drain`` deletes every message there once it is stored here."""

InProgress = Literal["ready", "keep-lease"]
"""What becomes of messages that a worker of the old system holds: ready at once, or delayed until their lease ends."""

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 << 20


class SourceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of another system."""

    key: str  # identifies it at its source, so that it is migrated once
    queue: str  # its queue at the source
    body: bytes
    tenant: str | None = None  # its tenant at the source, if it has tenants
    id: bytes | None = None  # kept if it is a UUID of version 7
    attributes: dict[str, str] = {}
    added_at: int | None = None  # wall time in ms
    visible_at: int | None = None  # delayed until then; None: ready, in the order of the source
    priority: int = 0  # 9 is delivered first
    group: str | None = None
    dead: str | None = None  # why it is a dead letter


class SourceBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are migrated together. ``done`` forgets them at the source; it is called when they are stored here."""

    messages: list[SourceMessage]
    done: Callable[[], None] = lambda: None


class SourceQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue of a source holds. Counts may be estimates while others work with it."""

    name: str
    tenant: str | None = None
    ready: int = 0
    delayed: int = 0
    in_progress: int = 0
    dead: int = 0

    @property
    def total(self) -> int:
        """All messages."""
        return self.ready + self.delayed + self.in_progress + self.dead


class Source(Protocol):
    """A system to migrate from. Blocking; used by one thread. Raises Invalid or Unavailable if it cannot be read."""

    kind: str
    modes: tuple[Mode, ...]
    problems: dict[str, int]  # what was counted and skipped, by its description

    def queues(self) -> list[SourceQueue]:
        """Return what there is to migrate."""

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:
        """Yield all messages in the order in which the source would deliver them."""

    def close(self) -> None:
        """Disconnect."""


class Problems:
    """Counts what is wrong with a source and skipped."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, text: str) -> None:
        """Count one more."""
        self.counts[text] = self.counts.get(text, 0) + 1


def batched(
    messages: Iterator[SourceMessage], done: Callable[[list[SourceMessage]], None] | None = None
) -> Iterator[SourceBatch]:
    """Yield messages in batches of bounded size."""
    batch: list[SourceMessage] = []
    size = 0
    for one in messages:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(one.body) > BATCH_BYTES):
            yield _batch(batch, done)
            batch, size = [], 0
        batch.append(one)
        size += len(one.body)
    if batch:
        yield _batch(batch, done)


def _batch(messages: list[SourceMessage], done: Callable[[list[SourceMessage]], None] | None) -> SourceBatch:
    return (
        SourceBatch(messages=messages) if done is None else SourceBatch(messages=messages, done=lambda: done(messages))
    )


def text_attributes(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that are there, as text."""
    return {
        name: value if isinstance(value, str) else str(value) for name, value in values.items() if value is not None
    }


def json_object(text: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object, or raise Invalid."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{what}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise Invalid(f"{what}: not a JSON object")
    return found
