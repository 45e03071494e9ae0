"""RQ: a list of job ids per queue, a hash per job, and registries of scheduled, failed and started jobs."""

import zlib
from datetime import datetime
from typing import Any

from tenantq.sources.redis.containers import ASIDE, Container, keys
from tenantq.sources.source import SourceMessage, text_attributes

_REGISTRIES = (
    ("rq:scheduled:", "delayed"),
    ("rq:deferred:", "delayed"),
    ("rq:wip:", "in_progress"),
    ("rq:failed:", "dead"),
)


class Rq:
    """The body of a message is the job's payload: a pickle or JSON, as RQ serialized it."""

    kind = "rq"

    def containers(self, client: Any) -> list[Container]:
        """Return the queues and their registries."""
        found = [
            Container(kind="list", key=key, queue=key.removeprefix("rq:queue:")) for key in _names(client, "rq:queue:")
        ]
        for prefix, state in _REGISTRIES:
            found += [
                Container(kind="zset", key=key, queue=key.removeprefix(prefix), state=state)  # type: ignore[arg-type]
                for key in _names(client, prefix)
            ]
        return found

    def message(self, client: Any, container: Container, raw: bytes, score: float | None) -> SourceMessage | None:
        """Return the job of an id. In a registry, the id of its execution may follow."""
        id = raw.decode(errors="replace").partition(":")[0]
        job = {name.decode(): value for name, value in client.hgetall(f"rq:job:{id}").items()}
        if "data" not in job:
            return None
        try:
            body = zlib.decompress(job["data"])
        except zlib.error:
            body = job["data"]
        failure = job.get("exc_info", b"")
        reason = _text(failure).strip().rpartition("\n")[2] or "failed in RQ"
        return SourceMessage(
            key=id,
            queue=_text(job.get("origin", b"")) or container.queue,
            body=body,
            attributes=text_attributes(
                {"rq-job-id": id, "rq-description": _text(job["description"])[:1_000] if "description" in job else None}
            ),
            added_at=_time(job.get("created_at")),
            visible_at=int(score * 1_000) if container.key.startswith("rq:scheduled:") and score else None,
            dead=reason if container.state == "dead" else None,
        )

    def leftovers(self, container: Container, raw: bytes) -> list[str]:  # noqa: ARG002
        """Return the job's hash."""
        return [f"rq:job:{raw.decode(errors='replace').partition(':')[0]}"]


def _names(client: Any, prefix: str) -> list[str]:
    found = keys(client, f"{prefix}*")
    return sorted({key.removesuffix(ASIDE) for key in found if not key.endswith(":intermediate")})


def _text(value: bytes) -> str:
    try:
        return zlib.decompress(value).decode(errors="replace")
    except zlib.error:
        return value.decode(errors="replace")


def _time(value: bytes | None) -> int | None:
    try:
        return int(datetime.fromisoformat(_text(value or b"")).timestamp() * 1_000)
    except ValueError:
        return None
