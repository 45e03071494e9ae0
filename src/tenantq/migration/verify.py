"""The verification of a move: both sides hold the same messages, queue by queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.migration.sides import Side

MARGIN_MS: Final = 60_000
"""What dies within this is left out on both sides: it may be gone on one of them already."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What is not alike in a queue."""

    queue: str
    what: str  # messages, bytes, results or ids
    source: int | str
    target: int | str


def differences(source: Side, target: Side, queues: Iterable[str]) -> list[Difference]:
    """Return everything in which the two sides differ; nothing: they hold the same."""
    with source.calling():
        now = source.now()
    with target.calling():
        now = max(now, target.now())
    found = []
    for name in queues:
        with source.calling():
            here = source.queue(name).digest(at=now + MARGIN_MS)
        with target.calling():
            there = target.queue(name).digest(at=now + MARGIN_MS)
        if here.digest == there.digest and here.messages == there.messages:
            continue
        unlike = [what for what in ("messages", "bytes", "results") if getattr(here, what) != getattr(there, what)]
        found += [
            Difference(queue=name, what=what, source=getattr(here, what), target=getattr(there, what))
            for what in unlike
        ]
        if not unlike:
            found.append(Difference(queue=name, what="ids", source=here.digest, target=there.digest))
    return found
