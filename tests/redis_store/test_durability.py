"""Required Redis settings, waiting for replicas, and what happens when memory is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenantq.cluster.settings import ClusterSettings
from tenantq.engine.settings import ShardSettings
from tenantq.errors import DiskFull, Invalid, StoreFailed
from tenantq.server.cluster_member import HostServer
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.store import RedisStore
from tests.administration import put_tenant
from tests.redis_servers import OnRedis, RedisServer, eventually
from tests.shards import Q, T, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator


INITIAL_SETTINGS = (
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("no-appendfsync-on-rewrite", "no"),
    ("maxmemory-policy", "noeviction"),
    ("maxmemory", "0"),
    ("rdb-key-save-delay", "0"),
)


@pytest.fixture
def server(durable_server: RedisServer) -> Iterator[RedisServer]:
    """Return the durable server, and restore its settings afterwards."""
    yield durable_server
    client = durable_server.client()
    for name, value in INITIAL_SETTINGS:
        client.config_set(name, value)
    eventually(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
    client.flushall()


def shard_on(server: RedisServer, path: Path, durability: str = "fsync", reserve: int = 0, **settings: object) -> Shard:
    """Return a shard on a server, not opened yet."""
    opener = OnRedis(server, path, durability, **settings)  # type: ignore[arg-type]  # a valid value
    return Shard(path, open_store=opener, settings=ShardSettings(disk_reserve_bytes=reserve))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("appendonly", "no", "appendonly is no"),
        ("appendfsync", "everysec", "Set appendonly yes and appendfsync always"),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite is yes"),
        ("maxmemory-policy", "allkeys-lru", "Set noeviction"),
    ],
)
async def test_redis_settings_that_can_lose_confirmed_writes_are_refused(
    server: RedisServer, tmp_path: Path, name: str, value: str, text: str
) -> None:
    """The error says what to set. With durability "os", only eviction is refused."""
    server.client().config_set(name, value)
    with pytest.raises(Invalid, match=text):
        await shard_on(server, tmp_path).open()
    if name != "maxmemory-policy":
        async with shard_on(server, tmp_path, "os") as shard:
            await shard.add(T, Q, [message()])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("appendonly", "no", "appendonly is no"), ("maxmemory-policy", "allkeys-lru", "Set noeviction")],
)
async def test_losing_durable_redis_settings_at_runtime_stops_the_shard(
    server: RedisServer, tmp_path: Path, name: str, value: str, text: str
) -> None:
    """Even an idle owner rechecks the settings. A log that is off is waited for, but not longer than the patience."""
    shard = shard_on(server, tmp_path, patience_ms=1_000)
    await shard.open()
    try:
        server.client().config_set(name, value)
        await asyncio.wait_for(shard.loop.stopped.wait(), 20)
        assert text in str(shard.failure)
    finally:
        await shard.close()


@pytest.mark.parametrize("reconnects", [True, False])
async def test_shard_waits_for_a_primary_whose_log_is_off(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, reconnects: bool
) -> None:
    """A replica that was promoted during a full resync starts its log later. Nothing is confirmed before."""
    redis = server.client()
    async with shard_on(server, tmp_path, patience_ms=30_000) as shard:
        store = shard.state.store
        assert isinstance(store, RedisStore)
        *used_by_calls, renewals = store._links
        confirmed_early: list[bool] = []

        def start_log_when_waited_for() -> None:  # in a thread: a commit that waits for Redis blocks the event loop
            eventually(lambda: any(link.retries > 1 for link in used_by_calls))  # the first finds a closed connection
            confirmed_early.append(adding.done())
            redis.config_set("appendonly", "yes")

        redis.config_set("appendonly", "no")
        if reconnects:
            redis.client_kill_filter(_type="normal")
        else:
            await asyncio.to_thread(eventually, lambda: renewals.retries > 0)
        adding = asyncio.create_task(shard.add(T, Q, [message()]))
        starting = asyncio.get_running_loop().run_in_executor(None, start_log_when_waited_for)
        await adding
        await starting
        assert confirmed_early == [False]
        assert shard.failure is None
    assert reconnects or "the store cannot be used yet: appendonly is no" in caplog.text


async def test_redis_fsync_setting_replaces_a_forbidden_config_command(server: RedisServer, tmp_path: Path) -> None:
    """Managed services forbid CONFIG. No error shows the password from the URL."""
    client = server.client()
    client.acl_setuser(
        "queue", enabled=True, passwords=["+s3cret-word"], categories=["+@all"], commands=["-config"], keys=["*"]
    )
    server_url = f"redis://queue:s3cret-word@127.0.0.1:{server.port}"

    class Named:
        url = server_url

    def opened(**settings: object) -> Shard:
        return Shard(tmp_path, open_store=OnRedis(Named(), tmp_path, "fsync", **settings))

    try:
        with pytest.raises(Invalid, match=r"redis\.fsync") as refused:
            await opened().open()
        assert "s3cret" not in str(refused.value)
        async with opened(fsync="always") as shard:
            await shard.add(T, Q, [message()])
        client.config_set("appendonly", "no")  # INFO still shows whether it is on
        with pytest.raises(Invalid, match="appendonly is no"):
            await opened(fsync="always").open()
    finally:
        client.acl_deluser("queue")
    with pytest.raises(StoreFailed, match="Check user and password") as wrong:
        await opened(fsync="always").open()
    assert "s3cret" not in str(wrong.value)


def _has_replica(server: RedisServer) -> bool:
    """Return whether a primary counts its replica as connected, which is later than the replica does."""
    told = server.client().info("replication")
    return bool(told["connected_slaves"] == 1 and told["slave0"]["state"] == "online")


async def test_nothing_is_confirmed_without_the_configured_replicas(server: RedisServer, tmp_path: Path) -> None:
    """Once the replica is connected, confirmed messages are on it."""
    with pytest.raises(StoreFailed, match="0 replicas follow the primary"):
        await shard_on(server, tmp_path / "one", replicas=1, patience_ms=500).open()
    replica = RedisServer(
        tmp_path / "replica", f"replicaof 127.0.0.1 {server.port}", "appendonly yes", "repl-diskless-sync-delay 0"
    )
    try:
        eventually(lambda: _has_replica(server))
        async with shard_on(server, tmp_path / "two", replicas=1) as shard:
            await shard.add(T, Q, [message("on both")])
            (name,) = [key for key in replica.client().keys("*") if key.endswith(b":m")]
            assert any(value.endswith(b"on both") for value in replica.client().hvals(name))
            assert shard.state.store.files.location() == (
                f"{server.url}, on 127.0.0.1:{server.port} and its replicas 127.0.0.1:{replica.port}"
            )
    finally:
        replica.kill()


async def test_next_owner_confirms_nothing_that_no_replica_has(server: RedisServer, tmp_path: Path) -> None:
    """A repeated add finds its first attempt in the store and, like a read, waits until the replica has it."""
    replica = RedisServer(
        tmp_path / "replica", f"replicaof 127.0.0.1 {server.port}", "appendonly yes", "repl-diskless-sync-delay 0"
    )
    try:
        eventually(lambda: _has_replica(server))
        shard = shard_on(server, tmp_path / "one", replicas=1, patience_ms=2_000)
        await shard.open()
        await shard.add(T, Q, [message("first")])
        replica.signal(signal.SIGSTOP)
        with pytest.raises(StoreFailed, match="0 of 1 replicas confirmed this round"):
            await shard.add(T, Q, [message("again", key="k")])
        with contextlib.suppress(StoreFailed):
            await shard.close()
        async with shard_on(server, tmp_path / "one", replicas=1) as shard:
            again = asyncio.ensure_future(shard.add(T, Q, [message("again", key="k")]))
            seen = asyncio.ensure_future(shard.reads.peek(T, Q))
            done, _ = await asyncio.wait([again, seen], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            assert not done
            replica.signal(signal.SIGCONT)
            assert (await again)[0].duplicate
            assert len((await seen).messages) == 2
    finally:
        replica.signal(signal.SIGCONT)
        replica.kill()


async def test_adds_are_refused_below_the_memory_reserve(server: RedisServer, tmp_path: Path) -> None:
    """Polls and acks continue, nothing is lost, and adds resume when memory is free again."""
    async with shard_on(server, tmp_path, reserve=1 << 20) as shard:
        await shard.add(T, Q, [message(b"x" * 1_000) for _ in range(50)])
        client = server.client()
        client.config_set("maxmemory", client.info("memory")["used_memory"])  # above the limit
        await asyncio.sleep(0.1)  # free memory is checked periodically
        store = shard.state.store
        store.files._has_limit = True  # type: ignore[attr-defined]  # without a limit, it checks once a second
        with pytest.raises(DiskFull):
            await shard.add(T, Q, [message()])
        got = await shard.poll(T, Q, max=25)
        assert all(one.ok for one in await shard.ack(T, Q, [one.receipt for one in got]))
        assert shard.failure is None
        client.config_set("maxmemory", "0")
        await shard.add(T, Q, [message()])
        assert shard.reads.stats(T, Q).ready == 26


async def test_55_redis_holds_no_plaintext_of_an_encrypted_tenant(server: RedisServer, tmp_path: Path) -> None:
    """Bodies, results and secret attributes are in neither memory nor files; those of an unencrypted tenant are."""
    settings = ServerSettings(
        data_dir=str(tmp_path / "data"),
        http="127.0.0.1:0",
        store=server.url,
        redis=RedisSettings(name="sealed"),
        cluster=ClusterSettings(shards=4),
    )
    call = Call(bearer="administrator-of-the-tests", remote="10.0.0.1")
    async with HostServer(settings, admin_token="administrator-of-the-tests") as running:  # noqa: S106  # for this test only
        service = running.frontend.as_service()
        await service.tenants.put(call, "acme", {"encryption": {"enabled": True}})
        secret = message("readable-4711", attributes={"secret_card": "readable-4712"}, key="readable-4713")
        await service.messages.add(call, "acme", Q, [secret])
        await service.messages.add(call, "default", Q, [message("plain-4714")])
    server.client().bgrewriteaof()
    eventually(lambda: server.client().info("persistence")["aof_rewrite_in_progress"] == 0)
    files = [path.read_bytes() for path in server.directory.rglob("*") if path.is_file()]
    assert any(b"plain-4714" in content for content in files)
    assert not any(b"readable-47" in content for content in files)


async def test_no_byte_of_a_deleted_tenant_is_left_in_the_files_of_redis(server: RedisServer, tmp_path: Path) -> None:
    """The erasure returns only after the files were rewritten."""
    async with shard_on(server, tmp_path) as shard:
        await put_tenant(shard, "acme")
        await shard.add("acme", Q, [message("plainly-seen-7f3a")])
        tenant = shard.state.catalog.tenant("acme").id
        await shard.erasure.delete_tenant("acme", reason="their contract has ended")
        await shard.erasure.erase_bytes(tenant)
        files = [
            path for path in server.directory.rglob("*") if path.is_file() and b"plainly-seen-7f3a" in path.read_bytes()
        ]
        assert files == []
        assert not (server.directory / "dump.rdb").exists()  # erasure must not create a dump


def kill_child(server: RedisServer) -> None:
    """Kill the child process that rewrites a server's file, as soon as it starts."""
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    eventually(lambda: bool(children.read_text()))
    os.kill(int(children.read_text()), signal.SIGKILL)


async def test_erasure_fails_if_redis_refuses_or_aborts_the_rewrite(server: RedisServer, tmp_path: Path) -> None:
    """It raises an error and can be retried; nothing is certified."""
    client = server.client()
    client.acl_setuser(
        "limited", enabled=True, nopass=True, categories=["+@all"], commands=["-bgrewriteaof"], keys=["*"]
    )

    class At:
        url = f"redis://limited:any@127.0.0.1:{server.port}"

    try:
        async with Shard(tmp_path / "one", open_store=OnRedis(At(), tmp_path / "one", "fsync")) as shard:
            with pytest.raises(StoreFailed, match="still in the store's files"):
                await shard.erasure.erase_bytes(1)
            assert shard.failure is None
    finally:
        client.acl_deluser("limited")
    async with shard_on(server, tmp_path / "two") as shard:
        client.config_set("rdb-key-save-delay", 5_000_000)
        erasing = asyncio.create_task(shard.erasure.erase_bytes(1))
        await asyncio.to_thread(kill_child, server)
        with pytest.raises(StoreFailed, match="BGREWRITEAOF failed"):
            await asyncio.wait_for(erasing, 20)
