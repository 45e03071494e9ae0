"""The commands in docs/reference/http.md work as written."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from tenantq.server import Server

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "http.md").read_text()


@pytest.mark.asyncio(loop_factories=["uvloop"])  # slow, so one loop suffices
async def test_the_commands_of_the_guide_work(server: Server, tmp_path: Path) -> None:
    """They run in order on a fresh server, and none is refused."""
    script = tmp_path / "guide.sh"
    script.write_text("set -euo pipefail\n" + "\n".join(re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)))
    process = await asyncio.create_subprocess_exec(
        "bash",
        str(script),
        cwd=tmp_path,
        env={**os.environ, "TENANTQ_URL": f"http://127.0.0.1:{server.port}", "TENANTQ_TOKEN": ADMIN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert b"urn:tenantq:error" not in out
    assert b'"ok":false' not in out
