"""What a move writes down: the reasons for which its tenant is suspended on both servers, and what they say later."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from tenantq.wire import SuspensionItem

_OUT: Final = re.compile(r"(moving|moved) to ([0-9a-f]*)/([a-z0-9-]+) at (\S+)")
_IN: Final = re.compile(r"being moved here from ([0-9a-f]*)/([a-z0-9-]+) at (\S+)( \(made for it\))?")


class Outgoing(msgspec.Struct, frozen=True):
    """What the source remembers."""

    state: Literal["moving", "moved"]
    server: str  # identity of the target
    tenant: str  # its name there
    url: str = msgspec.field(default="")

    def text(self) -> str:
        """Return it as a reason."""
        return f"{self.state} to {self.server}/{self.tenant} at {self.url}"

    def leads_to(self, server: str, tenant: str) -> bool:
        """Tell whether it is about this tenant of this server, however that was reached."""
        return (self.server, self.tenant) == (server, tenant)


class Incoming(msgspec.Struct, frozen=True):
    """What the target remembers."""

    server: str  # identity of the source
    tenant: str  # its name there
    url: str = ""
    made: bool = False  # the move made what it fills, so undoing it deletes that again

    def text(self) -> str:
        """Return it as a reason."""
        return f"being moved here from {self.server}/{self.tenant} at {self.url}{' (made for it)' if self.made else ''}"

    def comes_from(self, server: str, tenant: str) -> bool:
        """Tell whether it is about this tenant of this server."""
        return (self.server, self.tenant) == (server, tenant)


def outgoing(suspension: SuspensionItem | None) -> Outgoing | None:
    """Return what a source's suspension remembers of a move, if it is one's."""
    found = _OUT.fullmatch(suspension.reason) if suspension is not None else None
    if found is None:
        return None
    return Outgoing("moved" if found[1] == "moved" else "moving", found[2], found[3], found[4])


def incoming(suspension: SuspensionItem | None) -> Incoming | None:
    """Return what a target's suspension remembers of a move, if it is one's."""
    found = _IN.fullmatch(suspension.reason) if suspension is not None and suspension.mode == "fill" else None
    return Incoming(found[1], found[2], found[3], made=found[4] is not None) if found is not None else None
