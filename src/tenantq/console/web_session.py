"""A console in a browser: a process that ``web_server`` starts, with server and credential in its environment."""

import asyncio
import os

from tenantq.client import NO_RETRIES, AsyncClient, Tls
from tenantq.console.app import ConsoleApp


async def run() -> None:
    """Run the console until the browser leaves."""
    given = {
        name: os.environ.pop(f"TENANTQ_{name}", None) for name in ("URL", "TOKEN", "TENANT", "CA_FILE", "REFRESH_MS")
    }
    url, refresh_ms = given["URL"] or "", int(given["REFRESH_MS"] or 0)
    async with AsyncClient(url, given["TOKEN"], retries=NO_RETRIES, tls=Tls(ca_file=given["CA_FILE"])) as client:
        await ConsoleApp(client, url=url, tenant=given["TENANT"], refresh_ms=refresh_ms).run_async()


if __name__ == "__main__":
    asyncio.run(run())
