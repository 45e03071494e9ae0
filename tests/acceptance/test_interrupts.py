"""Ctrl-C on a terminal reaches a whole process group, at any time: the command stops cleanly, and no child complains."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import COMMAND, SECONDS_MAX, call, environment, read_until
from tests.processes import alive, descendants, kill_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def _start_on_terminal(*arguments: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command as the leader of a process group, as a shell does."""
    process = subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, env=environment(**variables),
    )  # fmt: skip
    try:
        yield process
    finally:
        kill_tree(process.pid)
        process.communicate()


def _await_child(process: subprocess.Popen[str], has_arrived: Callable[[int], bool]) -> set[int]:
    """Wait until a child process has reached a point, and return all children."""
    while process.poll() is None:
        found = descendants(process.pid)
        if any(has_arrived(child) for child in found):
            return found
    raise AssertionError(f"it ended before: {process.communicate()}")


def _has_loaded(library: str) -> Callable[[int], bool]:
    def has_loaded(child: int) -> bool:
        with contextlib.suppress(OSError):
            return library in Path(f"/proc/{child}/maps").read_text()
        return False

    return has_loaded


def _interrupt(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Press Ctrl-C, and return the exit code and the output since."""
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, out, err


@pytest.mark.parametrize("is_reached", [_has_loaded("libpython"), _has_loaded("libarrow")])
def test_interrupt_while_the_segment_encoder_starts_is_a_clean_stop(
    tmp_path: Path, is_reached: Callable[[int], bool]
) -> None:
    """The export finishes, every lease is released, and only the last line is printed."""
    every = {"TENANTQ_EXPORT__EVERY_MS": "1500"}
    with _start_on_terminal("demo", "--data-dir", tmp_path, "--http", "127.0.0.1:0", **every) as process:
        read_until(process, "1s ")
        children = _await_child(process, is_reached)
        code, out, err = _interrupt(process)
    assert (code, err) == (0, "")
    assert re.search(r"^stopped: \d+ ready messages and 0 leases remain", out, re.MULTILINE)
    assert not alive(children)
    assert call("doctor", "--data-dir", tmp_path).code == 0


@pytest.mark.parametrize("is_reached", [_has_loaded("libpython"), _has_loaded("rocksdict")])
def test_interrupt_while_shards_start_is_a_clean_stop(tmp_path: Path, is_reached: Callable[[int], bool]) -> None:
    """The supervisor stops the processes it started, and the data directory is usable."""
    with _start_on_terminal("serve", "--shards", 2, "--data-dir", tmp_path, "--http", "127.0.0.1:0") as process:
        children = _await_child(process, is_reached)
        code, _, err = _interrupt(process)
    assert code == 0, err
    assert "Traceback" not in err
    assert not alive(children)
    assert call("doctor", "--data-dir", tmp_path).code in {0, 6}  # 6: no shard had created its store yet


@pytest.mark.parametrize("is_reached", [_has_loaded("libpython"), _has_loaded("rocksdict")])
def test_interrupt_while_a_local_bench_starts_removes_its_server(
    tmp_path: Path, is_reached: Callable[[int], bool]
) -> None:
    """The exit code says that it was interrupted, and no process or file is left."""
    with _start_on_terminal("bench", "--local", "--case", "add", "--data-dir", tmp_path) as process:
        children = _await_child(process, is_reached)
        code, _, err = _interrupt(process)
    assert code == 128 + signal.SIGINT, err
    assert "Traceback" not in err
    assert not alive(children)
    assert list(tmp_path.iterdir()) == []
