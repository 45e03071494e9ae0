"""The ways to a Redis: TLS, a socket of this machine, a database of one's own."""

from __future__ import annotations

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
    """Put something in and take it out."""
    async with Shard(path, open_store=OnRedis(At(url), path, patience_ms=1_000)) as shard:
        await shard.add(T, Q, [message("a")])
        (got,) = await shard.poll(T, Q)
        assert (await shard.ack(T, Q, [got.receipt]))[0].ok


async def test_over_tls_a_server_whose_certificate_is_not_trusted_is_refused(tmp_path: Path) -> None:
    """With the authority's certificate it is served."""
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


async def test_a_socket_and_a_database_of_ones_own(tmp_path: Path, redis_server: RedisServer) -> None:
    """Each keeps the rows where it says."""
    await works(f"redis://127.0.0.1:{redis_server.port}/3", tmp_path / "three")
    assert redis_server.client().dbsize() == 0
    server = RedisServer(tmp_path / "redis", f"unixsocket {tmp_path}/redis.sock")
    try:
        await works(f"unix://{tmp_path}/redis.sock", tmp_path / "socket")
        assert server.client().dbsize() > 3
    finally:
        server.kill()
        redis_server.client().flushall()
