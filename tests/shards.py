"""Small words for tests of a shard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenantq.message import NewMessage

if TYPE_CHECKING:
    from tenantq.clock import ManualClock
    from tenantq.engine.shard import Shard

T, Q = "default", "work"


def message(body: bytes | str = b"body", **fields: object) -> NewMessage:
    """Return a new message."""
    return NewMessage(body=body.encode() if isinstance(body, str) else body, **fields)  # type: ignore[arg-type]


async def settled(shard: Shard) -> None:
    """Return when the shard has nothing left to do at this moment of its clock."""
    while True:
        await asyncio.sleep(0)
        await shard._idle.wait()
        if not shard._step_scheduled and not shard.core.lines:
            return


async def pass_time(shard: Shard, clock: ManualClock, ms: int) -> None:
    """Let time pass and everything happen that is due by then."""
    await settled(shard)
    clock.advance(ms)
    await settled(shard)
