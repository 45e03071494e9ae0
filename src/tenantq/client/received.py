"""A message under lease, as the asynchronous and the blocking client show it."""

from operator import attrgetter
from typing import Any, Final

from tenantq.client.bodies import JsonContent, Unset, from_wire
from tenantq.client.queue_calls import LeaseState
from tenantq.domain import limits

REASON_CHARS_MAX: Final = limits.REASON_CHARS_MAX


def _read(path: str, text: str) -> Any:
    """Return a read-only property of the lease or of its delivered item."""
    return property(attrgetter(f"_lease.{path}"), doc=text)


class Received(JsonContent):
    """The properties of a message under lease."""

    __slots__ = ("_lease",)

    def __init__(self, lease_state: LeaseState) -> None:
        self._lease = lease_state

    def __repr__(self) -> str:
        """Show the message without its body."""
        item = self._lease.item
        return f"<{type(self).__name__} {item.id} of {item.tenant}/{item.queue}, attempt {item.attempt}>"

    @property
    def result(self) -> Any | Unset:
        """The result that the end of the ``with`` block reports; UNSET: none."""
        return self._lease.result

    @result.setter
    def result(self, value: Any) -> None:
        self._lease.result = value

    settled: bool = _read("settled", "Whether it was acked, nacked or released through this object.")
    lost: bool = _read("lost", "Whether a heartbeat found that the lease has ended.")
    lease_until: int = _read("lease_until", "When the lease ends, on the server's wall clock, as last reported.")
    lease_ms: int | None = _read("lease_ms", "The length of the lease from each heartbeat on; None: unknown.")
    id: str = _read("item.id", "The message's id.")
    receipt: str = _read("item.receipt", "The receipt of this lease.")
    tenant: str = _read("item.tenant", "The message's tenant.")
    queue: str = _read("item.queue", "The name of the message's queue.")
    attempt: int = _read("item.attempt", "The number of this delivery, from 1.")
    priority: int = _read("item.priority", "The priority, 0 to 9; 9 is delivered first.")
    attributes: dict[str, str] = _read("item.attributes", "The attributes set by the producer.")
    group: str | None = _read("item.group", "The message group, if any.")
    added_at: int = _read("item.added_at", "When the message was added, on the server's wall clock.")

    @property
    def body(self) -> bytes:
        """The body."""
        lease_state = self._lease
        if lease_state.body is None:
            lease_state.body = from_wire(lease_state.item.body, lease_state.item.body_base64) or b""
        return lease_state.body

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError if it is not UTF-8."""
        text = self._lease.item.body
        return text if text is not None else self.body.decode()

    def _content(self) -> bytes:
        return self.body


def reason_of(error: BaseException) -> str:
    """Return an exception's name and text as the reason of a nack, within the server's limits."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the exception's own __str__ failed
        text = ""
    return bounded_reason(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def bounded_reason(text: str) -> str:
    """Return ``text`` as the server accepts it: at most REASON_CHARS_MAX characters, no NUL, no lone surrogates."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean if len(clean) <= REASON_CHARS_MAX else f"{clean[: REASON_CHARS_MAX - 1]}…"
