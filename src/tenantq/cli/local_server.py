"""A temporary server process on loopback, with its data in a temporary directory."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final, Self

from tenantq.errors import Unavailable

_START_S: Final = 60
_READY: Final = b"ready on "
_PREFIX: Final = "TENANTQ_"
_ADMIN_TOKEN: Final = "TENANTQ_ADMIN_TOKEN"  # noqa: S105  # the variable's name, as in tenantq.settings, which would load the server


class LocalServer:
    """Runs a server while a block runs. ``url`` and the administrator's ``token`` are valid inside the block.

    The server ignores the settings in the environment. Otherwise it could export its journal to the target of another server.
    """

    url: str

    def __init__(self, directory: Path, durability: str) -> None:
        """Prepare a server with its data in a new directory inside ``directory``."""
        self.token = secrets.token_hex(24)
        self._directory = directory
        self._durability = durability
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            self._home = tempfile.TemporaryDirectory(
                prefix="tenantq-bench-", dir=self._directory, ignore_cleanup_errors=True
            )
        except OSError as error:
            why = f"{self._directory}: {error.strerror}; choose another directory with --data-dir"
            raise Unavailable(why) from error
        try:
            self.url = await self._start(Path(self._home.name))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start(self, home: Path) -> str:
        own = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
        log = home / "server.log"
        with log.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tenantq", "serve", "--data-dir", str(home / "data"), "--http", "127.0.0.1:0", "--rpc", "off",
                "--durability", self._durability, "--log-level", "warning",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
                env={**own, _ADMIN_TOKEN: self.token},
                start_new_session=True,  # signals from the terminal are for the command
            )  # fmt: skip
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                async for line in self._process.stdout:
                    if line.startswith(_READY):
                        return line.removeprefix(_READY).decode().strip()
        except TimeoutError as error:
            raise Unavailable(f"the server was not ready within {_START_S} s") from error
        said = log.read_text(errors="replace").strip().splitlines()
        raise Unavailable(f"the server did not start: {said[-1] if said else 'no output'}")

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()  # its data is deleted, so a clean stop is not needed
            await self._process.wait()
            self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001  # asyncio leaves the pipe to the garbage collector
        self._remove()

    def kill(self) -> None:
        """Kill the server and remove its data before this process ends."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.kill(self._process.pid, signal.SIGKILL)
                os.waitpid(self._process.pid, 0)  # it has stopped writing then
        self._remove()

    def _remove(self) -> None:
        if self._home is not None:
            self._home.cleanup()


def file_system(path: Path) -> str | None:
    """Return the type of a path's file system, such as ext4 or tmpfs, or None if unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place, best, kind = path.resolve(), -1, None
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind
