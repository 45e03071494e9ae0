"""BullMQ: job ids in lists and sorted sets per queue, and a hash per job."""

from typing import Any, Final

from tenantq.sources.redis.containers import ASIDE, Container, ContainerKind, MessageState, keys
from tenantq.sources.source import SourceMessage, text_attributes

_PARTS: Final[tuple[tuple[str, ContainerKind, MessageState], ...]] = (
    ("active", "list", "in_progress"),
    ("wait", "list", "ready"),
    ("paused", "list", "ready"),
    ("prioritized", "zset", "ready"),
    ("delayed", "zset", "delayed"),
    ("failed", "zset", "dead"),
)
_SCORE_STEPS: Final = 4_096  # a delayed job's score is its time in ms times this, plus a counter


class BullMq:
    """The body of a message is the job's data, as JSON."""

    kind = "bullmq"

    def __init__(self, prefix: str = "bull") -> None:
        self._prefix = prefix

    def containers(self, client: Any) -> list[Container]:
        """Return the lists and sorted sets of all queues, in the order in which jobs are taken."""
        start = f"{self._prefix}:"
        existing = {key.removesuffix(ASIDE) for key in keys(client, f"{start}*")}
        names = sorted({key[len(start) :].rpartition(":")[0] for key in existing if key.endswith((":id", ":meta"))})
        names += sorted(
            {key[len(start) :].rpartition(":")[0] for key in existing if key.endswith((":wait", ":delayed"))}
            - set(names)
        )
        return [
            Container(kind=kind, key=f"{start}{name}:{part}", queue=name.strip("{}"), state=state, first="tail")
            for name in names
            for part, kind, state in _PARTS
            if f"{start}{name}:{part}" in existing
        ]

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:
        """Return the job of an id, or None for the markers that BullMQ keeps among the ids."""
        id = raw.decode(errors="replace")
        job = {
            name.decode(): value.decode(errors="replace")
            for name, value in client.hgetall(self._job(container, id)).items()
        }
        if "data" not in job:
            return None
        return SourceMessage(
            key=id,
            queue=container.queue,
            body=job["data"].encode(),
            attributes=text_attributes(
                {"bullmq-name": job.get("name"), "bullmq-id": id, "source-priority": job.get("priority")}
            ),
            added_at=int(job["timestamp"]) if job.get("timestamp", "").isdigit() else None,
            visible_at=int(score // _SCORE_STEPS) if container.state == "delayed" and score else None,
            dead=job.get("failedReason") or "failed in BullMQ" if container.state == "dead" else None,
        )

    @staticmethod
    def _job(container: Container, id: str) -> str:
        return f"{container.key.rpartition(':')[0]}:{id}"

    def leftovers(self, container: Container, raw: bytes) -> list[str]:
        """Return the job's hash, lock and log."""
        job = self._job(container, raw.decode(errors="replace"))
        return [job, f"{job}:lock", f"{job}:logs"]
