"""Celery on Redis: a list per queue and priority, and the messages that workers hold in ``unacked``."""

from datetime import datetime
from typing import Any, Final

import msgspec

from tenantq.errors import Invalid
from tenantq.sources.redis.containers import ASIDE, Container, RedisLayout, keys, kind_of
from tenantq.sources.source import SourceMessage, json_object, text_attributes

_PRIORITY: Final = "\x06\x16"
_BINDINGS: Final = "_kombu.binding."
_UNACKED: Final = "unacked"


class Celery(RedisLayout):
    """The body of a message is Celery's full envelope, which a Celery worker on the SQS endpoint can read."""

    kind = "celery"

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        """``names`` are the queues. Default: all that Celery has declared."""
        self._names = names

    def containers(self, client: Any) -> list[Container]:
        """Return the lists of all queues by priority, and the messages that workers hold."""
        names = self._names or self._declared(client)
        found: list[Container] = []
        for name in names:
            lists = {name, *(key.removesuffix(ASIDE) for key in keys(client, f"{_escaped(name)}{_PRIORITY}*"))}
            found += [
                Container(kind="list", key=key, queue=name, first="tail")
                for key in sorted(lists, key=lambda one: (len(one), one))
                if kind_of(client, key) in {"list", "none"}
            ]
        found.append(Container(kind="hash", key=_UNACKED, queue=names[0] if names else "celery", state="in_progress"))
        return found

    @staticmethod
    def _declared(client: Any) -> tuple[str, ...]:
        names: set[str] = set()
        for key in keys(client, f"{_BINDINGS}*"):
            if key.endswith((".pidbox", "celeryev")):
                continue
            for member in client.smembers(key):
                queue = member.decode(errors="replace").rpartition(_PRIORITY)[2]
                if not queue.endswith(".celery.pidbox") and not queue.startswith("celeryev"):
                    names.add(queue)
        return tuple(sorted(names)) or ("celery",)

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:  # noqa: ARG002
        """Return an envelope. One with an ETA is delayed until then."""
        queue = container.queue
        if container.kind == "hash":
            raw = raw.partition(b"\0")[2]
            try:
                held = msgspec.json.decode(raw)
                envelope, exchange, routing_key = held
            except (msgspec.DecodeError, ValueError, TypeError) as error:
                raise Invalid("unacked entry: not a list of message, exchange and routing key") from error
            queue = routing_key or exchange or queue
            raw = msgspec.json.encode(envelope)
        envelope = json_object(raw, "Celery message")
        headers = envelope.get("headers") or {}
        properties = envelope.get("properties") or {}
        id = headers.get("id") or properties.get("correlation_id") or properties.get("delivery_tag")
        return SourceMessage(
            key=str(id or ""),
            queue=queue,
            body=raw,
            attributes=text_attributes({"celery-task": headers.get("task"), "celery-id": headers.get("id")}),
            visible_at=_time(headers.get("eta")),
        )


def _escaped(name: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def _time(eta: object) -> int | None:
    try:
        return int(datetime.fromisoformat(str(eta)).timestamp() * 1_000) if eta else None
    except ValueError:
        return None
