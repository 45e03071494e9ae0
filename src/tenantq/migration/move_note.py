"""The state of a migration, stored as the reason of the suspensions on both servers."""

import re
from typing import Final, Literal

import msgspec

from tenantq.wire.lifecycle import SuspensionItem

_OUT: Final = re.compile(r"(moving|moved) to ([0-9a-f]*)/([a-z0-9-]+) at (\S+)")
_IN: Final = re.compile(r"being moved here from ([0-9a-f]*)/([a-z0-9-]+) at (\S+)( \(made for it\))?")


class MoveNote(msgspec.Struct, frozen=True, kw_only=True):
    """What one server remembers of a move."""

    server: str  # identity of the other server
    tenant: str  # the tenant's name there
    url: str = ""

    def is_about(self, server: str, tenant: str) -> bool:
        """Return whether the other side is this tenant of this server, by whatever URL."""
        return (self.server, self.tenant) == (server, tenant)


class OutgoingMove(MoveNote, frozen=True, kw_only=True):
    """What the source remembers."""

    state: Literal["moving", "moved"]

    def text(self) -> str:
        """Return it as the reason of a suspension."""
        return f"{self.state} to {self.server}/{self.tenant} at {self.url}"


class IncomingMove(MoveNote, frozen=True, kw_only=True):
    """What the target remembers."""

    made: bool = False  # the move created what it fills, so undoing it deletes that again

    def text(self) -> str:
        """Return it as the reason of a suspension."""
        return f"being moved here from {self.server}/{self.tenant} at {self.url}{' (made for it)' if self.made else ''}"


def parse_outgoing(suspension: SuspensionItem | None) -> OutgoingMove | None:
    """Return the note in a source's suspension; None: it is not from a migration."""
    found = _OUT.fullmatch(suspension.reason) if suspension is not None else None
    if found is None:
        return None
    state: Literal["moving", "moved"] = "moved" if found[1] == "moved" else "moving"
    return OutgoingMove(state=state, server=found[2], tenant=found[3], url=found[4])


def parse_incoming(suspension: SuspensionItem | None) -> IncomingMove | None:
    """Return the note in a target's suspension; None: it is not from a migration."""
    found = _IN.fullmatch(suspension.reason) if suspension is not None and suspension.mode == "fill" else None
    if found is None:
        return None
    return IncomingMove(server=found[1], tenant=found[2], url=found[3], made=found[4] is not None)
