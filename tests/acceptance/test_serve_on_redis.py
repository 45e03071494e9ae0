"""``tenantq serve --store`` as processes: another server replaces a killed one, Redis may become unreachable, operators change it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from tenantq.store.redis.address import parse_address
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings
from tests.acceptance.cluster_process import ClusterProcess, called
from tests.acceptance.command import serving
from tests.processes import descendants
from tests.redis_servers import RedisServer, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served

PASSWORD = "s3cret-word"  # noqa: S105  # of these tests only


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a durable server that requires a password."""
    server = RedisServer(tmp_path / "redis", "appendonly yes", "appendfsync always")
    server.client().config_set("requirepass", PASSWORD)
    yield server
    server.kill()


def url_of(redis: RedisServer, user: str = "") -> str:
    """Return the address of the server with its password."""
    return f"redis://{user}:{PASSWORD}@127.0.0.1:{redis.port}"


def examined(data_dir: Path, redis: RedisServer) -> dict[str, Any]:
    """Return the doctor's report about all shards."""
    return called(url_of(redis), data_dir, "doctor")[1]


def test_cluster_under_load_is_examined_and_verified(redis: RedisServer, tmp_path: Path) -> None:
    """The Redis user is read-only. The reports are clean, or name the damage."""
    client: Any = Redis(port=redis.port, password=PASSWORD)  # the library has no types for all commands
    client.execute_command(
        "ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*",
        *("-@all", "+@read", "+evalsha", "+script|load", "+info", "+time", "+memory|usage"),
    )  # fmt: skip
    servers = [ClusterProcess(tmp_path, name, url_of(redis)) for name in ("one", "two")]
    over = threading.Event()

    def work(server: ClusterProcess, tenant: str) -> None:
        queue = f"/v1/tenants/{tenant}/queues/work"
        while not over.is_set():
            server.until(f"{queue}/messages", 200, {"messages": [{"body": "a"}, {"body": "b", "delay_ms": 200}]})
            for one in server.until(f"{queue}/poll", 200, {"max": 1})["messages"]:
                server.until(f"{queue}/ack", 200, {"receipts": [one["receipt"]]})

    def reported(*command: str) -> tuple[int, dict[str, Any]]:
        return called(url_of(redis, "reader"), tmp_path / "one", *command)

    try:
        for server in servers:
            server.until("/readyz", 200)
        for tenant in ("acme", "globex"):
            assert servers[0].ask(f"/v1/tenants/{tenant}", {}, "PUT")[0] in {200, 201}
        with ThreadPoolExecutor(2) as threads:
            tasks = [threads.submit(work, *one) for one in zip(servers, ("acme", "globex"), strict=True)]
            try:
                for tenant in ("acme", "globex"):
                    eventually(lambda tenant=tenant: bool(client.keys(f"t:*:{tenant}:*:vi")), 30)  # type: ignore[misc]  # bound now
                for _ in range(2):
                    code, report = reported("doctor")
                    assert (code, report["findings"], report["unchecked"]) == (0, [], [])
                    assert report["figures"]["messages"] > 0
                    code, report = reported("audit", "verify")
                    assert (code, report["findings"]) == (0, [])
                    assert report["live_records"] > 0
            finally:
                over.set()
            for task in tasks:
                task.result()
        (index,) = client.keys("t:*:acme:*:m:i")
        client.zadd(index, {bytes(16): 0})
        client.hset(index.removesuffix(b":i"), bytes(16), b"damaged")
        code, report = reported("doctor")
        assert (code, report["findings"][0]["kind"], report["findings"][0]["tenant"]) == (1, "damaged", "acme")
    finally:
        over.set()
        for server in servers:
            server.process.kill()
            server.process.wait()


def test_another_server_replaces_a_killed_one(redis: RedisServer, tmp_path: Path) -> None:
    """Everything confirmed is there, and receipts stay valid."""
    first = ClusterProcess(tmp_path, "one", url_of(redis))
    others: list[ClusterProcess] = []
    try:
        first.until("/readyz", 200)
        second = ClusterProcess(tmp_path, "two", url_of(redis))
        others = [second]
        queue = "/v1/tenants/default/queues/work"
        status, added = first.ask(f"{queue}/messages", {"messages": [{"body": "a"}, {"body": "b"}]})
        assert status == 200, added
        (held,) = first.ask(f"{queue}/poll", {"max": 1, "lease_ms": 60_000})[1]["messages"]
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        second.until("/readyz", 200)
        second.until(f"{queue}", 200)
        assert second.ask(f"{queue}/ack", {"receipts": [held["receipt"]]})[1]["results"][0]["ok"]
        assert [one["body"] for one in second.ask(f"{queue}/poll", {"max": 9})[1]["messages"]] == ["b"]
        assert second.end() == 0
        report = examined(tmp_path / "two", redis)
        assert (report["clean"], report["figures"]["messages"]) == (True, 1)
    finally:
        for one in (first, *others):
            one.process.kill()
            one.process.wait()
    assert PASSWORD not in "".join(one.log.read_text() for one in (first, *others))


def test_server_survives_a_redis_outage(redis: RedisServer, tmp_path: Path) -> None:
    """It stays alive, owns its shards again afterwards, and stops cleanly at any time."""
    server = ClusterProcess(tmp_path, "one", url_of(redis))
    queue = "/v1/tenants/default/queues/work"
    try:
        server.until("/readyz", 200)
        assert server.ask(f"{queue}/messages", {"messages": [{"body": "a"}]})[0] == 200
        redis.kill()
        server.until("/readyz", 503)
        assert server.ask("/healthz") == (200, {"status": "ok"})
        redis.start()
        redis.client().config_set("requirepass", PASSWORD)
        server.until("/readyz", 200)
        server.until(queue, 200)
        assert [one["body"] for one in server.ask(f"{queue}/poll", {"max": 9})[1]["messages"]] == ["a"]
        redis.kill()
        assert server.end() == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "Traceback" not in server.log.read_text()


def shard_processes(server: ClusterProcess) -> set[int]:
    """Return the processes of a server that own shards."""
    found = set()
    for pid in descendants(server.process.pid):
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            if b"shard_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def test_several_processes_of_a_server_share_its_shards(redis: RedisServer, tmp_path: Path) -> None:
    """Together they own all shards. The other takes over from a killed one, which is restarted."""
    server = ClusterProcess(tmp_path, "one", url_of(redis), "--processes", "2")
    queue = "/v1/tenants/default/queues/work"
    try:
        server.until("/readyz", 200)
        eventually(lambda: "ready on" in server.log.read_text())
        server.until(f"{queue}/messages", 200, {"messages": [{"body": "a", "key": "once"}]})
        killed, _ = shard_processes(server)
        os.kill(killed, signal.SIGKILL)
        assert [one["body"] for one in server.until(f"{queue}/poll", 200, {"max": 9})["messages"]] == ["a"]
        eventually(lambda: len(shard_processes(server) - {killed}) == 2)
        assert server.end() == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def pair(redis: RedisServer, tmp_path: Path) -> Iterator[Served]:
    """Run two servers of a cluster with four shards, a number that is in the store only, and return the first."""
    registry = RedisRegistry(parse_address(url_of(redis)), RedisSettings())
    registry.create(4, ())
    registry.close()
    settings = {"TENANTQ_STORE": url_of(redis), "TENANTQ_EXPORT__ENABLED": "false"}
    with serving(tmp_path / "one", **settings) as first, serving(tmp_path / "two", **settings):
        yield first


def test_operators_drain_members_add_shards_and_place_tenants(pair: Served) -> None:
    """Each command says what it did. A dry run changes nothing, and a refused command says why."""

    def refused(code: int, reason: str, *command: object) -> None:
        done = pair.call(*command)
        assert (done.code, done.out, reason in done.err) == (code, "", True), done

    def shards() -> dict[str, int]:
        return {one["id"]: one["shards"] for one in pair.ok("cluster", "members", "--json").json["members"]}

    eventually(lambda: len(shards()) == 2 and sum(shards().values()) == 4, 20)
    owned = shards()
    owner = max(owned, key=owned.__getitem__)
    drained = pair.ok("cluster", "drain", owner).out
    assert re.fullmatch(rf"member {owner} is handing over \d shards?\n", drained), drained
    eventually(lambda: sorted(shards().values()) == [0, 4] and shards()[owner] == 0, 20)
    assert "draining" in pair.ok("cluster", "members").out
    (last,) = owned.keys() - {owner}
    kept = pair.call("cluster", "drain", last)
    assert (kept.code, kept.err) == (7, ""), kept
    assert kept.out == f"member {last} still serves 4 shards because no other member can take over\n"
    assert pair.ok("cluster", "drain", last, "--undo").out == f"member {last} can own shards again\n"
    assert pair.ok("cluster", "drain", owner, "--undo").out == f"member {owner} can own shards again\n"
    refused(3, "'stranger' is not alive", "cluster", "drain", "stranger")

    refused(2, "cannot be reduced (2, the cluster has 4)", "cluster", "grow", 2)
    refused(2, "above the maximum (1025, at most 1024)", "cluster", "grow", 1_025, "--dry-run")
    assert pair.ok("cluster", "grow", 6, "--dry-run").out == "the cluster would have 6 shards\n"
    assert len(pair.ok("cluster", "shards", "--json").json["shards"]) == 4
    assert pair.ok("cluster", "grow", 6).out == "the cluster has 6 shards\n"
    eventually(lambda: sum(shards().values()) == 6, 20)

    pair.ok("tenant", "create", "acme")
    pair.ok("add", "mail", "hello", "--tenant", "acme")
    home = pair.ok("topology", "unpin", "acme", "--json").json["placement"]["shard"]
    target = 5 if home != 5 else 4
    moved = f"from shard {home} to shard {target}\n"
    assert f"tenant acme would move {moved}" in pair.ok("topology", "pin", "acme", target, "--dry-run").out
    assert f"tenant acme moved {moved}" in pair.ok("topology", "pin", "acme", target).out
    dedicated = pair.ok("topology", "dedicate", "acme", "--shard", target, "--json").json["placement"]
    assert (dedicated["shard"], dedicated["pinned"], dedicated["dedicated"]) == (target, True, True)
    free = pair.ok("topology", "unpin", "acme", "--json").json["placement"]
    assert (free["shard"], free["pinned"], free["dedicated"]) == (target, False, False)
    refused(2, "shard", "topology", "pin", "acme", 99)
    assert "hello" in pair.ok("poll", "mail", "--tenant", "acme").out
