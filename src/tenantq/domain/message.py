"""Messages, deliveries and results: frozen value objects, times in milliseconds."""

from collections.abc import Iterable
from typing import Literal, TypeGuard

import msgspec

from tenantq.domain import limits
from tenantq.domain.limits import Attempts, AttributeName, DelayMs, GroupName, IdempotencyKey, Priority, Reason, TtlMs
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid, TenantqError, TooLarge
from tenantq.runtime.randomness import id_text


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to add."""

    body: bytes
    priority: Priority = 0  # 9 is delivered first
    delay_ms: DelayMs = 0  # how long it stays invisible
    ttl_ms: TtlMs | None = None  # discarded this long after it became visible; None: the queue's
    key: IdempotencyKey | None = None  # remembered for the queue's window
    group: GroupName | None = None  # messages of one group are delivered one at a time, in order
    attributes: dict[str, str] = {}
    max_attempts: Attempts | None = None  # deliveries before it becomes a dead letter; 0: no limit; None: the queue's
    key_alone: bool = False  # the same key is a repetition even with another body
    # The service sets the following for encrypted tenants, because it encrypts before the engine sees the message:
    raw_id: bytes | None = None  # its id, which the encryption is bound to
    encrypted: bool = False  # the body is encrypted
    encrypted_attributes: bytes = b""  # the secret attributes, encrypted
    digest: bytes | None = None  # hash of the plaintext, kept with the idempotency key
    known_as: bytes | None = None  # its hash before encryption was switched on or off

    @property
    def size(self) -> int:
        """Size of the body in plaintext, as charged."""
        return len(self.body) - limits.ENCRYPTION_BYTES if self.encrypted else len(self.body)


class AddResult(msgspec.Struct, frozen=True, gc=False):
    """The result of adding one message: its id, or the error that refused it."""

    raw_id: bytes
    duplicate: bool = False  # the key was known; the id is the earlier message's
    error: TenantqError | None = None

    @property
    def id(self) -> str:
        """The message's id as text."""
        return id_text(self.raw_id)


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message under lease."""

    raw_id: bytes
    receipt: str
    body: bytes
    attempt: int  # 1 on the first delivery
    priority: int
    attributes: dict[str, str]
    group: str | None
    added_at: int
    lease_until: int
    tenant: str
    queue: str
    encrypted: bool = False  # the body is encrypted; the service decrypts it before delivery
    encrypted_attributes: bytes = b""
    origin: str = ""  # of a dead letter: its source queue, which the encryption is bound to
    first_at: int = 0  # start of the first delivery; 0: this is the first, or unknown
    source_attempts: int = 0  # of a dead letter: deliveries in its source queue

    @property
    def id(self) -> str:
        """The message's id as text."""
        return id_text(self.raw_id)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one receipt or id of a batch."""

    ok: bool
    error: TenantqError | None = None
    lease_until: int | None = None  # after an extend


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of finished work."""

    status: Literal["completed", "failed", "pending"]
    value: bytes | None = None
    error: str | None = None
    # The value holds value and error, encrypted. Stored results have the old name.
    encrypted: bool = msgspec.field(default=False, name="sealed")


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True):
    """How one delivery ended."""

    attempt: int
    at: int
    outcome: Literal["nacked", "lease_expired", "released"]
    reason: str = ""


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """Why and from where a message became a dead letter."""

    reason: str
    source: str  # the queue it came from
    attempts: int
    at: int


class Facts(msgspec.Struct, frozen=True):
    """A stored message."""

    raw_id: bytes
    tenant: str
    queue: str
    state: Literal["ready", "delayed", "blocked", "in_flight"]
    body: bytes
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
    size: int = 0  # body and attributes, as charged
    hidden: bool = False  # body, attributes and group are removed because the caller may not read them
    encrypted: bool = False  # the body is encrypted at rest
    encrypted_attributes: bytes = b""
    body_error: str = ""  # code of the error that hides body and attributes

    @property
    def origin(self) -> str:
        """The queue that the encryption is bound to."""
        return self.dead.source if self.dead is not None else self.queue

    @property
    def id(self) -> str:
        """The message's id as text."""
        return id_text(self.raw_id)


class MessagePage(msgspec.Struct, frozen=True):
    """A page of messages, and the cursor of the next page."""

    messages: list[Facts]
    cursor: str | None = None


class QueueStats(msgspec.Struct, frozen=True):
    """Counters of a queue. ``ready + delayed + in_flight`` is all of its messages."""

    ready: int  # deliverable now, or waiting for their group
    delayed: int
    in_flight: int
    blocked: int  # the part of ready that waits for an earlier message of its group
    dead: int  # in the queue's dead-letter queue
    bytes: int
    oldest_age_ms: int  # since the oldest ready message became visible
    status: Literal["active", "paused", "draining"]
    added_total: int
    added_bytes_total: int
    delivered_total: int
    acked_total: int
    nacked_total: int
    lease_expired_total: int
    dead_total: int
    expired_total: int  # past their TTL
    removed_total: int  # removed, purged, or redriven to another queue
    healed_total: int  # index rows without a body, dropped


class Caller(msgspec.Struct, frozen=True):
    """The caller as journaled."""

    principal: str = "local"
    remote: str = ""
    request_id: str = ""
    user_agent: str = ""


LOCAL = Caller()
SYSTEM = Caller("system")  # background work of the platform


def check_message(message: NewMessage) -> None:
    """Raise Invalid or TooLarge if ``message`` breaks a limit."""
    if type(message) is not NewMessage:
        raise Invalid(f"messages: each must be a NewMessage, not {type(message).__name__}")
    if type(message.body) is not bytes:
        raise Invalid(f"body: must be bytes, not {type(message.body).__name__}")
    if message.size > limits.BODY_BYTES_MAX:
        raise TooLarge(f"body: {message.size} bytes, the limit is {limits.BODY_BYTES_MAX}")
    check_field("priority", message.priority, Priority)
    check_field("delay_ms", message.delay_ms, DelayMs)
    if message.ttl_ms is not None:
        check_field("ttl_ms", message.ttl_ms, TtlMs)
    if message.max_attempts is not None:
        check_field("max_attempts", message.max_attempts, Attempts)
    if message.key is not None:
        check_field("key", message.key, IdempotencyKey)
    if message.group is not None:
        check_field("group", message.group, GroupName)
    if type(message.attributes) is not dict or message.attributes:
        _check_attributes(message.attributes)
    if message.encrypted or message.raw_id is not None or message.encrypted_attributes:
        _check_encrypted(message)


def checked_message(message: NewMessage | TenantqError) -> NewMessage | TenantqError:
    """Return a message, or the error if it breaks a limit. An error is returned as it is."""
    if isinstance(message, TenantqError):
        return message
    try:
        check_message(message)
    except TenantqError as error:
        return error
    return message


def _check_encrypted(message: NewMessage) -> None:
    """Raise Invalid if the fields of an encrypted message are incomplete."""
    if type(message.raw_id) is not bytes or len(message.raw_id) != 16:
        raise Invalid("raw_id: an encrypted message needs the 16 bytes of its id")
    if type(message.encrypted) is not bool or type(message.encrypted_attributes) is not bytes:
        raise Invalid("encrypted: must be true or false, and encrypted_attributes bytes")
    if len(message.encrypted_attributes) > 2 * limits.ATTRIBUTES_BYTES_MAX:
        raise TooLarge(f"attributes: more than {limits.ATTRIBUTES_BYTES_MAX} bytes together")


def check_poll(max: int, wait_ms: int, lease_ms: int | None) -> None:
    """Raise Invalid if an argument of a poll is out of range."""
    check_field("max", max, limits.BatchSize)
    check_field("wait_ms", wait_ms, limits.WaitMs)
    if lease_ms is not None:
        check_field("lease_ms", lease_ms, limits.LeaseMs)


def receipts_by_queue(deliveries: Iterable[Delivery]) -> dict[tuple[str, str], list[str]]:
    """Return the receipts of deliveries by tenant and queue."""
    receipts: dict[tuple[str, str], list[str]] = {}
    for one in deliveries:
        receipts.setdefault((one.tenant, one.queue), []).append(one.receipt)
    return receipts


def is_plain(message: object) -> TypeGuard[NewMessage]:
    """Return whether a message is just a body within the limits, as most are. Then it needs no further check."""
    return (
        type(message) is NewMessage
        and type(message.body) is bytes
        and len(message.body) <= limits.BODY_BYTES_MAX
        and message.encrypted is (message.raw_id is not None)
        and not message.encrypted_attributes
        and type(message.priority) is int
        and message.priority in limits.PRIORITIES
        and message.delay_ms == 0
        and type(message.delay_ms) is int
        and message.ttl_ms is None
        and message.key is None
        and message.group is None
        and message.max_attempts is None
        and type(message.attributes) is dict
        and not message.attributes
    )


def _check_attributes(attributes: object) -> None:
    if not isinstance(attributes, dict) or len(attributes) > limits.ATTRIBUTES_MAX:
        raise too_many_attributes()
    size = 0
    for name, value in attributes.items():
        check_field("attributes: name", name, AttributeName)
        if type(value) is not str:
            raise Invalid(f"attributes: the value of {name!r} must be text, not {type(value).__name__}")
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as error:
            raise Invalid(f"attributes: the value of {name!r} is not valid Unicode text") from error
    if size > limits.ATTRIBUTES_BYTES_MAX:
        raise TooLarge(f"attributes: {size} bytes together, the limit is {limits.ATTRIBUTES_BYTES_MAX}")


def check_result(result: Result) -> None:
    """Raise Invalid if a completed result has no value, a failed one no error, or either is malformed or too large."""
    if type(result) is not Result:
        raise Invalid(f"results: each must be a Result or None, not {type(result).__name__}")
    status: object = result.status
    if type(status) is not str or status not in ("completed", "failed"):
        raise Invalid("result: status must be 'completed' or 'failed'")
    if result.value is not None:
        if type(result.value) is not bytes:
            raise Invalid(f"result: the value must be bytes, not {type(result.value).__name__}")
        if len(result.value) > limits.RESULT_BYTES_MAX + (8 * limits.REASON_CHARS_MAX if result.encrypted else 0):
            raise TooLarge(f"result: {len(result.value)} bytes, the limit is {limits.RESULT_BYTES_MAX}")
    if result.error is not None:
        check_field("result: error", result.error, Reason)
    if result.encrypted:
        return  # its content was checked before encryption
    if result.status == "completed" and result.value is None:
        raise Invalid("result: a completed result needs a value (bytes); to report none, ack without a result")
    if result.status == "failed" and result.error is None:
        raise Invalid("result: a failed result needs an error that says why")


def check_caller(caller: Caller) -> None:
    """Raise Invalid if a field of the caller cannot be journaled."""
    if type(caller) is not Caller:
        raise Invalid(f"caller: must be a Caller, not {type(caller).__name__}")
    values = caller.principal, caller.remote, caller.request_id, caller.user_agent
    for value in values:
        if type(value) is not str or len(value) > limits.REASON_CHARS_MAX:
            field = Caller.__struct_fields__[values.index(value)]
            raise Invalid(f"caller: {field} must be text of at most {limits.REASON_CHARS_MAX} characters")


def check_batch(field: str, items: object) -> None:
    """Raise Invalid unless ``items`` is a list or tuple of 1 to BATCH_MESSAGES_MAX."""
    if not isinstance(items, list | tuple):
        raise Invalid(f"{field}: must be a list, not {type(items).__name__}")
    if not 1 <= len(items) <= limits.BATCH_MESSAGES_MAX:
        raise wrong_number(field, len(items))


def wrong_number(field: str, count: int) -> Invalid:
    """Return the error for a batch that is empty or too long."""
    return Invalid(f"{field}: {count} in one batch, allowed are 1 to {limits.BATCH_MESSAGES_MAX}")


def too_many_attributes() -> Invalid:
    """Return the error for a message with too many attributes."""
    return Invalid(f"attributes: must be a mapping of at most {limits.ATTRIBUTES_MAX} names to texts")
