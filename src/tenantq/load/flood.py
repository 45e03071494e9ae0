"""A flood of single adds, as fast as they are answered, from a process of its own: what it costs to send must not slow down who measures.

The process reads a ``FloodOrder`` from its first line of input, answers every further line with its ``FloodFigures`` so far, and ends
with its input: it never outlives who started it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from typing import TYPE_CHECKING, Final, Self

import msgspec

from tenantq.client import AsyncClient, Tls
from tenantq.errors import TenantqError, Unavailable
from tenantq.load.cases import adding
from tenantq.load.drive import drive_seconds
from tenantq.load.stopwatch import SystemStopwatch
from tenantq.load.tally import Ended, Tally

if TYPE_CHECKING:
    from types import TracebackType

_END_S: Final = 10


class FloodOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to flood, and how."""

    url: str
    token: str
    queue: str
    connections: int
    size: int
    messages_max: int
    timeout_ms: int
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def __repr__(self) -> str:
        """Show where it goes, and never the token."""
        return f"<flood of {self.url}>"


class FloodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How far a flood is, since it began."""

    at_s: float  # on the flood's own stopwatch
    calls: int
    messages: int
    refusals: dict[str, int]
    errors: dict[str, int]
    texts: dict[str, str]
    ended: Ended
    failure: str | None = None


class Flood:
    """A flood for the time of a block."""

    def __init__(self, order: FloodOrder) -> None:
        self._order = order

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenantq.load.flood",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # what is typed at the terminal is for who started it
        )  # fmt: skip
        try:
            await self._asked(msgspec.json.encode(self._order))
        except BaseException:
            await self._end()
            raise
        return self

    async def figures(self) -> FloodFigures:
        """Return how far it is; raises Unavailable where it has ended."""
        return msgspec.json.decode(await self._asked(b"how far"), type=FloodFigures)

    async def _asked(self, line: bytes) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(line + b"\n")
            await stdin.drain()
            answer = await stdout.readline()
        except OSError:
            answer = b""
        if not answer:
            raise Unavailable("the process that floods has ended by itself")
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


# ---- in the process ----


async def _flood() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    order = msgspec.json.decode(await lines.readline(), type=FloodOrder)
    tally, stop = Tally(), asyncio.Event()
    tls = Tls(ca_file=order.ca_file, certificate_file=order.certificate_file, key_file=order.key_file)
    async with AsyncClient(
        order.url,
        order.token,
        timeout_ms=order.timeout_ms,
        retries=0,
        connections=order.connections,
        coalesce=False,
        tls=tls,
    ) as client:
        queue = client.queue(order.queue)
        flooding = asyncio.create_task(
            drive_seconds(
                adding(lambda _: queue, "x" * order.size),
                tally,
                loops=order.connections,
                warm_up_s=0.0,
                seconds=math.inf,
                messages_max=order.messages_max,
                stop=stop,
            )
        )
        _say(tally)
        while await lines.readline():
            _say(tally)
        stop.set()
        await flooding


def _say(tally: Tally) -> None:
    failure: TenantqError | None = tally.failure
    figures = FloodFigures(
        at_s=SystemStopwatch.now(),
        calls=tally.begun,
        messages=tally.messages_total,
        refusals=dict(tally.refusals),
        errors=dict(tally.errors),
        texts=tally.texts,
        ended=tally.ended,
        failure=None if failure is None else failure.message,
    )
    sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_flood())
