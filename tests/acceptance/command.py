"""The real command, run as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = str(Path(sys.executable).parent / "tenantq")
SECONDS_MAX = 60


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, **variables},
    )


@contextmanager
def running_demo(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a demo, yield it once traffic flows, and make sure that it is gone afterwards."""
    process = subprocess.Popen(
        [COMMAND, "demo", "--data-dir", str(data_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("1s "):
                break
        yield process
    finally:
        process.kill()
        process.communicate()
