"""Giving a move up before it is cut over: the source goes on, what was filled at the target goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.errors import Conflict
from tenantq.migration.filling import Filling
from tenantq.migration.notes import outgoing

if TYPE_CHECKING:
    from tenantq.migration.sides import Side


def let_go(source: Side) -> list[str]:
    """Let the source work again, where a move stopped it; return what was let go. The target need not be there for it.

    Raises Conflict where the move was cut over: two servers would go on with the same messages.
    """
    with source.calling():
        facts, queues = source.tenant.get(), source.queues()
        notes = [outgoing(facts.suspension), *(outgoing(one.suspension) for one in queues.values())]
        for note in notes:
            if note is not None and note.state == "moved":
                raise Conflict(
                    f"it was cut over: tenant {note.tenant} works at {note.url}; to have it here, move it back"
                )
        lifted = []
        if notes[0] is not None:
            source.tenant.resume()
            lifted.append(f"tenant {source.name}")
        for name, note in zip(queues, notes[1:], strict=True):
            if note is not None:
                source.queue(name).reopen()
                lifted.append(f"queue {name}")
    return lifted


def empty(source: Side, target: Side) -> list[str]:
    """Delete what a move from the source has filled at the target, and nothing else; return what was deleted."""
    return Filling(source, target, [], whole=True).empty()
