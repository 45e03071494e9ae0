"""What answers over HTTP while a server stands by for the owner of its shard: it is alive, and not ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from tenantq.runtime.tls import TlsContext, TlsFiles

_HEAD_BYTES_MAX: Final = 16_384
_HEAD_S: Final = 5.0
_HEALTH: Final = (b"GET /healthz ", b"HEAD /healthz ")
_READINESS: Final = (b"GET /readyz ", b"HEAD /readyz ")
_UNAVAILABLE: Final = b"503 Service Unavailable"


class StandbyListener:
    """Answers ``/healthz`` with 200 and everything else with 503, each on a connection of its own, which it then closes."""

    def __init__(self, holder: str) -> None:
        """``holder`` owns the shard at present."""
        self.holder = holder
        self.certificates_loaded_total = self.certificates_failed_total = 0  # nobody asks while it stands by
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: TlsFiles | None) -> None:
        """Listen; raise OSError where that cannot be."""
        context = TlsContext(tls, self).context if tls is not None else None
        self._server = await asyncio.start_server(self._answer, host, port, ssl=context, limit=_HEAD_BYTES_MAX)

    async def close(self) -> None:
        """Stop listening, so that the real listener can."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        failures = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)
        with contextlib.suppress(*failures):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            writer.write(self._reply(head))
            await writer.drain()
        writer.close()
        with contextlib.suppress(*failures):
            await writer.wait_closed()

    def _reply(self, head: bytes) -> bytes:
        if head.startswith(_HEALTH):
            return _response(b"200 OK", b"application/json", {"status": "ok"})
        detail = f"this server stands by: the shard is owned by {self.holder}"
        if head.startswith(_READINESS):
            standing = {"status": "standby", "details": {"ready": False, "owner": self.holder}}
            return _response(_UNAVAILABLE, b"application/json", standing)
        problem = {
            "type": "about:blank",
            "title": "Unavailable",
            "status": 503,
            "code": "unavailable",
            "detail": detail,
        }
        return _response(_UNAVAILABLE, b"application/problem+json", problem)


def _response(status: bytes, kind: bytes, body: Mapping[str, object]) -> bytes:
    encoded = msgspec.json.encode(body)
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s" % (
        status,
        kind,
        len(encoded),
        encoded,
    )
