"""A flood of single adds from a separate process, so that sending does not slow down the measurement.

The process reads ``FloodSettings`` from the first line of its input, answers every further line with its ``FloodFigures``, and ends
with its input. It never outlives its parent.
"""

import asyncio
import math
import sys
from typing import Final, Self

import msgspec

from tenantq.errors import TenantqError, Unavailable
from tenantq.load.cases import make_add
from tenantq.load.closed_loop import drive_seconds
from tenantq.load.loaded_server import LoadedServer
from tenantq.load.measurement import EndReason, Measurement
from tenantq.load.stopwatch import SystemStopwatch

_END_S: Final = 10


class FloodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The target and strength of a flood."""

    server: LoadedServer
    queue: str
    connections: int
    size: int
    messages_max: int


class FloodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a flood since its start."""

    at_s: float  # on the flood's own stopwatch
    calls_total: int
    messages_total: int
    refusals: dict[str, int]
    errors: dict[str, int]
    texts: dict[str, str]
    ended: EndReason
    failure: str | None = None


class Flood:
    """Runs a flood while a block runs."""

    def __init__(self, settings: FloodSettings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenantq.load.flood",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # signals from the terminal are for the parent
        )  # fmt: skip
        try:
            await self._request(msgspec.json.encode(self._settings))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def figures(self) -> FloodFigures:
        """Return the figures so far. Raises Unavailable if the process has ended."""
        return msgspec.json.decode(await self._request(b"figures"), type=FloodFigures)

    async def _request(self, line: bytes) -> bytes:
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
            raise Unavailable("the flood process ended unexpectedly")
        return answer

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


# ---- the process ----


async def _flood() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    settings = msgspec.json.decode(await lines.readline(), type=FloodSettings)
    measurement, stop = Measurement(), asyncio.Event()
    async with settings.server.measuring(connections=settings.connections, coalesce=False) as client:
        queue = client.queue(settings.queue)
        flooding = asyncio.create_task(
            drive_seconds(
                make_add(lambda _: queue, "x" * settings.size),
                measurement,
                loops=settings.connections,
                warm_up_s=0.0,
                seconds=math.inf,
                messages_max=settings.messages_max,
                stop=stop,
            )
        )
        _write_figures(measurement)
        while await lines.readline():
            _write_figures(measurement)
        stop.set()
        await flooding


def _write_figures(measurement: Measurement) -> None:
    failure: TenantqError | None = measurement.failure
    figures = FloodFigures(
        at_s=SystemStopwatch.now(),
        calls_total=measurement.begun,
        messages_total=measurement.messages_total,
        ended=measurement.ended,
        failure=None if failure is None else failure.message,
        **measurement.failures(),
    )
    sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_flood())
