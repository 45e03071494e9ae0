"""What a client hands out: frozen values, bodies as bytes, times in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from tenantq.client.bodies import from_json, from_wire
from tenantq.client.problems import from_item
from tenantq.domain.message import DeadLetter, HistoryEntry
from tenantq.errors import Invalid, TenantqError

if TYPE_CHECKING:
    from tenantq.wire import MessageFacts, PeekReply, ResultReply, WireError

T = TypeVar("T")


class Added(msgspec.Struct, frozen=True):
    """What became of an added message: its id, or the error that refused it."""

    id: str
    duplicate: bool = False  # the key was known: the id is the earlier message's
    error: TenantqError | None = None  # only where ``add_many`` was told to return errors


class JobResult(msgspec.Struct, frozen=True):
    """What a consumer reported of a message."""

    id: str
    status: Literal["completed", "failed", "pending"]
    value: bytes | None = None
    error: str | None = None
    hidden: bool = False  # there is a value, and this credential may not read it

    @property
    def done(self) -> bool:
        """Whether it is completed or failed for good."""
        return self.status != "pending"

    @property
    def text(self) -> str:
        """The value as text."""
        return self._given().decode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    @overload
    def json(self, type: Any) -> Any: ...
    def json(self, type: Any = Any) -> Any:
        """Return the value as JSON, checked against ``type``; raises Invalid where it does not fit."""
        return from_json(self._given(), type)

    def _given(self) -> bytes:
        if self.value is None:
            why = self.error if self.status == "failed" else "it is hidden" if self.hidden else f"it is {self.status}"
            raise Invalid(f"the result has no value: {why}", id=self.id)
        return self.value


class StoredMessage(msgspec.Struct, frozen=True):
    """Everything known of a message that is still stored."""

    id: str
    tenant: str
    queue: str
    state: Literal["ready", "delayed", "blocked", "in_flight"]
    body: bytes  # empty where hidden
    hidden: bool  # this credential may not read bodies and attributes
    encrypted: bool  # at rest; the body here is the plaintext
    body_error: str | None  # the code of the error for which body and attributes cannot be shown
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

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self, type: Any = Any) -> Any:
        """Return the body as JSON, checked against ``type``; raises Invalid where it does not fit."""
        return from_json(self.body, type)


class Page(msgspec.Struct, frozen=True):
    """A page of messages and where the next one starts."""

    messages: list[StoredMessage]
    cursor: str | None = None


def stored_message(facts: MessageFacts) -> StoredMessage:
    """Return what the server told of a message."""
    history = tuple(
        HistoryEntry(entry.attempt, entry.at, entry.outcome, entry.reason)  # type: ignore[arg-type]  # a newer server may know more
        for entry in facts.history
    )
    dead = None
    if facts.dead is not None:
        dead = DeadLetter(facts.dead.reason, facts.dead.source, facts.dead.attempts, facts.dead.at)
    return StoredMessage(
        id=facts.id,
        tenant=facts.tenant,
        queue=facts.queue,
        state=facts.state,
        body=from_wire(facts.body, facts.body_base64) or b"",
        hidden=facts.body_hidden,
        encrypted=facts.encrypted,
        body_error=facts.body_error,
        size=facts.size,
        priority=facts.priority,
        attributes=facts.attributes,
        group=facts.group,
        attempts=facts.attempts,
        max_attempts=facts.max_attempts,
        added_at=facts.added_at,
        visible_at=facts.visible_at,
        expires_at=facts.expires_at,
        lease_until=facts.lease_until,
        history=history,
        dead=dead,
    )


def page(reply: PeekReply) -> Page:
    """Return a page of what the server told."""
    return Page([stored_message(facts) for facts in reply.messages], reply.cursor)


def job_result(id: str, reply: ResultReply) -> JobResult:
    """Return what the server told of a result."""
    value = from_wire(reply.value, reply.value_base64)
    return JobResult(id, reply.status, value, reply.error, reply.value_hidden)


def item_error(error: WireError | None, tenant: str | None, queue: str, id: str) -> TenantqError | None:
    """Return the exception for one refused item, or None where it was not refused."""
    return from_item(error, tenant=tenant, queue=queue, id=id) if error is not None else None
