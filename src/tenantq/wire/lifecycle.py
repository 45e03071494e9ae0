"""Requests with a reason: delete, suspend, hold."""

from typing import Annotated, Any, ClassVar, Literal

from tenantq.domain.limits import REASON_CHARS_MAX, REASON_CHARS_MIN, OptionalReason
from tenantq.domain.validation import documented, text
from tenantq.wire.base_types import Wire, WireReply

_FullReason = Annotated[
    str, documented(Annotated[str, text(REASON_CHARS_MAX, chars_min=REASON_CHARS_MIN)])
]  # the service checks it, with an error that explains why


class DestroyRequest(Wire, frozen=True, kw_only=True):
    """Confirm a purge or deletion with the name, and give a reason of ten characters or more."""

    json_rules: ClassVar[Any] = {"required": ["confirm", "reason"]}
    confirm: str = ""
    reason: _FullReason = ""
    force: bool = False  # of queues: do not wait for leases to settle


class SuspendRequest(Wire, frozen=True, kw_only=True):
    """Suspend a tenant or queue. The reason goes into the journal."""

    reason: OptionalReason = ""
    mode: Literal["settle", "freeze", "fill"] = "settle"


class ReasonRequest(Wire, frozen=True, kw_only=True):
    """A reason of ten characters or more. It goes into the journal."""

    json_rules: ClassVar[Any] = {"required": ["reason"]}
    reason: _FullReason = ""


class SuspensionItem(WireReply, frozen=True, kw_only=True):
    """A suspension: its mode and reason, by whom, and since when."""

    mode: Literal["settle", "freeze", "fill"]
    reason: str = ""
    by: str
    at: int
