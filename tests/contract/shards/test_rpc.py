"""Cap'n Proto to a server of several shards: one connection to any shard reaches the tenants of all."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING

from tenantq.rpc.kj_loop import kj_loop
from tenantq.rpc.methods import METHODS
from tests.acceptance.command import ADMIN_TOKEN
from tests.contract.rpc.client import RpcClient
from tests.contract.shards.sharded import sharded

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.contract.shards.sharded import Sharded

DESTROY = {"confirm": "mail", "reason": "because a test says so"}


def _port(server: Sharded) -> int:
    (port,) = re.findall(r"^Cap'n Proto on 127\.0\.0\.1:(\d+)$", server.served.output, re.MULTILINE)
    return int(port)


async def work_with_queue(client: RpcClient, tenant: str | None) -> None:
    """Use every call about a queue."""
    done: set[str] = set()

    async def ask(method: str, queue: str = "mail", **given: Any) -> Any:
        done.add(method)
        reply = await client.ask(method, queue, tenant, **given)
        assert reply.which() != "error", (method, reply.error.code, reply.error.message)
        return reply

    await ask("putQueue", config='{"max_attempts": 1}')
    ids = [one.id for one in (await ask("add", bodies=[b"0", b"1\xff", b"2", b"3", b"4"])).messages]
    assert (await ask("stats")).stats.ready == 5
    assert (await ask("getQueue")).queue.name == "mail"
    assert "mail" in {one.name for one in (await ask("listQueues")).queues}
    got = (await ask("poll", max=4, waitMs=1_000)).messages
    assert [one.body for one in got] == [b"0", b"1\xff", b"2", b"3"]
    receipts = [one.receipt for one in got]
    assert (await ask("extend", receipts=receipts[:1], leaseMs=60_000)).results[0].ok
    assert (await ask("ack", receipts=receipts[:1], results=[{"value": b"\x00done"}])).results[0].ok
    assert (await ask("result", id=ids[0])).value == b"\x00done"
    assert (await ask("release", receipts=receipts[1:2])).results[0].ok
    assert (await ask("nack", receipts=receipts[2:3])).results[0].ok
    assert [row.op for row in (await ask("trace", id=ids[0])).rows] == ["add", "poll", "extend", "ack"]
    assert (await ask("message", id=ids[1])).message.state == "ready"
    assert len((await ask("peek", limit=10)).messages) == 2
    assert (await ask("remove", ids=ids[1:2])).results[0].ok
    task = (await ask("redrive", dryRun=True)).redrive.task
    await ask("redriveStatus", task=task)
    await ask("cancelRedrive", task=task)
    await ask("pauseQueue")
    await ask("resumeQueue")
    assert (await ask("purge", **DESTROY)).purged >= 1
    await ask("deleteQueue", **DESTROY, force=True)
    assert done >= set(METHODS) - {"fleetPoll"}


async def test_every_call_is_forwarded_to_the_tenants_shard(three: Sharded) -> None:
    """The platform names the tenant, a tenant uses its credential, and errors are those of the owner."""
    tenants = [three.tenant_on(shard) for shard in range(3)]
    async with kj_loop():
        admin = await RpcClient.open(_port(three))
        await admin.login(ADMIN_TOKEN)
        for tenant in tenants:
            await work_with_queue(admin, tenant)
            own = await RpcClient.open(_port(three))
            assert (await own.login(three.key_of(tenant))).tenant == tenant
            await work_with_queue(own, None)
            assert (await own.refused("peek", queue="nothing")).code == "not_found"
            other = tenants[(tenants.index(tenant) + 1) % 3]
            assert (await own.refused("poll", tenant=other)).code == "forbidden"
            own.close()
        admin.close()


async def test_fleet_over_capnp_is_served_from_all_shards(three: Sharded) -> None:
    """Waiting fleet polls work too, and bodies stay bytes."""
    tenants = [three.tenant_on(shard) for shard in range(3)]
    async with kj_loop():
        client = await RpcClient.open(_port(three))
        await client.login(ADMIN_TOKEN)
        for number, tenant in enumerate(tenants):
            await client.add(bytes([number, 255]), queue="fleet", tenant=tenant)
        got: list[tuple[str, bytes]] = []
        while len(got) < 3:
            reply = await client.ask("fleetPoll", "fleet", tenants=tenants, max=5, waitMs=10_000)
            got += [(one.tenant, one.body) for one in reply.messages]
        assert sorted(got) == sorted((tenant, bytes([number, 255])) for number, tenant in enumerate(tenants))
        waiting = asyncio.ensure_future(client.ask("fleetPoll", "fleet", tenants=tenants, max=5, waitMs=20_000))
        await client.add(b"late", queue="fleet", tenant=tenants[2])
        assert [one.body for one in (await waiting).messages] == [b"late"]
        client.close()


async def test_forwarded_reply_states_its_durability(tmp_path: Path) -> None:
    """A poll cancelled on another shard takes nothing: the next message goes to the next poll."""
    options = ("--shards", 2, "--rpc", "127.0.0.1:0")
    with sharded(tmp_path / "data", *options, TENANTQ_SHARD__DURABILITY="os") as server:
        tenants = [server.tenant_on(0), server.tenant_on(1)]
        async with kj_loop():
            client = await RpcClient.open(_port(server))
            await client.login(ADMIN_TOKEN)
            for tenant in tenants:
                assert (await client.ask("putQueue", "mail", tenant, config="{}")).durability == "os"
                waiting = asyncio.ensure_future(client.ask("poll", "mail", tenant, waitMs=20_000, leaseMs=600_000))
                await asyncio.sleep(0.1)  # another process starts to wait
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting  # the server learns of it before the next request
                await client.add(b"next", queue="mail", tenant=tenant)
                got = (await client.ask("poll", "mail", tenant, waitMs=10_000)).messages
                assert [(one.body, one.attempt) for one in got] == [(b"next", 1)]
            client.close()
