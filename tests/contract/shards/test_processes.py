"""The processes of a server with several shards: how the end of one affects the others, and changing their number."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest

from tenantq.pipeline.reconciliation import read_counters
from tenantq.store.shard_directories import shard_dirs
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, call, environment, read_until
from tests.contract.shards.sharded import Sharded, sharded, until
from tests.processes import alive, descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Producer:
    """Adds messages one by one, and remembers which were confirmed."""

    def __init__(self, server: Sharded, tenant: str, token: str) -> None:
        self.confirmed: list[str] = []
        self.failures: list[tuple[int, str]] = []
        self._server = server
        self._tenant = tenant
        self._token = token
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        path = f"/v1/tenants/{self._tenant}/queues/load/messages"
        number = 0
        with httpx.Client(headers={"Authorization": f"Bearer {self._token}"}, timeout=30) as client:
            while not self._over.is_set():
                number += 1
                body = f"{self._tenant} {number}"
                url = self._server.urls[0]
                try:
                    reply = client.post(url + path, json={"messages": [{"body": body}]})
                except httpx.TransportError:
                    continue  # the called shard is the killed one
                if reply.status_code == 200:
                    self.confirmed.append(body)
                else:
                    self.failures.append((reply.status_code, reply.headers.get("retry-after", "")))


def _bodies(server: Sharded, tenant: str) -> set[str]:
    found: set[str] = set()
    path = f"/v1/tenants/{tenant}/queues/load/peek"
    cursor: str | None = None
    while True:
        page = server.ask("POST", path, json={"limit": 1000} | ({"cursor": cursor} if cursor else {})).json()
        found |= {one["body"] for one in page["messages"]}
        cursor = page.get("cursor")
        if cursor is None:
            return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    """Return a server of two shards, one of which may be killed."""
    with sharded(tmp_path_factory.mktemp("two") / "data", "--shards", 2) as server:
        yield server


def test_killed_shard_restarts_without_affecting_others(two: Sharded) -> None:
    """Nothing confirmed is lost; its tenants get 503 meanwhile, and other tenants continue."""
    server = two
    tenants = [server.tenant_on(0), server.tenant_on(1)]
    tokens = [server.key_of(tenant) for tenant in tenants]
    with Producer(server, tenants[0], tokens[0]) as other, Producer(server, tenants[1], tokens[1]) as own:
        for _ in range(2):
            before = len(own.confirmed)
            until(lambda: len(own.confirmed) > before + 20)  # noqa: B023  # called at once
            gone = server.kill(1)
            seen = len(other.confirmed)
            until(lambda: own.failures and len(other.confirmed) > seen + 20)  # noqa: B023  # the same
            until(lambda: _is_up(server, 1))
            assert server.pid_of(1) != gone
            own.failures.clear()
    assert other.failures == []
    for tenant, producer in zip(tenants, (other, own), strict=True):
        assert set(producer.confirmed) <= _bodies(server, tenant)
    assert {status for status, _ in own.failures} <= {503}


def test_shard_that_is_stalled_for_too_long_is_restarted(tmp_path: Path) -> None:
    """Everything confirmed is there again, in a new process."""
    config = tmp_path / "tenantq.toml"
    config.write_text("[shards]\nstalled_ms = 3000\n")
    with sharded(tmp_path / "data", "--shards", 2, "--config", config) as server:
        tenant = server.tenant_on(1)
        path = f"/v1/tenants/{tenant}/queues/load/messages"
        assert server.ask("POST", path, json={"messages": [{"body": "kept"}]}).status_code == 200
        stalled = server.pid_of(1)
        os.kill(stalled, signal.SIGSTOP)
        until(lambda: not alive({stalled}))
        until(lambda: _is_up(server, 1))
        assert server.pid_of(1) != stalled
        assert _bodies(server, tenant) == {"kept"}


def _is_up(server: Sharded, shard: int) -> bool:
    shown: dict[str, Any] = server.get("/readyz")["details"]["shards"]
    return bool(shown[str(shard)]["ready"])


def test_tenants_of_a_shard_that_is_down_are_unavailable_at_once(two: Sharded) -> None:
    """An unknown name may belong to the silent shard, so it is never given to two tenants."""
    server = two
    here, there = server.tenant_on(0), server.tenant_on(1)
    pid = server.pid_of(1)
    os.kill(pid, signal.SIGSTOP)  # it cannot restart before it has ended
    os.kill(pid, signal.SIGKILL)
    url = server.shards[0]
    down = until(lambda: (one := server.ask("GET", f"/v1/tenants/{there}", url=url)).status_code == 503 and one)
    assert (down.json()["code"], down.headers["retry-after"]) == ("unavailable", "1")
    statuses = {
        server.ask(method, path, url=url, json={}).status_code
        for method, path in (
            ("PUT", "/v1/tenants/brand-new"),
            ("GET", "/v1/tenants/brand-new"),
            ("PUT", f"/v1/tenants/{there}"),
        )
    }
    assert server.ask("GET", f"/v1/tenants/{here}", url=url).status_code == 200
    until(lambda: _is_up(server, 1))
    assert statuses <= {503, 404, 201, 200}
    made = until(lambda: (one := server.ask("PUT", "/v1/tenants/brand-new", json={})).status_code < 300 and one)
    assert [one["name"] for one in server.get("/v1/tenants")["tenants"]].count("brand-new") == 1
    assert made.json()["name"] == "brand-new"


def test_shard_that_keeps_dying_ends_the_server(tmp_path: Path) -> None:
    """The exit code is 1, one line names it, and no process is left."""
    with sharded(tmp_path / "data", "--shards", 2) as server:
        process = server.served.process
        gone: set[int] = set()
        while process.poll() is None:
            for pid in descendants(process.pid) - gone:
                if _is_shard(pid, tmp_path / "data" / "shards" / "1"):
                    os.kill(pid, signal.SIGKILL)
                    gone.add(pid)
            time.sleep(0.01)
        _, log = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert log.splitlines()[-1].startswith("tenantq: shard 1 keeps dying")
    assert len(gone) == 6


def _is_shard(pid: int, data_dir: Path) -> bool:
    try:
        return str(pid) == (data_dir / "lock").read_text().strip()
    except OSError:
        return False


def test_70_signal_stops_all_shards_cleanly(tmp_path: Path) -> None:
    """Waiting polls get an empty reply, the exit code is 0, and every journal is exported to its end."""
    with sharded(tmp_path / "data", "--shards", 2) as server:
        tenant = server.tenant_on(1)
        server.ask("POST", f"/v1/tenants/{tenant}/queues/kept/messages", json={"messages": [{"body": "kept"}]})
        server.ask("PUT", f"/v1/tenants/{tenant}/queues/mail", json={})
        assert server.ask("POST", "/v1/backups", json={"name": "night"}).status_code == 201
        answers: list[httpx.Response] = []
        path = f"/v1/tenants/{tenant}/queues/mail/poll"
        waiting = threading.Thread(
            target=lambda: answers.append(server.ask("POST", path, url=server.shards[0], json={"wait_ms": 20_000}))
        )
        waiting.start()
        until(lambda: 'tenantq_requests_in_flight{shard="1"} 0' in server.ask("GET", "/metrics").text)
        time.sleep(0.3)
        server.served.process.send_signal(signal.SIGTERM)
        out, log = server.served.process.communicate(timeout=SECONDS_MAX)
        waiting.join()
    assert (server.served.process.returncode, out) == (0, "")
    assert (answers[0].status_code, answers[0].json()) == (200, {"messages": []})
    assert "stopped" in log
    for shard in ("0", "1"):
        assert list((tmp_path / "data" / "journal").glob(f"date=*/hour=*/shard={shard}/*.parquet"))
    _examine(tmp_path / "data", tenant)
    _restore(tmp_path / "data-backups", tmp_path / "restored", tmp_path / "data" / "audit_key", tenant)


def _restore(backups: Path, data: Path, audit_key: Path, tenant: str) -> None:
    """Check that a backup contains all shards: verified, restored and served as a whole, or not at all."""
    assert "of 2 shards" in call("backup", "verify", "--from", backups / "night").out
    restored = call("backup", "restore", "--from", backups / "night", "--data-dir", data, "--audit-key", audit_key)
    assert restored.code == 0, restored.err
    assert call("audit", "verify", "--data-dir", data).code == 0
    assert [(tenant, "kept") in read_counters("0", path).queues for path in shard_dirs(data)] == [False, True]
    (backups / "shards" / "1" / "night").rename(backups / "shards" / "1" / "moved")
    half = call("backup", "restore", "--from", backups / "night", "--data-dir", data.with_name("half"))
    assert (half.code, data.with_name("half").exists()) == (3, False)


def _examine(data: Path, tenant: str) -> None:
    """Check that commands on a data directory cover all its shards, and find damage in any."""
    examined = call("doctor", "--data-dir", data, "--json")
    assert (examined.code, examined.json["figures"]["tenants"] >= 3) == (0, True)
    verified = call("audit", "verify", "--data-dir", data, "--json")
    assert verified.code == 0, verified.out
    assert [one["shard"] for one in verified.json["shards"]] == ["0", "1"]
    ends = [one["end"] for one in verified.json["shards"]]
    assert call("audit", "verify", "--data-dir", data, *(f"--known={end}" for end in ends)).code == 0
    counters = [read_counters("0", path).queues for path in shard_dirs(data)]
    assert [(tenant, "mail") in one for one in counters] == [False, True]
    shutil.copytree(data, data.with_name("copied"))
    (segment,) = data.with_name("copied").glob("journal/date=*/hour=*/shard=1/*.parquet")
    segment.unlink()
    wrong = call("audit", "verify", "--data-dir", data.with_name("copied"), "--json")
    assert (wrong.code, {one["where"] for one in wrong.json["findings"]}) == (1, {"shard 1"})
    marker = data.with_name("copied") / "shards" / "1" / "heart"
    marker.write_bytes(bytes(len(marker.read_bytes())))
    (data.with_name("copied") / "shards" / "1" / "db" / "CURRENT").unlink()
    hurt = call("doctor", "--data-dir", data.with_name("copied"), "--json")
    assert (hurt.code, {one["shard"] for one in hurt.json["findings"]}) == (1, {"1"})


def test_shards_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    """They stop within seconds, whatever is in flight; the next server waits for that."""
    with sharded(tmp_path / "data", "--shards", 2) as server:
        shards = descendants(server.served.process.pid)
        host, _, port = server.shards[1].removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"PUT /v1/tenants/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            until(
                lambda: (
                    'tenantq_http_connections{shard="1"} 1' in server.ask("GET", "/metrics", url=server.shards[0]).text
                )
            )
            server.served.process.kill()
            with sharded(tmp_path / "data") as again:
                assert len(again.shards) == 2
                assert not alive(shards)


def test_second_signal_stops_all_shards_immediately(tmp_path: Path) -> None:
    """The exit code is 128 plus the signal number, and no shard is left."""
    with sharded(tmp_path / "data", "--shards", 2, "--grace", "30s") as server:
        tenant = server.tenant_on(1)
        shards = descendants(server.served.process.pid)
        host, _, port = server.shards[1].removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                f"POST /v1/tenants/{tenant}/queues/q/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode()
            )
            time.sleep(0.2)
            server.served.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert server.served.process.poll() is None
            server.served.process.send_signal(signal.SIGINT)
            server.served.process.wait(SECONDS_MAX)
    assert server.served.process.returncode == 128 + signal.SIGINT
    until(lambda: not alive(shards))


def test_shard_count_grows_and_shrinks_only_without_tenants(tmp_path: Path) -> None:
    """Nothing moves or is lost, the number is remembered, and fewer are refused if a tenant would be left behind."""
    data = tmp_path / "data"
    with sharded(data) as one:
        one.ask("PUT", "/v1/tenants/old-tenant", json={})
        one.ask("POST", "/v1/tenants/old-tenant/queues/mail/messages", json={"messages": [{"body": "kept"}]})
        assert len(one.shards) == 1
        _stop(one)
    with sharded(data, "--shards", 3) as three:
        assert three.get("/v1/tenants/old-tenant")["id"] == 2
        got = three.ask("POST", "/v1/tenants/old-tenant/queues/mail/poll", url=three.shards[2], json={}).json()
        assert [message["body"] for message in got["messages"]] == ["kept"]
        moved = three.tenant_on(0)
        three.ask("PUT", f"/v1/cluster/tenants/{moved}", json={"shard": 2})
        until(lambda: not three.get(f"/v1/cluster/tenants/{moved}")["moves"])
        shards = descendants(three.served.process.pid)
        three.served.process.kill()
        until(lambda: not alive(shards))  # each has stopped on its own
    assert call("serve", "--data-dir", data / "shards" / "1", "--http", "127.0.0.1:0").code == 2
    refused = call("serve", "--data-dir", data, "--http", "127.0.0.1:0", "--shards", 2)
    assert refused.code == 7
    assert "shard 2 has the tenant tenant-" in refused.err
    with sharded(data) as three:
        assert len(three.shards) == 3
        for one in three.get("/v1/tenants")["tenants"]:
            if one["id"] >> 26 or one["name"] == moved:
                name = one["name"]
                body = {"confirm": name, "reason": "because a test says so"}
                assert three.ask("DELETE", f"/v1/tenants/{name}", json=body).status_code == 200
        _stop(three)
    with sharded(data, "--shards", 1) as one:
        assert len(one.get("/v1/topology")["shards"]) == 1
        assert "old-tenant" in {tenant["name"] for tenant in one.get("/v1/tenants")["tenants"]}
        assert one.ask("GET", f"/v1/tenants/{moved}").status_code == 404


def _stop(server: Sharded) -> None:
    server.served.process.send_signal(signal.SIGTERM)
    assert server.served.process.wait(SECONDS_MAX) == 0


def test_regions_decide_where_a_tenant_is_placed(tmp_path: Path) -> None:
    """It is placed in an allowed region or refused; neither its settings nor a shard's new region move its contents."""
    data, regions = tmp_path / "data", '["eu", "us"]'
    with sharded(data, "--shards", 2, TENANTQ_SHARDS__REGIONS=regions) as server:
        assert [one["region"] for one in server.get("/v1/topology")["shards"]] == ["eu", "us"]
        for number in range(4):
            for shard, region in enumerate(("eu", "us")):
                made = server.ask("PUT", f"/v1/tenants/{region}-{number}", json={"regions": [region]})
                assert made.json()["id"] >> 26 == shard
        nowhere = server.ask("PUT", "/v1/tenants/lost", json={"regions": ["asia"]})
        assert (nowhere.status_code, nowhere.json()["code"]) == (422, "invalid")
        assert server.ask("GET", "/v1/tenants/lost").status_code == 404
        moved = server.ask("PUT", "/v1/tenants/us-1", json={"regions": ["eu"]})
        assert (moved.status_code, moved.json()["code"]) == (409, "conflict")
        assert "migrate" in moved.json()["detail"]
        _recreates_an_erased_tenant_elsewhere(server)
        token = server.key_of("eu-1")
        _stop(server)
    with sharded(data, TENANTQ_SHARDS__REGIONS='["us", "us"]') as server:
        _refuses_contents_outside_their_region(server, "eu-1", token)


def _recreates_an_erased_tenant_elsewhere(server: Sharded) -> None:
    """Check that a name is free as soon as its tenant is deleted, on any shard, and is given once."""
    for number in range(3):
        path = f"/v1/tenants/again-{number}"
        server.ask("PUT", path, json={"regions": ["us"]})
        body = {"confirm": f"again-{number}", "reason": "because a test says so"}
        with ThreadPoolExecutor(1) as pool:
            deleting = pool.submit(server.ask, "DELETE", path, json=body)
            again = until(
                lambda: (
                    (one := server.ask("PUT", path, url=server.shards[0], json={"regions": ["eu"]})).status_code  # noqa: B023  # called at once
                    != 409
                    and one
                )
            )
            assert (again.status_code, again.json()["id"] >> 26) == (201, 0), again.text
            assert deleting.result().status_code == 200
        assert [server.ask("GET", path, url=url).json()["id"] >> 26 for url in server.urls] == [0, 0, 0]
    names = [one["name"] for one in server.get("/v1/tenants", params={"limit": 1000})["tenants"]]
    assert len(names) == len(set(names))


def _refuses_contents_outside_their_region(server: Sharded, tenant: str, token: str) -> None:
    """Check that contents are neither read nor written by any call, refusals are journaled, and new regions help."""
    add = {"messages": [{"body": "x"}]}
    asked: list[tuple[str, dict[str, Any], str]] = [
        (f"/v1/tenants/{tenant}/queues/mail/messages", add, ADMIN_TOKEN),
        (f"/v1/tenants/{tenant}/queues/mail/poll", {}, ADMIN_TOKEN),
        ("/v1/queues/mail/messages", add, token),
        ("/v1/queues/mail/messages", add, token),  # its tenant is known by now
        ("/v1/poll", {"queue": "mail", "tenants": [tenant]}, ADMIN_TOKEN),
        ("/v1/poll", {"queue": "mail", "tenants": [tenant, "us-1"]}, ADMIN_TOKEN),
    ]
    for url in server.urls:
        for path, body, who in asked:
            refused = server.ask("POST", path, url=url, token=who, json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "conflict"), path
            assert "regions" in refused.json()["detail"]
        nobody = server.ask("POST", f"/v1/tenants/{tenant}/queues/mail/messages", url=url, token=token[:-1], json=add)
        assert nobody.status_code == 401  # unauthorized callers learn nothing
        assert server.ask("GET", f"/v1/tenants/{tenant}", url=url).status_code == 200
        good = server.ask("POST", "/v1/tenants/us-1/queues/mail/messages", url=url, json=add)
        assert good.status_code == 200
        every = server.ask("POST", "/v1/poll", url=url, json={"queue": "mail"})  # other tenants' messages are delivered
        assert [one["tenant"] for one in every.json()["messages"]] == ["us-1"]
    _refuses_before_the_body(server.shards[0], tenant)
    noted = until(lambda: _refused(server, tenant) >= len(asked) * len(server.urls) + 1)
    assert noted
    assert _refused(server, tenant) == len(asked) * len(server.urls) + 1
    assert server.ask("PUT", f"/v1/tenants/{tenant}", json={"regions": ["us"]}).status_code == 200
    for url in server.urls:
        for path, body, who in asked[:4]:
            assert server.ask("POST", path, url=url, token=who, json=body).status_code == 200


def _refused(server: Sharded, tenant: str) -> int:
    rows = server.get(f"/v1/tenants/{tenant}/audit", params={"limit": 100})["rows"]
    return sum(row["count"] for row in rows if row["error_code"] == "conflict")


def _refuses_before_the_body(url: str, tenant: str) -> None:
    """Check that the tenant's own shard does not even request the body of an authenticated caller."""
    asked = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    asked.putrequest("POST", f"/v1/tenants/{tenant}/queues/mail/messages")
    asked.putheader("Authorization", f"Bearer {ADMIN_TOKEN}")
    asked.putheader("Content-Length", "1000")
    asked.putheader("Expect", "100-continue")
    asked.endheaders()  # the body is neither sent nor waited for
    reply = asked.getresponse()
    assert (reply.status, b"allows the regions" in reply.read()) == (409, True)
    asked.close()


def test_start_errors_are_one_line(tmp_path: Path) -> None:
    """Covers a directory in use, invalid settings and an address in use; no shard is left running."""
    with sharded(tmp_path / "data", "--shards", 2) as server:
        for options, code, text in (
            (
                ("--data-dir", tmp_path / "data", "--http", "127.0.0.1:0"),
                6,
                f"is in use by process {server.served.process.pid};",
            ),
            (
                ("--data-dir", tmp_path / "new", "--http", server.url.removeprefix("http://"), "--shards", 2),
                6,
                "cannot listen",
            ),
        ):
            ended = _ends(*options)
            assert ended.returncode == code
            (line,) = [line for line in ended.stderr.splitlines() if line.startswith("tenantq: ")]
            assert text.lower() in line.lower()
    ended = _ends("--data-dir", tmp_path / "new", "--shards", 2, TENANTQ_SHARDS__REGIONS='["eu"]')
    assert (ended.returncode, "Set one per shard." in ended.stderr) == (2, True)


def _ends(*options: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "serve", *map(str, options)],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env=environment(**{"TENANTQ_HTTP": "127.0.0.1:0", **variables}),
    )  # fmt: skip


def test_first_token_is_shown_once_and_logs_name_the_shard(tmp_path: Path) -> None:
    """There is one box for all shards, and the token works through each."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--shards", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        output = read_until(process, "ready on ")
        url = output.splitlines()[-1].removeprefix("ready on ")
        (token,) = [word for word in output.split() if word.startswith("tq_")]
        shown = httpx.get(f"{url}/v1/topology", headers={"Authorization": f"Bearer {token}"}).json()["shards"]
        host = url.rpartition(":")[0]
        for one in shown:
            listed = httpx.get(f"{host}{one['address']}/v1/tenants", headers={"Authorization": f"Bearer {token}"})
            assert [tenant["name"] for tenant in listed.json()["tenants"]] == ["default"]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, token in log) == (0, False)
    assert {"shard=0", "shard=1"} <= set(log.split())
