"""A client generated from /openapi.json by a third-party generator works against the server."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from types import ModuleType

    from tenantq.server import Server


@pytest.fixture
async def generated(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Fetch the description, generate a package and import it; the generator must not complain."""
    async with httpx.AsyncClient() as http:
        description = await http.get(f"http://127.0.0.1:{server.port}/openapi.json")
    (tmp_path / "openapi.json").write_bytes(description.content)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "openapi-python-client"),
        *("generate", "--path", "openapi.json", "--output-path", "generated_tenantq", "--meta", "none"),
        *("--fail-on-warning",),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("generated_tenantq")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("generated_tenantq")


@pytest.mark.asyncio(loop_factories=["uvloop"])  # slow, so one loop suffices
async def test_generated_client_does_a_full_cycle(server: Server, generated: ModuleType) -> None:
    """It adds, polls and acks with typed replies, and refused calls give a typed problem."""

    def of(module: str) -> Any:
        return importlib.import_module(f"generated_tenantq.{module}")

    models: Any = of("models")
    client = generated.AuthenticatedClient(base_url=f"http://127.0.0.1:{server.port}", token=ADMIN)
    async with client:
        body = models.AddRequest(messages=[models.WireMessage(body="hello", priority=3)])
        added = await of("api.messages.add_own").asyncio("work", client=client, body=body)
        polled = await of("api.messages.poll_own").asyncio("work", client=client, body=models.PollRequest(max_=5))
        (message,) = polled.messages
        assert (message.id, message.body, message.priority) == (added.messages[0].id, "hello", 3)
        body = models.AckRequest(receipts=[message.receipt])
        settled = await of("api.messages.ack_own").asyncio("work", client=client, body=body)
        assert [item.ok for item in settled.results] == [True]
        queue = await of("api.queues.get_queue_own").asyncio("work", client=client)
        assert (queue.ready, queue.acked_total) == (0, 1)
        refused = await of("api.queues.get_queue_own").asyncio("nothing", client=client)
        assert (type(refused).__name__, refused.status, refused.code) == ("Problem", 404, "not_found")
