"""The real command, run as a process or called in this process, which is faster; and real servers to talk to."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

import msgspec

from tenantq.cli.command_line import run as run_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMAND = str(Path(sys.executable).parent / "tenantq")
SECONDS_MAX = 60
ADMIN_TOKEN = "administrator-of-a-test"  # noqa: S105  # valid for this test only


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without the variables of tenantq, plus ``variables``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TENANTQ_")}
    own.pop("NO_COLOR", None)
    # Servers of parallel tests would collide on the default Cap'n Proto port, so tests must ask for it.
    return {**own, "PYTHONUNBUFFERED": "1", "TENANTQ_RPC": "off", **variables}


def run(*arguments: object, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command until it exits."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        input=stdin,
        timeout=SECONDS_MAX,
        check=False,
        env=environment(**variables),
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Done(msgspec.Struct, frozen=True):
    """The outcome of a command that was called in this process."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output, parsed as one JSON document."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """The output, parsed as one JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines()]


def call(*arguments: object, stdin: bytes = b"", **variables: str) -> Done:
    """Run a command in this process: the same entry point, without starting an interpreter."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        mock.patch.dict(os.environ, environment(**variables), clear=True),
    ):
        umask = os.umask(0o022)
        try:
            code = run_here([str(argument) for argument in arguments])
        finally:
            os.umask(umask)  # a server sets its own handlers
        out.flush()
        err.flush()
    return Done(code, _written(out), _written(err))


def _written(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


class Served:
    """A server process, and commands that talk to it, by default as its administrator."""

    def __init__(self, process: subprocess.Popen[str], url: str, output: str, config: Path) -> None:
        self.process = process
        self.url = url
        self.output = output  # its output up to the line that says it is ready
        self._variables = {"TENANTQ_URL": url, "TENANTQ_TOKEN": ADMIN_TOKEN, "XDG_CONFIG_HOME": str(config)}

    def call(self, *arguments: object, stdin: bytes = b"", **variables: str) -> Done:
        """Call a command in this process."""
        return call(*arguments, stdin=stdin, **{**self._variables, **variables})

    def ok(self, *arguments: object, stdin: bytes = b"", **variables: str) -> Done:
        """Call a command that must succeed with an empty stderr."""
        done = self.call(*arguments, stdin=stdin, **variables)
        assert (done.code, done.err) == (0, ""), (arguments, done)
        return done

    def run(self, *arguments: object, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a process."""
        return run(*arguments, stdin=stdin, **{**self._variables, **variables})

    def run_on_terminal(
        self, *arguments: object, typed: Sequence[str] = (), stdin: IO[bytes] | None = None, **variables: str
    ) -> tuple[int, str]:
        """Run a command on a terminal of 100 columns, answer each prompt, and return the exit code and the output."""
        parent, child = pty.openpty()
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            stdin=stdin or child, stdout=child, stderr=child, start_new_session=True,
            env=self.environment(TERM="xterm-256color", COLUMNS="100", **variables),
        )  # fmt: skip
        os.close(child)
        shown, left = b"", list(typed)
        try:
            while chunk := os.read(parent, 65_536):
                shown += chunk
                if left and chunk.rstrip().endswith((b":", b".")):
                    os.write(parent, left.pop(0).encode())
        except OSError:
            pass  # the other end is closed
        os.close(parent)
        return process.wait(timeout=SECONDS_MAX), shown.decode().replace("\r\n", "\n")

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a command that talks to this server."""
        return environment(**{**self._variables, **variables})


@contextmanager
def serving(data_dir: Path, *options: object, **variables: str) -> Iterator[Served]:
    """Start a server on a free port, yield it once it is ready, and always stop it."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--data-dir", str(data_dir), "--http", "127.0.0.1:0", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**{"TENANTQ_ADMIN_TOKEN": ADMIN_TOKEN, **variables}),
    )
    try:
        output = read_until(process, "ready on ")
        url = output.splitlines()[-1].removeprefix("ready on ")
        yield Served(process, url, output, data_dir.parent / "config")
    finally:
        process.kill()
        process.communicate()


@contextmanager
def running_demo(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a demo, yield it once traffic flows, and always stop it."""
    process = subprocess.Popen(
        [COMMAND, "demo", "--data-dir", str(data_dir), "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        read_until(process, "1s ")
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], start: str) -> str:
    """Return what a process printed up to and including a line that starts with ``start``."""
    assert process.stdout is not None
    output = ""
    late = threading.Timer(SECONDS_MAX, process.kill)
    late.start()
    try:
        for line in process.stdout:
            output += line
            if line.startswith(start):
                return output
    finally:
        late.cancel()
    raise AssertionError(f"no line {start!r}: {output!r} {process.communicate()[1]!r}")
