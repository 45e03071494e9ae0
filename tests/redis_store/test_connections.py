"""Connecting to Redis over TLS, over a Unix socket, and to a numbered database; and what shares a connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import StoreFailed
from tests.contract.http.certificates import Authority
from tests.redis_servers import OnRedis, RedisServer, free_port
from tests.shards import Q, T, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path


class At:
    """An address to open."""

    def __init__(self, url: str) -> None:
        self.url = url


async def works(url: str, path: Path) -> None:
    """Add a message and poll it."""
    async with Shard(path, open_store=OnRedis(At(url), path, patience_ms=1_000)) as shard:
        await shard.add(T, Q, [message("a")])
        (got,) = await shard.poll(T, Q)
        assert (await shard.ack(T, Q, [got.receipt]))[0].ok


async def test_untrusted_tls_certificate_is_refused(tmp_path: Path) -> None:
    """With the certificate of its authority the server is accepted."""
    authority, port = Authority(tmp_path), free_port()
    certificate, key = authority.issue("server", "localhost")
    options = (f"tls-port {port}", f"tls-cert-file {certificate}", f"tls-key-file {key}", "tls-auth-clients no")
    server = RedisServer(tmp_path / "redis", *options, f"tls-ca-cert-file {authority.path}")
    try:
        await works(f"rediss://localhost:{port}?ca_file={authority.path}", tmp_path / "one")
        with pytest.raises(StoreFailed, match=r"(?i)certificate"):
            await works(f"rediss://localhost:{port}", tmp_path / "two")
    finally:
        server.kill()


async def test_database_number_and_unix_socket_are_honoured(tmp_path: Path) -> None:
    """Rows are stored in the database that the URL names, and in database 0 through a socket."""
    server = RedisServer(tmp_path / "redis", f"unixsocket {tmp_path}/redis.sock")
    try:
        await works(f"redis://127.0.0.1:{server.port}/3", tmp_path / "three")
        assert set(server.client().info("keyspace")) == {"db3"}
        await works(f"unix://{tmp_path}/redis.sock", tmp_path / "socket")
        assert set(server.client().info("keyspace")) == {"db0", "db3"}
    finally:
        server.kill()


async def test_commits_do_not_wait_for_readers_of_the_journal(redis_server: RedisServer, tmp_path: Path) -> None:
    """A new owner measures what is not exported yet, which may be long, while its callers wait for the first commits."""
    async with Shard(tmp_path, open_store=OnRedis(redis_server, tmp_path)) as shard:
        await shard.add(T, Q, [message("a")])
        store = shard.state.store
        with store._link._lock:  # type: ignore[attr-defined]  # as during a commit
            async with asyncio.timeout(10):
                found = await asyncio.to_thread(shard.journal.scan, 1, shard.journal.span[1], 10)
                link = await asyncio.to_thread(shard.journal.link, found[-1][0])
        assert found[-1][1].startswith(link)
