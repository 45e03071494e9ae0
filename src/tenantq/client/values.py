"""The values that a client returns. Frozen; bodies are bytes, times are milliseconds."""

from typing import Literal

import msgspec

from tenantq.client.bodies import JsonContent, from_wire
from tenantq.client.problems import from_item
from tenantq.domain.message import DeadLetter, HistoryEntry
from tenantq.domain.validation import projected
from tenantq.errors import Invalid, TenantqError
from tenantq.wire.base_types import WireError
from tenantq.wire.messages import MessageFacts, PeekReply, ResultReply


class Added(msgspec.Struct, frozen=True):
    """The result of adding a message: its id, or the error that refused it."""

    id: str
    duplicate: bool = False  # a message with this key exists; the id is that message's
    error: TenantqError | None = None  # only from ``add_many(errors="return")``


class JobResult(JsonContent, msgspec.Struct, frozen=True):
    """The result that a consumer reported for a message."""

    id: str
    status: Literal["completed", "failed", "pending"]
    value: bytes | None = None
    error: str | None = None
    hidden: bool = False  # the result has a value, but this credential may not read it

    @property
    def done(self) -> bool:
        """Whether the message is completed or failed."""
        return self.status != "pending"

    def _content(self) -> bytes:
        if self.value is None:
            why = {"failed": f"failed: {self.error}", "pending": "is still pending", "completed": "returned no value"}
            text = "returned a value that this credential may not read" if self.hidden else why[self.status]
            raise Invalid(f"result: message {self.id} {text}", id=self.id)
        return self.value


class StoredMessage(JsonContent, msgspec.Struct, frozen=True):
    """A stored message with its state and history."""

    id: str
    tenant: str
    queue: str
    state: Literal["ready", "delayed", "blocked", "in_flight"]
    body: bytes  # empty if hidden
    hidden: bool  # this credential may not read bodies and attributes
    encrypted: bool  # at rest; the body here is the plaintext
    body_error: str | None  # the error code if body and attributes cannot be read
    size: int
    priority: int
    attributes: dict[str, str]
    group: str | None
    attempts: int
    max_attempts: int
    added_at: int
    visible_at: int
    expires_at: int | None
    lease_until: int | None
    history: tuple[HistoryEntry, ...]
    dead: DeadLetter | None

    def _content(self) -> bytes:
        return self.body


class Page(msgspec.Struct, frozen=True):
    """A page of messages and the cursor of the next page."""

    messages: list[StoredMessage]
    cursor: str | None = None


def stored_message(facts: MessageFacts) -> StoredMessage:
    """Return a message from the server's reply."""
    return projected(
        StoredMessage,
        facts,
        body=from_wire(facts.body, facts.body_base64) or b"",
        hidden=facts.body_hidden,
        history=tuple(projected(HistoryEntry, entry) for entry in facts.history),
        dead=projected(DeadLetter, facts.dead) if facts.dead is not None else None,
    )


def page(reply: PeekReply) -> Page:
    """Return a page from the server's reply."""
    return Page([stored_message(facts) for facts in reply.messages], reply.cursor)


def job_result(id: str, reply: ResultReply) -> JobResult:
    """Return a result from the server's reply."""
    value = from_wire(reply.value, reply.value_base64)
    return JobResult(id, reply.status, value, reply.error, reply.value_hidden)


def item_error(error: WireError | None, tenant: str | None, queue: str, id: str) -> TenantqError | None:
    """Return the exception for one refused item, or None."""
    return from_item(error, tenant=tenant, queue=queue, id=id) if error is not None else None
