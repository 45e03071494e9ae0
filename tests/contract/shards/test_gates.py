"""Refused callers learn nothing, whichever shard they call, and each refusal is journaled once."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx

from tests.contract.shards.sharded import Sharded, sharded, until

if TYPE_CHECKING:
    from pathlib import Path

BOGUS = "tq_bogus_" + "x" * 30


def _shown(url: str, token: str | None, tenant: str, body: object) -> tuple[int, str, str | None]:
    """Return what distinguishes one tenant from another in the reply to an add."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    path = f"{url}/v1/tenants/{tenant}/queues/mail/messages"
    answer = httpx.post(path, headers=headers, json=body, timeout=30)
    return answer.status_code, answer.json()["detail"], answer.headers.get("tenantq-shard")


def test_refused_callers_cannot_tell_which_tenants_exist(three: Sharded) -> None:
    """Existing and unknown names look alike at every address, to strangers and to another tenant's key."""
    tenants = [three.tenant_on(shard) for shard in range(3)]
    other = three.key_of(three.tenant_on(0), "producer")
    for url in three.urls:
        for token in (None, BOGUS, other):
            for body in ({"messages": [{"body": "x"}]}, {"messages": "wrong"}):
                seen = {_shown(url, token, name, body) for name in (*tenants, "nobody-at-all")}
                assert len(seen) == 1, (url, token, seen)


def _poll(server: Sharded, token: str, request_id: str, **body: object) -> int:
    headers = {"Authorization": f"Bearer {token}", "X-Request-Id": request_id}
    return httpx.post(f"{server.shards[0]}/v1/poll", headers=headers, json=body, timeout=30).status_code


def _rows(server: Sharded, path: str, request_id: str) -> list[dict[str, Any]]:
    rows = server.get(path, params={"limit": 1000, "order": "newest"})["rows"]
    return [row for row in rows if row["request_id"] == request_id]


def test_refused_fleet_poll_is_journaled_once_and_gets_nothing(three: Sharded) -> None:
    """This holds for any caller, any number of shards, and any order of calls."""
    mine, other = three.tenant_on(0), three.tenant_on(1)
    for tenant in (mine, other):
        three.ask("POST", f"/v1/tenants/{tenant}/queues/mail/messages", json={"messages": [{"body": "x"}] * 4})
    token = three.key_of(mine, "consumer")
    assert _poll(three, BOGUS, "nobody-all", queue="mail") == 401
    assert _poll(three, BOGUS, "nobody-two", queue="mail", tenants=[mine, other]) == 401
    for turn in range(4):
        assert _poll(three, token, f"mine-{turn}", queue="mail", tenants=[mine, other]) == 403
        assert _poll(three, token, f"nobodys-{turn}", queue="mail", tenants=[mine, "nobody-at-all"]) == 403
    assert three.get(f"/v1/tenants/{mine}/queues/mail")["in_flight"] == 0
    for id in ("nobody-all", "nobody-two", "mine-0", "mine-1", "mine-2", "mine-3", "nobodys-0"):
        (row,) = until(lambda: _rows(three, "/v1/audit", id))  # noqa: B023  # called at once
        assert (row["count"], row["outcome"]) == (1, "denied")
    assert len(_rows(three, f"/v1/tenants/{other}/audit", "mine-3")) == 1
    assert _poll(three, token, "good", queue="mail", tenants=[mine]) == 200


def test_refusal_by_another_shard_is_in_the_tenants_audit_trail(three: Sharded) -> None:
    """A tenant's key calls a platform route, which the first shard serves."""
    tenant = three.tenant_on(2)
    token = three.key_of(tenant)
    headers = {"Authorization": f"Bearer {token}", "X-Request-Id": "not-for-tenants"}
    assert httpx.get(f"{three.shards[1]}/v1/tenants", headers=headers).status_code == 403
    (row,) = until(lambda: _rows(three, f"/v1/tenants/{tenant}/audit", "not-for-tenants"))
    assert (row["op"], row["error_code"], row["remote"]) == ("list_tenants", "forbidden", "127.0.0.1")
    assert len(_rows(three, "/v1/audit", "not-for-tenants")) == 1


def test_fleet_poll_does_not_wait_for_a_stalled_shard(three_processes: Sharded) -> None:
    """It returns what another shard leased, and what the stalled one leases later is released."""
    quick, slow = three_processes.tenant_on(0), three_processes.tenant_on(1)
    add = {"messages": [{"body": "x"}]}
    for tenant in (quick, slow):
        three_processes.ask("PUT", f"/v1/tenants/{tenant}/queues/still", json={})
    pid = three_processes.pid_of(1)
    fleet = {"queue": "still", "tenants": [quick, slow], "wait_ms": 20_000, "lease_ms": 600_000}
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(three_processes.ask, "POST", "/v1/poll", url=three_processes.shards[0], json=fleet)
        time.sleep(0.5)  # other processes start to wait
        os.kill(pid, signal.SIGSTOP)
        try:
            adding = pool.submit(
                three_processes.ask,
                "POST",
                f"/v1/tenants/{slow}/queues/still/messages",
                url=three_processes.shards[1],
                json=add,
            )
            three_processes.ask(
                "POST", f"/v1/tenants/{quick}/queues/still/messages", url=three_processes.shards[0], json=add
            )
            (got,) = waiting.result(8).json()["messages"]
        finally:
            os.kill(pid, signal.SIGCONT)
        assert got["tenant"] == quick
        assert adding.result().status_code == 200
    path = f"/v1/tenants/{slow}/queues/still/poll"
    again = until(lambda: three_processes.ask("POST", path, json={"wait_ms": 500}).json().get("messages"))
    assert (again[0]["body"], again[0]["attempt"]) == ("x", 1)


def test_strangers_cannot_tell_the_tenants_of_a_shard_that_is_down(tmp_path: Path) -> None:
    """Without a valid credential every name is refused alike; with one, its tenants look like unknown names."""
    with sharded(tmp_path / "data", "--shards", 2) as server:
        here, there = server.tenant_on(0), server.tenant_on(1)
        token, url, add = server.key_of(here), server.shards[0], {"messages": [{"body": "x"}]}
        pid = server.pid_of(1)
        os.kill(pid, signal.SIGKILL)
        seen = set()
        while server.ask("GET", f"/v1/tenants/{there}", url=url).status_code == 200:
            pass  # not noticed yet
        for name in (there, "nobody-at-all"):
            nobody = httpx.put(f"{url}/v1/tenants/{name}", json={}).status_code
            seen.add((_shown(url, None, name, add), _shown(url, token, name, add)[0], nobody))
        if server.ask("GET", f"/v1/tenants/{there}", url=url).status_code == 503:  # it was down all the time
            assert len(seen) == 1
            ((stranger, known, maker),) = seen
            assert (stranger[0], known, maker) == (401, 503, 401)
        assert _shown(url, None, here, add)[0] == 401
