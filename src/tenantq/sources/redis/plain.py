"""A plain list, sorted set or stream: every element is a message."""

from typing import Any, Literal

import msgspec

from tenantq.errors import Invalid
from tenantq.sources.redis.containers import Container, RedisLayout, kind_of
from tenantq.sources.source import SourceMessage

_SECONDS_BELOW = 100_000_000_000
"""Scores below this are seconds since 1970, others milliseconds."""


class PlainKeys(RedisLayout):
    """The keys that the command names. Scores of sorted sets that look like times are used as such."""

    kind = "redis"

    def __init__(self, names: tuple[str, ...], first: Literal["head", "tail"] = "head") -> None:
        if not names:
            raise Invalid("keys: name the lists, sorted sets or streams to migrate")
        self._names, self._first = names, first

    def containers(self, client: Any) -> list[Container]:
        """Return the named keys."""
        found = []
        for name in self._names:
            kind = kind_of(client, name)
            if kind == "none":
                kind = "list"  # empty, or fully drained
            if kind not in {"list", "zset", "stream"}:
                raise Invalid(f"key {name!r}: is a {kind}; a list, a sorted set or a stream can be migrated")
            state = "delayed" if kind == "zset" else "ready"
            found.append(Container(kind=kind, key=name, queue=name, state=state, first=self._first))  # type: ignore[arg-type]
        return found

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:  # noqa: ARG002
        """Return the element as a message. A stream entry with one field becomes its value; with several, a JSON object."""
        if container.kind == "stream":
            id, _, packed = raw.partition(b"\0")
            fields = msgspec.msgpack.decode(packed)
            body = next(iter(fields.values())) if len(fields) == 1 else _json(fields)
            added_at = int(id.partition(b"-")[0]) or None
            return SourceMessage(key=id.decode(), queue=container.queue, body=body, added_at=added_at)
        visible_at = None
        if score is not None and score > 1e9:  # the year 2001 in seconds
            visible_at = int(score * 1_000) if score < _SECONDS_BELOW else int(score)
        return SourceMessage(key="", queue=container.queue, body=raw, visible_at=visible_at)


def _json(fields: dict[bytes, bytes]) -> bytes:
    return msgspec.json.encode(
        {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    )
