"""The process of a shard, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import uvloop

from tenantq.cluster.supervision.shard_process import ShardProcess
from tests.unit.client.doubles import until

_HANGS_UP = "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(600)"


def test_messages_to_a_process_that_has_hung_up_are_dropped() -> None:
    """A killed process closes its end before it is reaped. The supervisor can still stop it, on the loop of servers."""

    async def stop_it() -> int:
        process, startup = ShardProcess(3, [], None), SimpleNamespace(descriptors=())
        given: Any = startup
        await process.spawn([sys.executable, "-c", _HANGS_UP], given)
        try:
            await until(lambda: process.has_hung_up)
            writer = process._writer
            assert writer is not None
            process.send(b"stop\n")
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            await asyncio.sleep(0)  # then the handle is closed, too
            assert process.is_alive
            process.send(b"stop\n")
        finally:
            process.kill()
        return await process.ended()

    assert uvloop.run(stop_it()) == -9
