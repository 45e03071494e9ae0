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

ENDS_S = 240
"""Before the timeout of a test, so that a failure has the output."""

STOPS_S = 20
"""How long a terminated run may take to stop its servers."""


def test_faults_in_a_cluster_break_no_promise(tmp_path: Path) -> None:
    """One fault of each quick kind. The long run has all kinds, many times."""
    command = [sys.executable, "-m", MODULE, "--once", "--seed", "16", "--shards", "8", "--keep", str(tmp_path)]
    for fault in FAULTS:
        command += ["--only", fault]
    output = tmp_path / "output"
    with output.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            code = process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it stops its servers, and the traceback says where it was
            try:
                code = process.wait(STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    logs = [f"{path.name}:\n{path.read_text()[-4_000:]}" for path in sorted(tmp_path.glob("server-*.log"))]
    assert code == 0, "\n".join([output.read_text(), *logs])
    assert "all promises were kept" in output.read_text()
