"""KJ's event loop, which pycapnp needs: one per event loop of Python, shared by all its users."""

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
    """Run KJ's loop inside the block. A loop that already runs is used, and must run longer."""
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
