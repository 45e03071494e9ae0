"""Tenants of embedded shards move between them, and use several, while they are used and while processes are killed."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.store.placement_file import FILE, PlacementFile
from tests.acceptance.command import call
from tests.contract.shards.sharded import Sharded, sharded, until
from tests.contract.shards.test_processes import Producer, _bodies, _stop
from tests.processes import alive, descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REASON = "because a test says so"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    """Return a server of three shards, which may be killed."""
    with sharded(tmp_path_factory.mktemp("placement") / "data", "--shards", 3) as running:
        yield running


def _placement(server: Sharded, tenant: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(f"/v1/cluster/tenants/{tenant}")
    return found


def _place(server: Sharded, tenant: str, **wanted: Any) -> None:
    reply = server.ask("PUT", f"/v1/cluster/tenants/{tenant}", json=wanted)
    assert reply.status_code == 200, reply.text


def _settled(server: Sharded, tenant: str) -> dict[str, Any] | None:
    reply = server.ask("GET", f"/v1/cluster/tenants/{tenant}")
    found: dict[str, Any] = reply.json()
    return found if reply.status_code == 200 and not found["moves"] and not found["changing"] else None


def _wait(server: Sharded, tenant: str) -> list[int]:
    shards: list[int] = until(lambda: _settled(server, tenant), 60)["shards"]
    return shards


def _add(server: Sharded, path: str, *bodies: str, **fields: Any) -> list[dict[str, Any]]:
    reply = server.ask("POST", f"{path}/messages", json={"messages": [{"body": body, **fields} for body in bodies]})
    assert reply.status_code == 200, reply.text
    added: list[dict[str, Any]] = reply.json()["messages"]
    return added


def _restart(server: Sharded, shard: int) -> None:
    """Kill a shard, and wait until all know that it is back."""
    gone = server.kill(shard)
    until(lambda: not alive({gone}))
    until(lambda: all(map(_sees_all, [server] * 3, server.shards)))


def _sees_all(server: Sharded, url: str) -> bool:
    shards = server.get("/readyz", url=url)["details"]["shards"].values()
    return all(one["ready"] for one in shards)


def test_tenant_moves_while_in_use(server: Sharded) -> None:
    """Receipts, leases, keys, idempotency keys and long polls survive, no call fails, and every address finds it."""
    tenant = server.tenant_on(1)
    token, base = server.key_of(tenant), f"/v1/tenants/{tenant}/queues"
    (first,) = _add(server, f"{base}/mail", "once", key="k")
    (leased,) = server.ask("POST", f"{base}/mail/poll", json={"lease_ms": 60_000}).json()["messages"]
    with ThreadPoolExecutor(1) as pool, Producer(server, tenant, token) as producer:
        waiting = pool.submit(server.ask, "POST", f"{base}/empty/poll", token=token, json={"wait_ms": 25_000})
        until(lambda: len(producer.confirmed) > 50)
        for target in (2, 0):
            _place(server, tenant, shard=target)
            assert _wait(server, tenant) == [target]
            seen = len(producer.confirmed)
            until(lambda: len(producer.confirmed) > seen + 20)  # noqa: B023  # called at once
        _add(server, f"{base}/empty", "late")
        assert [one["body"] for one in waiting.result().json()["messages"]] == ["late"]
    assert producer.failures == []
    assert _bodies(server, tenant) == set(producer.confirmed)
    for url in server.urls:
        assert server.ask("GET", f"/v1/tenants/{tenant}", url=url, token=token).status_code == 200
    (same,) = _add(server, f"{base}/mail", "once", key="k")
    assert (same["id"], same["duplicate"]) == (first["id"], True)
    acked = server.ask("POST", f"{base}/mail/ack", token=token, json={"receipts": [leased["receipt"]]})
    assert acked.json()["results"][0]["ok"]
    moves = server.get(f"/v1/tenants/{tenant}/audit", params={"action": "move_tenant"})["rows"]
    assert {row["shard"] for row in moves} == {"0", "1", "2"}
    body = {"confirm": tenant, "reason": REASON}
    assert server.ask("DELETE", f"/v1/tenants/{tenant}", json=body).status_code == 200
    again = server.ask("PUT", f"/v1/tenants/{tenant}", json={})  # its name is free, also where it has been
    assert (again.status_code, again.json()["id"] >> 26) == (201, 1)


@pytest.mark.parametrize("killed", [1, 2], ids=["source", "target"])
def test_a_shard_killed_during_a_move_loses_nothing(server: Sharded, killed: int) -> None:
    """Every confirmed message is there once; the move ends after the restart."""
    tenant = server.tenant_on(1)
    token = server.key_of(tenant)
    _add(server, f"/v1/tenants/{tenant}/queues/load", *(f"{number}" for number in range(500)))
    with Producer(server, tenant, token) as producer:
        until(lambda: producer.confirmed)
        _place(server, tenant, shard=2)
        _restart(server, killed)
        assert _wait(server, tenant) == [2]
        seen = len(producer.confirmed)
        until(lambda: len(producer.confirmed) > seen + 20)
    assert {status for status, _ in producer.failures} <= {503}
    assert set(producer.confirmed) <= _bodies(server, tenant)
    queue = server.get(f"/v1/tenants/{tenant}/queues/load")
    assert queue["ready"] >= 500 + len(producer.confirmed)
    _place(server, tenant, pinned=False)


def test_quota_of_a_spread_tenant_is_exact(server: Sharded) -> None:
    """Callers at all addresses add exactly as many messages as it allows, also after a shard was killed."""
    tenant = server.tenant_on(1)
    path = f"/v1/tenants/{tenant}"
    _add(server, f"{path}/queues/q3", "before")
    _place(server, tenant, spread=3)
    assert sorted(_wait(server, tenant)) == [0, 1, 2]
    assert server.ask("PUT", path, json={"quotas": {"backlog": 100}}).status_code == 200

    def flood(caller: int) -> int:
        """Add until a quota refuses twice in a row."""
        added = refused = 0
        with server.client(1 + caller % 3) as client:
            while refused < 2:
                body = {"messages": [{"body": f"{caller} {added}"}]}
                reply = client.post(f"{path}/queues/q{(caller + added) % 9}/messages", json=body)
                assert reply.status_code in {200, 429}, reply.text
                refused = 0 if reply.status_code == 200 else refused + 1
                added += not refused
        return added

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(flood, range(12))) == 99
    _restart(server, 2)
    assert server.get(f"{path}/usage")["quotas"]["backlog"]["used"] == 100
    assert server.ask("PUT", path, json={"quotas": {"backlog": 150}}).status_code == 200
    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(flood, range(12))) == 50
    _place(server, tenant, spread=1)
    assert _wait(server, tenant) == [1]
    assert sum(one["ready"] for one in server.get(f"{path}/queues")["queues"]) == 150


def test_operators_see_and_change_placement(server: Sharded) -> None:
    """With the commands for clusters. The number of shards is set when the server starts."""
    tenant = server.tenant_on(2)
    served = server.served
    assert served.ok("topology", "pin", tenant, 0).out.splitlines()[-1].endswith("from shard 2 to shard 0")
    status = served.ok("cluster", "status", "--json").json
    assert [one["owner"] for one in status["shards"]] == ["0", "1", "2"]
    assert [one["shards"] for one in status["members"]] == [1, 1, 1]
    served.ok("topology", "spread", tenant, 2)
    assert len(served.ok("topology", "prove", tenant, "--json").json["shards"]) >= 2
    served.ok("topology", "spread", tenant, 1)
    dedicated = served.ok("topology", "dedicate", tenant, "--shard", 2, "--json").json["placement"]
    assert (dedicated["shard"], dedicated["dedicated"]) == (2, True)
    created = [server.ask("PUT", f"/v1/tenants/new-{number}", json={}).json() for number in range(4)]
    assert {one["id"] >> 26 for one in created} == {0, 1}
    assert served.ok("topology", "unpin", tenant, "--json").json["placement"]["pinned"] is False
    grown = served.call("cluster", "grow", 4)
    assert (grown.code, "--shards" in grown.err) == (7, True)
    assert server.ask("PUT", f"/v1/cluster/tenants/{tenant}", json={"shard": 3}).status_code == 422


def test_placement_survives_restarts_and_old_data_directories_get_a_directory(tmp_path: Path) -> None:
    """It is written from the shards if it is missing. Fewer shards are refused while one is in use."""
    data = tmp_path / "data"
    with sharded(data, "--shards", 2) as server:
        moved = server.tenant_on(0, encryption={"enabled": True})
        wide, plain = server.tenant_on(0), server.tenant_on(1)
        for tenant in (moved, wide, plain):
            for queue in range(6):
                _add(server, f"/v1/tenants/{tenant}/queues/q{queue}", tenant)
        assert server.ask("POST", "/v1/backups", json={"name": "early"}).status_code == 201
        _place(server, moved, shard=1)
        _place(server, wide, spread=2)
        assert (_wait(server, moved), sorted(_wait(server, wide))) == ([1], [0, 1])
        until(lambda: server.ask("POST", "/v1/backups", json={"name": "night"}).status_code == 201)  # moves have ended
        _stop(server)
    with closing(sqlite3.connect(data / FILE)) as file:
        rows = file.execute("SELECT name, placement FROM directory").fetchall()
    assert {moved, wide, plain} <= {name for name, _ in rows}
    _check_that_the_doctor_compares(data, plain)
    for ending in ("", "-wal", "-shm"):
        (data / f"directory.db{ending}").unlink(missing_ok=True)
    restored = tmp_path / "restored"
    assert call("backup", "restore", "--from", tmp_path / "data-backups" / "night", "--data-dir", restored).code == 0
    for place in (data, restored):
        with sharded(place) as server:
            found = {tenant: _placement(server, tenant) for tenant in (moved, wide, plain)}
            assert [one["shards"] for one in found.values()] == [[1], [0, 1], [1]]
            for tenant in found:
                queues = server.get(f"/v1/tenants/{tenant}/queues")["queues"]
                assert [one["ready"] for one in queues] == [1] * 6
            assert place == restored or _data_keys(data) == 1
            body = {"confirm": moved, "reason": REASON}
            assert server.ask("DELETE", f"/v1/tenants/{moved}", json=body).status_code == 200
            assert place == restored or _data_keys(data) == 0  # also next to backups of the shard that it has left
            running = descendants(server.served.process.pid)
            server.served.process.kill()
            until(lambda pids=running: not alive(pids))
        refused = call("serve", "--data-dir", place, "--http", "127.0.0.1:0", "--shards", 1)
        assert (refused.code, "shard 1 has the tenant" in refused.err) == (7, True)


def _check_that_the_doctor_compares(data: Path, tenant: str) -> None:
    """Check that the doctor finds nothing, then a row that names the wrong shard, then a file that it cannot read."""
    files = {file: file.read_bytes() for file in data.glob("directory.db*")}
    assert call("doctor", "--data-dir", data).code == 0
    assert {file: file.read_bytes() for file in data.glob("directory.db*")} == files
    with closing(PlacementFile(data)) as directory:
        right = directory.placements()[1][tenant]
        wrong = directory.move_tenant(tenant, msgspec.structs.replace(right, shard=0), right.version)
        assert wrong is not None
        told = call("doctor", "--data-dir", data, "--json")
        assert (told.code, [(one["kind"], one["tenant"]) for one in told.json["findings"]]) == (
            1,
            [("catalog", tenant)],
        )
        directory.move_tenant(tenant, right, wrong.version)
    (data / FILE).write_bytes(b"not a database" * 100)
    told = call("doctor", "--data-dir", data)
    assert (told.code, "the tenant directory cannot be read" in told.out) == (1, True)


def _data_keys(data: Path) -> int:
    """Return for how many tenants there are data keys next to the backups of the first shard."""
    (file,) = data.with_name("data-backups").glob("data-keys-*.json")
    return len(msgspec.json.decode(file.read_bytes())["keys"])


def test_proof_lists_what_shards_keep_that_a_tenant_has_left(tmp_path: Path) -> None:
    """Also after such a shard was removed: then nobody knows where its journal is."""
    data = tmp_path / "data"
    with sharded(data, "--shards", 2) as server:
        tenant = server.tenant_on(1)
        _place(server, tenant, shard=0)
        assert _wait(server, tenant) == [0]
        places = server.get(f"/v1/tenants/{tenant}/residency")["places"]
        assert [one["what"] for one in places].count("journal") == 1
        assert any(str(data / "shards" / "1") in one["where"] for one in places if one["what"] == "journal")
        _place(server, tenant, spread=2)
        _wait(server, tenant)
        _place(server, tenant, spread=1)
        _wait(server, tenant)
        assert server.get(f"/v1/tenants/{tenant}/residency")["places"] == places
        _stop(server)
    with sharded(data, "--shards", 1) as server:
        left = server.get(f"/v1/tenants/{tenant}/residency")["places"][-1]
        assert left == {"what": "journal", "where": "shard 1, which was removed", "region": None, "allowed": True}
