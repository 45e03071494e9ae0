"""Operators find the keys of a tenant by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.engine.ops.lifecycle import DeleteQueue, Purge, PutQueue, PutTenant
from tenantq.errors import StoreFormat
from tests.administration import put_tenant
from tests.redis_servers import OnRedis
from tests.shards import message, wait_until_idle
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_servers import RedisServer

REASON = "a test of the keys"


def found(server: RedisServer, pattern: str) -> set[str]:
    """Return the suffixes, after the queue ID, of the keys that match a pattern."""
    return {key.decode().split("}:", 1)[1] for key in server.client().scan_iter(match=pattern, count=10_000)}


async def test_keys_of_a_queue_contain_the_names_of_tenant_and_queue(tmp_path: Path, redis_server: RedisServer) -> None:
    """They match no other tenant. A recreated queue gets other keys, and a restart finds everything."""
    opener = OnRedis(redis_server, tmp_path)
    async with Shard(tmp_path, open_store=opener) as shard:
        for tenant in ("acme", "other"):
            await put_tenant(shard, tenant)
            await shard.submit(PutQueue(shard.tenant(tenant), shard.state.system, "acme"))
            await shard.add(tenant, "acme", [message("one"), message("two", group="g", key="k")])
        await shard.poll("acme", "acme", max=2)
        own = found(redis_server, "t:{*}:acme:*")
        id = f"{shard.tenant('acme').id:x}.1"
        assert {
            f"acme:acme:{id}:{name}" for name in ("m", "m:i", "le", "le:i", "li", "gr", "gr:i", "ik", "ik:i")
        } <= own
        assert all(name.startswith(f"acme:acme:{id}:") for name in own)
        await shard.submit(Purge(shard.tenant("acme"), shard.state.system, "acme", REASON))
        assert not found(redis_server, "t:{*}:acme:*")
        await shard.add("acme", "acme", [message("again")])
        await shard.submit(DeleteQueue(shard.tenant("acme"), shard.state.system, "acme", REASON, force=True))
        await wait_until_idle(shard)
        await shard.submit(PutQueue(shard.tenant("acme"), shard.state.system, "acme"))
        await shard.add("acme", "acme", [message("new")])
        assert {name.split(":")[2] for name in found(redis_server, "t:{*}:acme:*")} == {id[:-1] + "2"}
    async with Shard(tmp_path, open_store=opener) as shard:
        assert [one.body for one in await shard.poll("acme", "acme", max=9)] == [b"new"]
        assert len(await shard.poll("other", "acme", max=9)) == 2


async def test_unknown_store_format_is_refused_and_left_unchanged(tmp_path: Path, redis_server: RedisServer) -> None:
    """The error names both formats, and the owner's row stays as it was."""
    opener = OnRedis(redis_server, tmp_path)
    async with Shard(tmp_path, open_store=opener) as shard:
        await shard.submit(PutTenant(shard.state.platform, shard.state.system, "acme", {}))
    state = f"t:{{{opener.settings.name}:0}}:s"
    redis_server.client().hset(state, "format", "1")
    before = redis_server.client().hgetall(state)
    with pytest.raises(StoreFormat, match=r"unsupported format 1; this program reads format 2"):
        await Shard(tmp_path, open_store=opener).open()
    assert redis_server.client().hgetall(state) == before
