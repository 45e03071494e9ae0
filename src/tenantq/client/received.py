"""A message under lease, as both faces of the client show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from tenantq.client.bodies import UNSET, Unset, from_json, from_wire
from tenantq.domain import limits

if TYPE_CHECKING:
    from tenantq.client.queue_calls import Leased

T = TypeVar("T")

REASON_CHARS_MAX: Final = limits.REASON_CHARS_MAX


class Held:
    """What is known of a lease, shared by the two faces of its message."""

    __slots__ = ("body", "item", "lease_ms", "lease_until", "lost", "result", "settled", "sure_until_ms")

    def __init__(self, leased: Leased) -> None:
        self.item = leased.item
        self.lease_ms = leased.lease_ms
        self.sure_until_ms = leased.sure_until_ms
        self.lease_until = leased.item.lease_until
        self.body: bytes | None = None
        self.result: Any | Unset = UNSET
        self.settled = False
        self.lost = False


class Received:
    """What there is to know of a message under lease."""

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        self._held = held

    def __repr__(self) -> str:
        """Show which one it is, without its body."""
        item = self._held.item
        return f"<{type(self).__name__} {item.id} of {item.tenant}/{item.queue}, attempt {item.attempt}>"

    @property
    def result(self) -> Any | Unset:
        """What leaving the ``with`` block reports, once it was set; UNSET before."""
        return self._held.result

    @result.setter
    def result(self, value: Any) -> None:
        self._held.result = value

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked or released through this object."""
        return self._held.settled

    @property
    def lost(self) -> bool:
        """Whether the heartbeat has found that the lease has ended."""
        return self._held.lost

    @property
    def lease_until(self) -> int:
        """When the lease ends, on the server's wall clock, as last heard of."""
        return self._held.lease_until

    @property
    def id(self) -> str:
        """The message's id."""
        return self._held.item.id

    @property
    def receipt(self) -> str:
        """What stands for this lease."""
        return self._held.item.receipt

    @property
    def tenant(self) -> str:
        """The tenant it belongs to."""
        return self._held.item.tenant

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._held.item.queue

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._held.item.attempt

    @property
    def priority(self) -> int:
        """0 to 9, 9 is delivered first."""
        return self._held.item.priority

    @property
    def attributes(self) -> dict[str, str]:
        """What the producer wrote beside the body."""
        return self._held.item.attributes

    @property
    def group(self) -> str | None:
        """The group whose order it keeps, if any."""
        return self._held.item.group

    @property
    def added_at(self) -> int:
        """When it was added, on the server's wall clock."""
        return self._held.item.added_at

    @property
    def lease_ms(self) -> int | None:
        """How long its lease is from each heartbeat on, where that is known."""
        return self._held.lease_ms

    @property
    def body(self) -> bytes:
        """The body."""
        held = self._held
        if held.body is None:
            held.body = from_wire(held.item.body, held.item.body_base64) or b""
        return held.body

    @property
    def text(self) -> str:
        """The body as text; raises UnicodeDecodeError where it is none."""
        text = self._held.item.body
        return text if text is not None else self.body.decode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    @overload
    def json(self, type: Any) -> Any: ...
    def json(self, type: Any = Any) -> Any:
        """Return the body as JSON, checked against ``type``; raises Invalid where it does not fit."""
        return from_json(self.body, type)


def reason_of(error: BaseException) -> str:
    """Return an exception's name and text as the reason of a nack: short enough, and text that any store takes."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  # an exception that cannot even say what it is
        said = ""
    return bounded_reason(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def bounded_reason(text: str) -> str:
    """Return ``text`` as a reason the server takes: at most REASON_CHARS_MAX characters, no NUL, no lone surrogates."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean if len(clean) <= REASON_CHARS_MAX else f"{clean[: REASON_CHARS_MAX - 1]}…"
