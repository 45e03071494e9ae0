"""KJ's event loop, which pycapnp needs: one for each event loop of Python, shared by whoever is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import capnp


class _Shared:
    def __init__(self, running: Any) -> None:
        self.running = running
        self.users = 0


_shared: dict[int, _Shared] = {}  # by identity of the event loop, which outlives its entry


@asynccontextmanager
async def kj_loop() -> AsyncIterator[None]:
    """Have KJ's loop run inside the block. One that somebody else runs is used, and has to last longer."""
    loop = asyncio.get_running_loop()
    shared = _shared.get(id(loop))
    if shared is None:
        if hasattr(loop, "_kj_loop"):
            yield
            return
        shared = _Shared(capnp.kj_loop())
        await shared.running.__aenter__()
        _shared[id(loop)] = shared
    shared.users += 1
    try:
        yield
    finally:
        shared.users -= 1
        if not shared.users:
            del _shared[id(loop)]
            await shared.running.__aexit__(None, None, None)
