"""The audit trail over HTTP: pages as JSON, and everything as a stream in other formats."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tenantq.domain.access import Grant
from tenantq.journal.export_settings import ExportSettings
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tests.administration import put_tenant
from tests.contract.http.raw_client import PATIENCE_S, RawClient
from tests.shards import message
from tests.verbs import verbs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ADMIN = "a-token-of-the-platform-" + "0" * 16
ADMINISTRATOR = Call(bearer=ADMIN)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Serve a tenant that has more rows than a page, most of them in segments only."""
    export = ExportSettings(segment_rows=400, keep_records=10)
    settings = ServerSettings(data_dir=str(tmp_path / "data"), http="127.0.0.1:0", export=export, grace_ms=0)
    async with Server(settings, admin_token=ADMIN) as server:
        for number in range(12):
            body = [message("=1+1") for _ in range(100)]
            await server.shard.add("default", f"q{number % 2}", body)
        await put_tenant(server.shard, "acme")
        assert server.runtime.exporter is not None
        await server.runtime.exporter.export_now()
        yield server


def ask(path: str, version: str = "1.1", token: str = ADMIN) -> bytes:
    """Return the bytes of a request."""
    return f"GET {path} HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


async def streamed(server: Server, path: str, version: str = "1.1") -> tuple[bytes, bytes]:
    """Return the head and the body of a streamed reply, with joined chunks."""
    client = await RawClient.open(server.port)
    client.send(ask(path, version))
    async with asyncio.timeout(PATIENCE_S):
        head = await client.reader.readuntil(b"\r\n\r\n")
        body = b""
        if b"Transfer-Encoding: chunked" not in head:
            body = await client.reader.read()
        else:
            while size := int(await client.reader.readuntil(b"\r\n"), 16):
                body += (await client.reader.readexactly(size + 2))[:-2]
            await client.reader.readexactly(2)
            client.send(ask("/healthz"))
            assert (await client.reply()).status == 200  # the connection stays open
    await client.close()
    return head, body


async def all_rows(server: Server, path: str) -> list[dict[str, Any]]:
    """Return the rows of all pages."""
    client, rows, cursor = await RawClient.open(server.port), list[dict[str, Any]](), ""
    while True:
        page = (await client.ask(ask(f"{path}&limit=700{cursor}"))).json()
        rows += page["rows"]
        if "cursor" not in page:
            await client.close()
            return rows
        cursor = f"&cursor={page['cursor']}"


async def test_every_format_streams_what_the_pages_show(server: Server) -> None:
    """The rows are the same, with all fields an auditor needs."""
    path = "/v1/tenants/default/audit?action=add"
    rows = await all_rows(server, path)
    assert len(rows) == 1_200
    assert set(rows[0]) >= {
        "event_id", "ts", "tenant", "principal", "op", "resource", "details", "remote", "user_agent", "request_id",
        "outcome", "error_code", "result",
    }  # fmt: skip
    assert len({row["event_id"] for row in rows}) == 1_200
    assert rows[0]["resource"] == f"tenants/default/queues/q0/messages/{rows[0]['message_id']}"
    head, body = await streamed(server, f"{path}&format=jsonl")
    assert b"Content-Type: application/x-ndjson\r\n" in head
    assert [json.loads(line) for line in body.splitlines()] == rows
    head, body = await streamed(server, f"{path}&format=csv")
    assert b'filename="audit.csv"' in head
    told = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
    assert [row["event_id"] for row in told] == [row["event_id"] for row in rows]
    head, body = await streamed(server, f"{path}&format=parquet")
    assert [row["event_id"] for row in pq.read_table(io.BytesIO(body)).to_pylist()] == [row["event_id"] for row in rows]


async def test_http_1_0_client_reads_until_the_connection_closes(server: Server) -> None:
    """HTTP/1.0 has no chunks."""
    head, body = await streamed(server, "/v1/tenants/default/audit?action=add&format=jsonl", "1.0")
    assert b"Connection: close" in head
    assert len(body.splitlines()) == 1_200


async def test_newest_first_and_limit(server: Server) -> None:
    """The limit of a stream covers all its rows."""
    _, body = await streamed(server, "/v1/audit?order=newest&limit=5&format=jsonl")
    rows = [json.loads(line) for line in body.splitlines()]
    assert len(rows) == 5
    assert rows == sorted(rows, key=lambda row: (-row["seq"], -row["n"]))


async def test_refusal_is_a_reply_not_a_partial_stream(server: Server) -> None:
    """Covers invalid credentials, invalid filters and another tenant."""
    client = await RawClient.open(server.port)
    for path, token, status in (
        ("/v1/audit?format=csv", "nobody", 401),
        ("/v1/audit?format=xml", ADMIN, 422),
        ("/v1/audit?format=csv&cursor=x", ADMIN, 422),
        ("/v1/tenants/acme/audit?tenant=default", ADMIN, 422),
        ("/v1/tenants/nobody/audit?format=csv", ADMIN, 404),
    ):
        reply = await client.ask(ask(path, token=token))
        assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json"), path
    await client.close()


async def test_stream_ends_when_the_right_is_revoked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is aborted, so that nobody mistakes the partial file for a complete one."""
    made = await server.service.access.create_platform_key(ADMINISTRATOR, "short", Grant(actions=("audit_platform",)))
    plain = server.service._audit_trail.page

    async def page(*query: Any, **how: Any) -> Any:
        found = await plain(*query, **how)
        await server.service.access.revoke_platform_key(ADMINISTRATOR, made.key_id)
        return found

    monkeypatch.setattr(server.service._audit_trail, "page", page)
    client = await RawClient.open(server.port)
    client.send(ask("/v1/audit?format=jsonl", token=made.token))
    body = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(PATIENCE_S):
            await client.reader.readuntil(b"\r\n\r\n")
            while part := await client.reader.read(1 << 16):
                body += part
    assert not body.endswith(b"0\r\n\r\n")
    await client.close()


async def test_message_history_includes_exported_segments(server: Server) -> None:
    """This works after the store has trimmed the add; an unknown message is not found."""
    first = (await all_rows(server, "/v1/tenants/default/audit?action=add"))[0]
    assert server.shard.journal.span[0] > first["seq"]
    (held,) = await verbs(server.shard).poll("default", "q0")
    assert held.id == first["message_id"]
    client = await RawClient.open(server.port)
    reply = await client.ask(ask(f"/v1/queues/q0/messages/{held.id}/trace"))
    assert [row["op"] for row in reply.json()["rows"]] == ["add", "poll"]
    for path in (f"q1/messages/{held.id}", "q0/messages/00000000-0000-7000-8000-000000000000"):
        assert (await client.ask(ask(f"/v1/queues/{path}/trace"))).status == 404
    await client.close()
