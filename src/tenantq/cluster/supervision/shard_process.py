"""The process of one shard, as its supervisor sees it."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections import deque
from collections.abc import Sequence

import msgspec

from tenantq.cluster.supervision.messages import LENGTH_BYTES, ShardStartup, ShardStatus

log = logging.getLogger("tenantq.shards")


class ShardProcess:
    """The process of one shard, as its supervisor sees it, and the sockets that outlive it."""

    def __init__(self, number: int, sockets: list[socket.socket], peers: socket.socket | None) -> None:
        self.number = number
        self.http = sockets
        self.rpc: list[socket.socket] = []
        self.peers = peers
        self.process: asyncio.subprocess.Process | None = None
        self.opened = self.ready = self.drained = asyncio.Event()
        self.has_hung_up = False  # it ends or has ended
        self.has_startup = False
        self.was_heard = False  # since the supervisor checked last
        self.status = ShardStatus(state="starting")  # then ready or failed
        self.deaths: deque[int] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def spawn(self, command: Sequence[str], startup: ShardStartup) -> None:
        """Start the process. It waits for its startup message."""
        self.opened, self.ready, self.drained = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.status, self.has_hung_up, self.has_startup = ShardStatus(state="starting"), False, False
        mine, its = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *command, str(its.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(its.fileno(), *startup.descriptors),
                start_new_session=True,  # signals from the terminal are for the supervisor
            )  # fmt: skip
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        reader, self._writer = await asyncio.open_connection(sock=mine)
        self._listening = asyncio.get_running_loop().create_task(self._listen(reader))

    def send_startup(self, startup: ShardStartup) -> None:
        """Send the startup message."""
        data = msgspec.json.encode(startup)
        self.has_startup = True
        self.send(len(data).to_bytes(LENGTH_BYTES) + data)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            async for line in reader:
                status = msgspec.json.decode(line, type=ShardStatus)
                self.was_heard = True
                if status.state in {"ready", "failed"}:
                    self.status = status
                    self.ready.set()
                elif status.state == "opened":
                    self.opened.set()
                elif status.state == "drained":
                    self.drained.set()
        except OSError as error:
            log.debug("the connection to process %d has ended: %s", self.number, error)
        except Exception:
            log.exception("process %d reports something that is not a status", self.number)
        finally:
            self.has_hung_up = True
            self.opened.set()
            self.ready.set()
            self.drained.set()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    def send(self, message: bytes) -> None:
        """Send a message if the process runs. One that was just killed has closed its end before it is reaped."""
        if self._writer is not None and self.is_alive and not self._writer.is_closing():
            self._writer.write(message)

    def kill(self) -> None:
        """Kill it, which is as safe as a crash."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Wait until it has ended, and return its exit code."""
        assert self.process is not None
        code = await self.process.wait()
        if self._listening is not None:
            await asyncio.wait([self._listening])
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return code
