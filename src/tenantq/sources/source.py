"""The interface of a migration source: its queues, and its messages in batches."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Literal, Protocol, runtime_checkable

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

    key: str  # unique at its source: it is migrated once
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
    """Messages that are migrated together. ``done`` is called once they are stored, and deletes them at the source."""

    messages: list[SourceMessage]
    done: Callable[[], None] = lambda: None


class SourceQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a source queue. They may be estimates while clients use it."""

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
    problems: dict[str, int]  # counts of skipped items, by description

    def queues(self) -> list[SourceQueue]:
        """Return the queues to migrate."""

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:
        """Yield all messages in the order in which the source would deliver them."""

    def close(self) -> None:
        """Disconnect."""


class SourcePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a source. Its messages come after those of all parts with a lower ``order``."""

    order: int
    what: tuple[Any, ...]  # known to the source


@runtime_checkable
class PartedSource(Source, Protocol):
    """A source that many processes can read at the same time, each another part."""

    def parts(self, count: int) -> list[SourcePart]:
        """Return about ``count`` parts of each queue or table. Together they have every message once."""

    def part_batches(self, part: SourcePart, in_progress: InProgress, now_ms: int) -> Iterator[SourceBatch]:
        """Yield the messages of a part. The keys are those of ``batches``. ``now_ms`` is the same for all parts of one order."""


def even_ranges(low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Divide the numbers from ``low`` to ``high`` inclusive into at most ``count`` ranges, without their ends."""
    size = high + 1 - low
    bounds = [low + size * number // count for number in range(count + 1)]
    return [(start, end) for start, end in pairwise(bounds) if start < end]


class Problems:
    """Counts items that are skipped because they are invalid."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, text: str) -> None:
        """Count one more."""
        self.counts[text] = self.counts.get(text, 0) + 1


def batched(messages: Iterator[SourceMessage]) -> Iterator[SourceBatch]:
    """Yield messages in batches of bounded size."""
    batch: list[SourceMessage] = []
    size = 0
    for one in messages:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(one.body) > BATCH_BYTES):
            yield SourceBatch(messages=batch)
            batch, size = [], 0
        batch.append(one)
        size += len(one.body)
    if batch:
        yield SourceBatch(messages=batch)


def text_attributes(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that are not None, as text."""
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
