"""Lists, sorted sets, hashes and streams of Redis, read as they are or drained element by element."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from tenantq.errors import Invalid, Unavailable
from tenantq.sources.source import (
    BATCH_MESSAGES,
    InProgress,
    Mode,
    Problems,
    SourceBatch,
    SourceMessage,
    SourcePart,
    SourceQueue,
    batched,
)

ContainerKind = Literal["list", "zset", "hash", "stream"]
MessageState = Literal["ready", "delayed", "in_progress", "dead"]
ASIDE: Final = ":tenantq-draining"
"""Suffix of the list that holds what is being drained."""
_PAGE: Final = 500
_DRAIN: Final = Path(__file__).with_name("drain.lua").read_text()


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One key that holds messages, or their ids."""

    kind: ContainerKind
    key: str
    queue: str
    state: MessageState = "ready"
    tenant: str | None = None
    first: Literal["head", "tail"] = "head"  # of a list: the end that is delivered next


class RedisLayout(Protocol):
    """The layout of one system in Redis."""

    kind: str

    def containers(self, client: Any) -> list[Container]:
        """Return the keys that hold messages, in the order in which they are delivered."""

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:
        """Return the message of an element, or None if the element refers to none. Raises Invalid if it is malformed.

        The key of a message without an id is empty.
        """

    def leftovers(self, container: Container, raw: bytes) -> list[str]:  # noqa: ARG002  # most elements have none
        """Return keys to delete together with a drained element."""
        return []


class RedisSource:
    """Reads or drains everything that a layout finds in one Redis database."""

    modes: tuple[Mode, ...] = ("snapshot", "drain")

    def __init__(self, url: str, layout: RedisLayout) -> None:
        """Connect. Raises Invalid for a malformed URL, Unavailable if Redis does not answer."""
        try:
            from redis import Redis, RedisError  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Invalid(
                f"migrate-from {layout.kind} requires the Redis client: run pip install '.[redis]' in the checkout"
            ) from error
        self.kind = layout.kind
        self._layout = layout
        self._problems = Problems()
        self.problems = self._problems.counts
        self._error = RedisError
        try:
            self._client: Any = Redis.from_url(url, socket_timeout=30, socket_connect_timeout=5)
        except ValueError as error:
            raise Invalid(f"source: not a Redis URL such as redis://HOST:PORT/DB ({error})") from error
        with self._talking():
            self._client.ping()

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise Unavailable(f"the source Redis does not answer: {error}") from error

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def queues(self) -> list[SourceQueue]:
        """Return the number of messages in each queue."""
        counts: dict[tuple[str | None, str], dict[str, int]] = {}
        with self._talking():
            for one in self._containers():
                found = counts.setdefault((one.tenant, one.queue), {})
                found[one.state] = found.get(one.state, 0) + self._length(one)
        return [
            msgspec.convert({"name": queue, "tenant": tenant, **found}, SourceQueue)
            for (tenant, queue), found in counts.items()
        ]

    def _containers(self) -> list[Container]:
        return self._layout.containers(self._client)

    def _length(self, one: Container) -> int:
        command = {"list": "LLEN", "zset": "ZCARD", "hash": "HLEN", "stream": "XLEN"}[one.kind]
        aside = self._client.llen(one.key + ASIDE) if one.kind in {"list", "zset"} else 0
        return int(self._client.execute_command(command, one.key)) + int(aside)

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:  # noqa: ARG002  # none has an end here
        """Yield all messages, queue by queue."""
        with self._talking():
            for one in self._containers():
                yield from self._drain(one) if mode == "drain" else batched(self._read(one))

    # ---- a snapshot ----

    def _read(self, one: Container) -> Iterator[SourceMessage]:
        seen: dict[bytes, int] = {}
        for raw, score in self._elements(one):
            yield from self._message(one, raw, score, seen)

    def parts(self, count: int) -> list[SourcePart]:
        """Divide each key by the hashes of its elements: equal ones, which are numbered, are in the same part."""
        with self._talking():
            containers = self._containers()
        return [
            SourcePart(order=order, what=(one, number, count))
            for order, one in enumerate(containers)
            for number in range(count)
        ]

    def part_batches(self, part: SourcePart, in_progress: InProgress, now_ms: int) -> Iterator[SourceBatch]:  # noqa: ARG002  # none has an end here
        """Yield the elements of one part. Their ids have the order of the source, across all parts of a key."""
        container, number, count = part.what
        with self._talking():
            yield from batched(self._read_part(container, number, count, now_ms))

    def _read_part(self, one: Container, number: int, count: int, now_ms: int) -> Iterator[SourceMessage]:
        seen: dict[bytes, int] = {}
        for place, (raw, score) in enumerate(self._elements(one)):
            hash = hashlib.sha256(one.key.encode() + b"\0" + raw).digest()
            if int.from_bytes(hash[:8]) % count == number:
                for message in self._message(one, raw, score, seen):
                    yield msgspec.structs.replace(message, id=message.id or _id_in_order(now_ms, place, hash))

    def _elements(self, one: Container) -> Iterator[tuple[bytes, float | None]]:
        client = self._client
        if one.kind in {"list", "zset"}:
            for aside in client.lrange(one.key + ASIDE, 0, -1):
                yield _parse_aside(aside)[1:]
        if one.kind == "list":
            yield from ((raw, None) for raw in self._list(one))
        elif one.kind == "zset":
            at = 0
            while page := client.zrange(one.key, at, at + _PAGE - 1, withscores=True):
                yield from page
                at += len(page)
        elif one.kind == "hash":
            yield from ((name + b"\0" + value, None) for name, value in client.hscan_iter(one.key, count=_PAGE))
        else:
            low = "-"
            while page := client.xrange(one.key, low, "+", count=_PAGE):
                for id, fields in page:
                    yield id + b"\0" + msgspec.msgpack.encode(fields), None
                low = f"({page[-1][0].decode()}"

    def _list(self, one: Container) -> Iterator[bytes]:
        length = self._client.llen(one.key)
        for at in range(0, length, _PAGE):
            if one.first == "head":
                yield from self._client.lrange(one.key, at, at + _PAGE - 1)
            else:
                page = self._client.lrange(one.key, -at - _PAGE, -at - 1)
                yield from reversed(page)

    def _message(
        self, one: Container, raw: bytes, score: float | None, seen: dict[bytes, int], word: str = ""
    ) -> Iterator[SourceMessage]:
        """Yield the message of an element. One without an id gets a key.

        That is its unique ``word`` while it is drained. In a snapshot it is a hash, and equal elements are numbered.
        """
        try:
            found = self._layout.message(self._client, one, raw, score)
        except Invalid as error:
            self._problems.count(f"{error.message.partition(' (')[0]}; skipped")
            return
        if found is None:
            self._problems.count("ids without a message; skipped")
            return
        if found.key:
            yield found
            return
        if not word:
            hash = hashlib.sha256(raw).digest()
            seen[hash] = seen.get(hash, 0) + 1
            word = f"{hash.hex()} {seen[hash]}"
        yield msgspec.structs.replace(found, key=word)

    # ---- draining ----

    def _drain(self, one: Container) -> Iterator[SourceBatch]:
        if one.kind in {"hash", "stream"}:
            yield from self._drain_by_id(one)
            return
        first = "zset" if one.kind == "zset" else one.first
        skipped = 0
        while True:
            aside = self._client.eval(_DRAIN, 2, one.key, one.key + ASIDE, first, BATCH_MESSAGES + skipped)[skipped:]
            if not aside:
                return
            messages: list[SourceMessage] = []
            seen: dict[bytes, int] = {}
            for element in aside:
                word, raw, score = _parse_aside(element)
                messages += self._message(one, raw, score, seen, word)
            done = self._forget(one, aside)
            if len(messages) == len(aside):
                removed = _Once(done)
                yield SourceBatch(messages=messages, done=removed)
                skipped += 0 if removed.was_called else len(aside)
            else:  # unreadable elements stay aside for the operator
                yield SourceBatch(messages=messages)
                skipped += len(aside)

    def _forget(self, one: Container, aside: list[bytes]) -> Callable[[], None]:
        def forget() -> None:
            with self._talking():
                pipe = self._client.pipeline(transaction=True)
                for element in aside:
                    pipe.lrem(one.key + ASIDE, 1, element)
                    for key in self._layout.leftovers(one, _parse_aside(element)[1]):
                        pipe.delete(key)
                pipe.execute()

        return forget

    def _drain_by_id(self, one: Container) -> Iterator[SourceBatch]:
        command = "hdel" if one.kind == "hash" else "xdel"
        seen: dict[bytes, int] = {}
        page: list[bytes] = []
        for raw, _ in self._elements(one):
            page.append(raw)
            if len(page) == BATCH_MESSAGES:
                yield self._id_batch(one, page, command, seen)
                page = []
        if page:
            yield self._id_batch(one, page, command, seen)

    def _id_batch(self, one: Container, page: list[bytes], command: str, seen: dict[bytes, int]) -> SourceBatch:
        messages, ids = [], []
        for raw in page:
            found = list(self._message(one, raw, None, seen))
            messages += found
            ids += [raw.partition(b"\0")[0]] if found else []

        def forget() -> None:
            with self._talking():
                getattr(self._client, command)(one.key, *ids)

        return SourceBatch(messages=messages, done=forget) if ids else SourceBatch(messages=messages)


class _Once:
    """Calls a function, and records that it was called."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.was_called = False

    def __call__(self) -> None:
        self._function()
        self.was_called = True


def _id_in_order(now_ms: int, place: int, hash: bytes) -> bytes:
    """Return a UUIDv7 that sorts by place: its first 40 random bits are the place, the others are those of a hash."""
    high, low = place >> 28 & 0xFFF, (place & 0xFFF_FFFF) << 34 | int.from_bytes(hash[8:13]) >> 6
    return (now_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low).to_bytes(16)


def _parse_aside(element: bytes) -> tuple[str, bytes, float | None]:
    """Return the unique word, the element and the score of an entry that ``drain.lua`` moved aside."""
    word, score, raw = element.split(b" ", 2)
    return word.decode(), raw, None if score == b"-" else float(score)


def keys(client: Any, pattern: str) -> list[str]:
    """Return the keys that match a pattern, sorted."""
    return sorted(key.decode(errors="replace") for key in client.scan_iter(match=pattern, count=1_000))


def kind_of(client: Any, key: str) -> str:
    """Return the type of a key."""
    return str(client.type(key).decode())
