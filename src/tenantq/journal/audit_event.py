"""A journal row as an audit event: with an id, a resource and a result."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tenantq.journal.record import JournalRow
from tenantq.journal.row_filter import result_of

EVENT_FIELDS: Final = ("event_id", "result", "resource", *JournalRow.__struct_fields__)


def audit_event(row: JournalRow) -> dict[str, Any]:
    """Return a row with a unique ``event_id``, ``result`` and ``resource`` before its own columns."""
    return {
        "event_id": f"e{row.shard}-{row.seq}-{row.n}",
        "result": result_of(row.outcome),
        "resource": _resource(row),
        **msgspec.structs.asdict(row),
    }


def audit_events(rows: Sequence[JournalRow]) -> list[dict[str, Any]]:
    return [audit_event(row) for row in rows]


def _resource(row: JournalRow) -> str:
    """Return the path of the resource."""
    if not row.tenant:
        return "platform"
    path = f"tenants/{row.tenant}"
    if row.queue:
        path += f"/queues/{row.queue}"
        if row.message_id:
            path += f"/messages/{row.message_id}"
    return path
