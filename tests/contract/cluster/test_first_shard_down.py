"""While the first shard has no owner, the platform's credentials work, and operators see what is wrong."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot

from tenantq.cli import exit_codes
from tenantq.cluster.platform_keys import INTERVAL_MS
from tenantq.gates.authenticate import REMOTE_TRUST_MS
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.shard_directories import HOME
from tests.acceptance.command import call
from tests.contract.cluster.hosts import TOKEN, client_of, tenant_on
from tests.contract.cluster.test_members import pair, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from tests.contract.cluster.hosts import TwoPrimaries
    from tests.contract.cluster.test_members import Pair

HOLD_MS = 1_000
"""How long calls wait for a shard here."""


def name_of_cluster(prefix: str, registry: int) -> str:
    """Return a cluster name whose first shard is on the first primary and whose registry is on a given one."""
    for number in range(1_000):
        name = f"{prefix}{number}"
        if key_slot(f"t:{{{name}:0}}:s".encode()) < 8_192 and key_slot(f"{{{name}}}".encode()) // 8_192 == registry:
            return name
    raise AssertionError


@asynccontextmanager
async def two_servers(
    tmp_path: Path, primaries: TwoPrimaries, prefix: str, registry: int = 1
) -> AsyncIterator[tuple[Pair, str]]:
    """Run two servers, and yield them with a tenant on the second primary."""
    name = name_of_cluster(prefix, registry)
    redis = RedisSettings(name=name, lease_ms=1_000, patience_ms=1_000)
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, primaries, name, redis=redis)
        for server in both.servers:
            server._context.calls.hold_ms = HOLD_MS
        yield both, await tenant_on(both.clients[0], primaries.shards_on(1, name), prefix)


async def until_ownerless(both: Pair, lost: list[int]) -> None:
    """Wait until both servers know that these shards have no owner, if they can."""
    joined = [server.frontend.status.joined() for server in both.servers]
    await until(lambda: not any({*lost} & {*both.owned(number)} for number in range(2)))
    await until(lambda: all(one.problem or not any(map(one.view.owner_of, lost)) for one in joined))
    await asyncio.sleep(REMOTE_TRUST_MS / 1_000)  # nothing is cached any more


async def poll(both: Pair, server: int, tenant: str, token: str) -> httpx.Response:
    """Poll the queue of a tenant with some credential."""
    async with client_of(both.servers[server], token) as client:
        return await client.post(f"/v1/tenants/{tenant}/queues/work/poll", json={})


async def test_platform_credentials_outlast_the_owner_of_the_first_shard(
    primaries: TwoPrimaries, tmp_path: Path
) -> None:
    """Both servers use the last known keys at once; a revoked key stays refused, and an unknown one is not judged."""
    async with two_servers(tmp_path, primaries, "keys") as (both, tenant):
        admin = both.clients[0]
        made = [
            (await admin.post("/v1/platform/keys", json={"name": "a", "role": "platform-admin"})).json() for _ in "ab"
        ]
        valid, revoked = (one["token"] for one in made)
        assert (await poll(both, 1, tenant, revoked)).status_code == 200
        assert (await admin.delete(f"/v1/platform/keys/{made[1]['key_id']}")).status_code == 204
        await asyncio.sleep(3 * INTERVAL_MS / 1_000)
        with primaries.hanging(0):
            await until_ownerless(both, [HOME])
            for server in range(2):
                for token in (TOKEN, valid):
                    started = time.monotonic()
                    polled = await poll(both, server, tenant, token)
                    assert polled.status_code == 200, polled.text
                    assert time.monotonic() - started < HOLD_MS / 1_000
                assert (await poll(both, server, tenant, revoked)).status_code == 401
                assert (await poll(both, server, tenant, "tq_never_seen")).status_code == 503
                async with client_of(both.servers[server], valid) as fleet:
                    polled = await fleet.post("/v1/poll", json={"queue": "work"})
                    assert polled.status_code == 200, polled.text
        await until(lambda: any(HOME in both.owned(number) for number in range(2)))
        assert (await admin.delete(f"/v1/platform/keys/{made[0]['key_id']}")).status_code == 204
        await asyncio.sleep(REMOTE_TRUST_MS / 1_000)
        for server in range(2):
            assert (await poll(both, server, tenant, valid)).status_code == 401


@pytest.mark.parametrize("registry", [0, 1])
async def test_the_cluster_is_shown_while_its_first_shard_has_no_owner(
    primaries: TwoPrimaries, tmp_path: Path, registry: int
) -> None:
    """The command names the shards without an owner, or says that the registry cannot be read, promptly."""
    async with two_servers(tmp_path, primaries, f"shown{registry}", registry) as (both, _):
        lost = primaries.shards_on(0, name_of_cluster(f"shown{registry}", registry))
        with primaries.hanging(0):
            await until_ownerless(both, lost)
            for server in both.servers:
                url, started = f"http://127.0.0.1:{server.port}", time.monotonic()
                done = await asyncio.to_thread(call, "cluster", "status", "--url", url, "--token", TOKEN, "--json")
                assert done.code == exit_codes.CONFLICT, done.err
                assert time.monotonic() - started < HOLD_MS / 1_000
                shown = done.json
                if registry == 1:
                    assert [one["number"] for one in shown["shards"] if one.get("owner") is None] == lost
                assert bool(shown["problem"]) is (registry == 0)


async def test_an_unknown_credential_waits_once_for_the_first_shard(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """The call does not wait a second time for a shard to note the refusal."""
    async with two_servers(tmp_path, primaries, "once") as (both, _):
        with primaries.hanging(0):
            await until_ownerless(both, [HOME])
            async with client_of(both.servers[0], "tq_never_seen") as client:
                started = time.monotonic()
                assert (await client.get("/v1/cluster")).status_code == 503
                assert HOLD_MS <= (time.monotonic() - started) * 1_000 < 2 * HOLD_MS
