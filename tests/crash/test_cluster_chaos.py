"""A short run of ``make chaos-cluster``: faults in a whole cluster under load break no promise."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.crash.cluster_chaos import MODULE

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = (
    "server killed", "server paused", "server stopped", "two servers drained", "tenants move, server killed",
    "primary hands over", "clock jumps",
)  # fmt: skip


def test_faults_in_a_cluster_break_no_promise(tmp_path: Path) -> None:
    """One fault of each quick kind. The long run has all kinds, many times."""
    command = [sys.executable, "-m", MODULE, "--once", "--seed", "16", "--shards", "8", "--keep", str(tmp_path)]
    for fault in FAULTS:
        command += ["--only", fault]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all promises were kept" in done.stdout
