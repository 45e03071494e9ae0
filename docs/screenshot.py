"""Takes the picture of the console, docs/images/console.svg, from a running ``tenantq demo``.

python -m docs.screenshot
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from textual.worker import WorkerFailed

from tenantq import AsyncClient
from tenantq.console.app import ConsoleApp
from tenantq.errors import TenantqError
from tenantq.runtime.clock import SystemClock

PICTURE: Final = Path(__file__).parent / "images" / "console.svg"
SIZE: Final = (140, 19)
SECONDS: Final = 20
URL: Final = "http://127.0.0.1:7070"


async def take(directory: Path, address: str) -> str:
    """Return the console as SVG after it has watched the demo for a while."""
    tokens = json.loads((directory / "demo-tokens.json").read_text())
    async with AsyncClient(f"http://{address}", token=tokens["admin"]) as client:
        await client.tenant("loud-corp").configure(quotas={"backlog": 6_000, "messages_per_day": 200_000})
        await client.tenant("acme").configure(quotas={"backlog": 5_000, "messages_per_day": 100_000})
        await _probe(address, tokens["tenants"]["acme"])
        app = ConsoleApp(client, url=URL, tenant="loud-corp", refresh_ms=1_000, clock=SystemClock())
        svg = ""
        with contextlib.suppress(WorkerFailed):  # a refresh may be under way when the console closes
            async with app.run_test(size=SIZE) as pilot:
                await asyncio.sleep(SECONDS)
                await pilot.pause()
                svg = app.export_screenshot(title="tenantq console", simplify=True)
        return svg


async def _probe(address: str, token: str) -> None:
    """Try to read another tenant's queues, so that the security panel has something to show."""
    async with AsyncClient(f"http://{address}", token=token) as client:
        for tenant in ("loud-corp", "globex"):
            for queue in ("mail", "mail-dlq", "invoices"):
                with contextlib.suppress(TenantqError):
                    await client.tenant(tenant).queue(queue).peek()


def without_network(svg: str) -> str:
    """Return the picture with the reader's own monospace font; Textual's would be loaded from elsewhere."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: ?[^;]+;", "font-family: ui-monospace, Menlo, Consolas, monospace;", svg)


def main() -> None:
    """Run the demo on a free port, take the picture, stop the demo."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            str(Path(sys.executable).with_name("tenantq")),
            "demo",
            "--data-dir",
            directory,
            "--http",
            "127.0.0.1:0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:  # noqa: S603  # our own command
            assert demo.stdout is not None
            address = ""
            while not address:
                found = re.search(r"http://(127\.0\.0\.1:\d+)", demo.stdout.readline())
                address = found[1] if found else ""
            try:
                svg = asyncio.run(take(Path(directory), address))
            finally:
                demo.terminate()
                demo.stdout.read()
    PICTURE.write_text(without_network(svg))


if __name__ == "__main__":
    main()
