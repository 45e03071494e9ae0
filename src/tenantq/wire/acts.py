"""Acts that want a reason, on the wire: to destroy, to suspend, to hold."""

from __future__ import annotations

from typing import Literal

from tenantq.wire.kinds import Wire, WireReply


class DestroyRequest(Wire, frozen=True, kw_only=True):
    """Empty or delete something: its name again, and a reason of ten characters or more."""

    confirm: str = ""
    reason: str = ""
    force: bool = False  # queues: do not wait for leases to settle


class SuspendRequest(Wire, frozen=True, kw_only=True):
    """Stop taking and handing out work; the reason goes into the journal."""

    reason: str = ""
    mode: Literal["settle", "freeze", "fill"] = "settle"


class ReasonRequest(Wire, frozen=True, kw_only=True):
    """Why something is done, in ten characters or more; it goes into the journal."""

    reason: str = ""


class SuspensionItem(WireReply, frozen=True, kw_only=True):
    """Why no work is taken or handed out, by whom, since when, and what goes on all the same."""

    mode: Literal["settle", "freeze", "fill"]
    reason: str = ""
    by: str
    at: int
