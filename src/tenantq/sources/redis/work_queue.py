"""go-redis-work-queue: lists ``jobqueue:*``, and with tenants ``t:<tenant>:<queue>`` with ``:jobs`` and ``:dlq``."""

import re
from typing import Any, Final

from tenantq.errors import Invalid
from tenantq.sources.redis.containers import ASIDE, Container, MessageState, RedisLayout, keys, kind_of
from tenantq.sources.source import SourceMessage, json_object, text_attributes

_OLD: Final = "jobqueue:"
_SKIPPED: Final = ("completed", "heartbeat", "metrics", "workers")
_NEW: Final = re.compile(r"t:\{?(?P<tenant>[a-z0-9-]{3,32})\}?:(?P<queue>[^:]+)(?P<part>|:jobs|:dlq)")


class WorkQueue(RedisLayout):
    """Jobs are JSON objects; producers push on the left, workers take from the right."""

    kind = "work-queue"

    def containers(self, client: Any) -> list[Container]:
        """Return the lists of both layouts."""
        found: list[Container] = []
        for found_key in keys(client, f"{_OLD}*"):
            key = found_key.removesuffix(ASIDE)
            name = key.removeprefix(_OLD)
            if kind_of(client, key) not in {"list", "none"} or name.rpartition(":")[2] in _SKIPPED:
                continue
            state: MessageState = (
                "dead" if name == "dead_letter" else "in_progress" if name.startswith("worker:") else "ready"
            )
            queue = "jobs" if state != "ready" else name
            found.append(Container(kind="list", key=key, queue=queue, state=state, first="tail"))
        for key in keys(client, "t:*"):
            match = _NEW.fullmatch(key.removesuffix(ASIDE))
            if match is None or kind_of(client, key) != "list":
                continue
            state = "dead" if match["part"] == ":dlq" else "ready"
            found.append(
                Container(
                    kind="list", key=match[0], queue=match["queue"], tenant=match["tenant"], state=state, first="tail"
                )
            )
        unique = {one.key: one for one in found}
        return sorted(unique.values(), key=lambda one: (one.state == "dead", "low" in one.key, one.key))

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:  # noqa: ARG002
        """Return a job."""
        try:
            job = json_object(raw, "job")
        except Invalid:
            job = {}  # producers may push anything
        queue = (
            str(job.get("priority") or container.queue)
            if container.state in {"in_progress", "dead"}
            else container.queue
        )
        if container.tenant is not None or container.state == "ready":
            queue = container.queue
        return SourceMessage(
            key=str(job.get("id") or ""),
            queue=queue,
            tenant=container.tenant,
            body=raw,
            attributes=text_attributes({"traceparent": job.get("traceparent"), "source-retries": job.get("retries")}),
            dead="dead letter of go-redis-work-queue" if container.state == "dead" else None,
        )
