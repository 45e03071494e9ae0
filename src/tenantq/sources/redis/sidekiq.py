"""Sidekiq: a list of JSON jobs per queue, and sorted sets of scheduled, retried and dead jobs."""

from typing import Any

from tenantq.errors import Invalid
from tenantq.sources.redis.containers import ASIDE, Container, RedisLayout, keys
from tenantq.sources.source import SourceMessage, json_object, text_attributes

_SETS = (("retry", "delayed"), ("schedule", "delayed"), ("dead", "dead"))


class Sidekiq(RedisLayout):
    """The body of a message is the job as JSON."""

    kind = "sidekiq"

    def containers(self, client: Any) -> list[Container]:
        """Return the queues and the three sets."""
        names = {key.removesuffix(ASIDE) for key in keys(client, "queue:*")}
        names |= {f"queue:{name.decode()}" for name in client.smembers("queues")}
        found = [
            Container(kind="list", key=name, queue=name.removeprefix("queue:"), first="tail") for name in sorted(names)
        ]
        return found + [Container(kind="zset", key=key, queue="default", state=state) for key, state in _SETS]  # type: ignore[arg-type]

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:  # noqa: ARG002
        """Return a job."""
        job = json_object(raw, "Sidekiq job")
        if not job.get("jid"):
            raise Invalid("Sidekiq job: has no jid")
        created = job.get("created_at") or job.get("enqueued_at")
        return SourceMessage(
            key=str(job["jid"]),
            queue=str(job.get("queue") or container.queue),
            body=raw,
            attributes=text_attributes({"sidekiq-class": job.get("class"), "sidekiq-jid": job["jid"]}),
            added_at=_time(created),
            visible_at=int(score * 1_000) if container.state == "delayed" and score else None,
            dead=str(job.get("error_message") or "dead in Sidekiq") if container.state == "dead" else None,
        )


def _time(value: object) -> int | None:
    """Return milliseconds. Sidekiq 8 writes them; older versions write fractional seconds."""
    if not isinstance(value, int | float):
        return None
    return int(value) if value > 1e11 else int(value * 1_000)
