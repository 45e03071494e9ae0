"""A client built with pycapnp and the schema, as users would write one."""

from __future__ import annotations

from typing import Any, Self

import capnp

from tenantq.rpc.schema import SCHEMA


class RpcClient:
    """One connection, and the last session opened on it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._client = capnp.TwoPartyClient(stream)
        self.bootstrap = self._client.bootstrap().cast_as(SCHEMA.Tenantq)
        self.session: Any = None

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", **options: Any) -> Self:
        """Connect to a server."""
        return cls(await capnp.AsyncIoStream.create_connection(host, port, **options))

    async def login(self, token: str) -> Any:
        """Log in, and return the reply."""
        reply = await self.bootstrap.login(token=token, agent="tests")
        if reply.which() == "ok":
            self.session = reply.session
        return reply

    async def ask(self, method: str, queue: str | None = "q", tenant: str | None = None, **given: Any) -> Any:
        """Call a method of the session; with ``queue`` None the ref is omitted."""
        if queue is not None:
            given["ref"] = {"queue": queue} | ({"tenant": tenant} if tenant else {})
        return await getattr(self.session, method)(**given)

    async def add(self, *bodies: bytes, **where: Any) -> list[str]:
        """Add messages with bodies only; return their IDs."""
        reply = await self.ask("add", bodies=list(bodies), **where)
        assert reply.which() == "messages", reply
        return [message.id for message in reply.messages]

    async def poll(self, **given: Any) -> list[Any]:
        """Lease messages; the call must succeed."""
        reply = await self.ask("poll", **given)
        assert reply.which() == "messages", reply
        return list(reply.messages)

    async def refused(self, method: str, **given: Any) -> Any:
        """Call a method that must be refused; return the error."""
        reply = await self.ask(method, **given)
        assert reply.which() == "error", reply
        return reply.error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        self._stream.close()
