"""A message that is stored on a server, as JSON shows it. The keys are those of the HTTP interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.cli.output import body_fields

if TYPE_CHECKING:
    from tenantq.client.received import Received
    from tenantq.client.values import StoredMessage


def stored_fields(message: StoredMessage) -> dict[str, Any]:
    """Return everything known of a stored message."""
    fields = {
        name: getattr(message, name)
        for name in message.__struct_fields__
        if name not in ("body", "hidden", "history", "dead")
    }
    fields["body_hidden"] = message.hidden
    if not message.hidden and message.body_error is None:
        fields |= body_fields(message.body)
    fields["history"] = [msgspec.structs.asdict(entry) for entry in message.history]
    fields["dead"] = msgspec.structs.asdict(message.dead) if message.dead is not None else None
    return fields


def delivered_fields(message: Received) -> dict[str, Any]:
    """Return a message under lease."""
    return {
        "id": message.id,
        "receipt": message.receipt,
        **body_fields(message.body),
        "attempt": message.attempt,
        "priority": message.priority,
        "attributes": message.attributes,
        "group": message.group,
        "added_at": message.added_at,
        "lease_until": message.lease_until,
        "tenant": message.tenant,
        "queue": message.queue,
    }
