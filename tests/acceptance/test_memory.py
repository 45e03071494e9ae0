"""A server's memory stays within the sum in docs/reference/limits.md, whatever clients send or leave unread."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tenantq.client import Client
from tests.acceptance.command import ADMIN_TOKEN, serving

if TYPE_CHECKING:
    from tests.acceptance.command import Served

_MIB = 1 << 20
_STORE, _BUFFERED, _PROCESSED, _UNSENT = 16 * _MIB, 32 * _MIB, 16 * _MIB, 16 * _MIB
_CLIENTS = 32


def _peak_bytes(server: Served) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1_024


async def _send(server: Served, request: bytes, *, times: int) -> None:
    """Send a request repeatedly on its own connection, and read the status of each reply."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for _ in range(times):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        assert int(head.split()[1]) in {429, 503}
        if b"connection: close" in head:
            break
    writer.close()


def test_many_large_bodies_stay_within_the_memory_limit(tmp_path: Path) -> None:
    """Inflated and decoded at once, they would take half a gigabyte. Quotas refuse them in the end."""
    messages = {"messages": [{"body": "x" * _MIB}] * 6}
    body = gzip.compress(json.dumps(messages).encode())
    head = (
        f"POST /v1/tenants/loud/queues/q/messages HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    settings = {
        "TENANTQ_SHARD__MEMORY_BYTES": _STORE,
        "TENANTQ_LISTENER__BUFFERED_BYTES_MAX": _BUFFERED,
        "TENANTQ_LISTENER__PROCESSED_BYTES_MAX": _PROCESSED,
        "TENANTQ_LISTENER__UNSENT_BYTES_MAX": _UNSENT,
    }

    async def attack(server: Served) -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(_send(server, head.encode() + body, times=2))

    with serving(tmp_path / "data", **{name: str(value) for name, value in settings.items()}) as server:
        with Client(server.url, token=ADMIN_TOKEN) as client:
            client.tenant("loud").configure(quotas={"stored_bytes": 1_000})
            client.tenant("loud").queue("q").add("first")
        before = _peak_bytes(server)
        asyncio.run(attack(server))
        assert _peak_bytes(server) - before <= _STORE + _BUFFERED + 3 * _PROCESSED + _UNSENT
