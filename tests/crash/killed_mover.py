"""``tenantq`` that is killed while it moves a tenant: ``python -m tests.crash.killed_mover STEP_FILE serve …``.

STEP_FILE names the step after which the process kills itself. The file is then deleted.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tenantq.cli.main import main
from tenantq.cluster.row_transfer import RowTransfer
from tenantq.cluster.tenant_directory import TenantPlacements

STEPS = ("fenced", "caught up", "switched")


def kill_after(step_file: Path) -> None:
    """Kill this process after the step in the file."""

    def passed(step: str) -> None:
        if step_file.exists() and step_file.read_text() == step:
            step_file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    transfer: Any = RowTransfer
    placements: Any = TenantPlacements
    finish, replace = transfer.finish, placements.replace

    async def finish_and_pass(self: Any, *arguments: Any) -> None:
        passed("fenced")
        await finish(self, *arguments)
        passed("caught up")

    async def replace_and_pass(self: Any, name: str, row: Any) -> Any:
        before = self.row(name)
        replaced = await replace(self, name, row)
        if before is not None and before.shard != row.shard:
            passed("switched")
        return replaced

    transfer.finish, placements.replace = finish_and_pass, replace_and_pass


if __name__ == "__main__":
    kill_after(Path(sys.argv[1]))
    sys.argv[1:2] = []
    main()
