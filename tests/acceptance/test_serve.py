"""The server as its operator sees it: starting, stopping, crashing, and everything that prevents a start."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tenantq.client import Client
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, call, environment, read_until, run, serving

if TYPE_CHECKING:
    from pathlib import Path


def test_first_start_shows_a_token_once(tmp_path: Path) -> None:
    """It is printed in a box on stdout and works. A second start shows none, and the first token still works."""
    with serving(tmp_path / "data", TENANTQ_ADMIN_TOKEN="") as first:
        (token,) = re.findall(r"^│ (tq_\w+) +│$", first.output, re.MULTILINE)
        assert "shown only once" in first.output
        first.ok("tenant", "list", TENANTQ_TOKEN=token)
        first.process.terminate()
        out, log = first.process.communicate(timeout=SECONDS_MAX)
        assert token not in out + log
    with serving(tmp_path / "data", TENANTQ_ADMIN_TOKEN="") as second:
        assert "tq_" not in second.output
        second.ok("tenant", "list", TENANTQ_TOKEN=token)


@pytest.mark.parametrize("shards", [1, 2])
def test_failed_first_starts_do_not_use_up_the_token(tmp_path: Path, shards: int) -> None:
    """The first successful start shows a token that works."""
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = f"127.0.0.1:{busy.getsockname()[1]}"
        for given in (("--http", taken), ("--rpc", taken), ("--tls-certificate", "none.pem", "--tls-key", "none.pem")):
            options = ("--data-dir", data, "--http", "127.0.0.1:0", "--shards", shards, *given)
            failed = run("serve", *options, TENANTQ_ADMIN_TOKEN="")
            assert failed.returncode in {2, 6}, failed
            assert "tq_" not in failed.stdout
    _shows_a_token_that_works(data, shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_token_that_could_not_be_printed_is_discarded(tmp_path: Path, shards: int) -> None:
    """The start fails with one line that says what to do, and the next start shows another token."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123  # a device
        failed = subprocess.run(
            [COMMAND, "serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0", "--shards", str(shards), "--log-level", "error"],
            stdout=full, stderr=subprocess.PIPE, timeout=SECONDS_MAX, check=False, env=environment(), text=True,
        )  # fmt: skip
    assert failed.returncode == 6, failed
    assert "cannot print the first administrator's token on stdout: No space left on device" in failed.stderr
    assert (failed.stderr.count("\n"), "Traceback" in failed.stderr) == (1, False), failed.stderr
    _shows_a_token_that_works(tmp_path / "data", shards)


def _shows_a_token_that_works(data_dir: Path, shards: int) -> None:
    with serving(data_dir, "--shards", shards, TENANTQ_ADMIN_TOKEN="") as served:
        (token,) = re.findall(r"^│ (tq_\w+) +│$", served.output, re.MULTILINE)
        assert f"--url {served.url} " in served.output
        served.ok("tenant", "list", TENANTQ_TOKEN=token)


def test_the_environment_sets_the_first_token(tmp_path: Path) -> None:
    """Then no secret is printed."""
    with serving(tmp_path / "data") as served:
        assert served.output == f"ready on {served.url}\n"
        served.ok("tenant", "list", TENANTQ_TOKEN=ADMIN_TOKEN)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_070_signal_stops_the_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """It exits with 0, waiting polls get a reply, and leases can be settled after a restart."""
    with serving(tmp_path / "data") as served:
        served.ok("add", "mail", "hello")
        served.ok("queue", "create", "other")
        receipt = served.ok("poll", "mail", "--json").json["receipt"]
        answers: list[tuple[int, object]] = []
        waiting = threading.Thread(target=_wait_on, args=(served.url, answers))
        waiting.start()
        _until_polls(served.url)
        served.process.send_signal(number)
        out, err = served.process.communicate(timeout=SECONDS_MAX)
        waiting.join(SECONDS_MAX)
    assert answers == [(200, {"messages": []})]
    assert (served.process.returncode, out) == (0, "")
    assert f"stopping because={number.name}" in err
    assert "Traceback" not in err
    with serving(tmp_path / "data") as again:
        assert again.ok("ack", "mail", receipt).out == "acked 1\n"


def _wait_on(url: str, answers: list[tuple[int, object]]) -> None:
    """Poll over plain HTTP: the SDK would poll again after an early reply."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=SECONDS_MAX)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/queues/other/poll", '{"wait_ms": 60000}', headers)
    reply = connection.getresponse()
    answers.append((reply.status, json.loads(reply.read())))
    connection.close()


def _until_polls(url: str) -> None:
    """Wait until the second poll has arrived."""
    with Client(url, ADMIN_TOKEN) as client:
        while 'tenantq_calls_total{action="poll"} 2.0' not in client.metrics():
            pass


def test_070_second_signal_stops_the_server_immediately(tmp_path: Path) -> None:
    """A client that never reads its reply delays the stop; the second signal does not wait for it."""
    with serving(tmp_path / "data") as served:
        served.ok("add", "mail", "hello")
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /v1/queues/mail/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            served.ok("queue", "show", "mail")  # the server has processed the earlier requests
            served.process.send_signal(signal.SIGTERM)
            assert served.process.stderr is not None
            for line in served.process.stderr:
                if "stopping" in line:
                    break
            served.process.send_signal(signal.SIGINT)
            served.process.communicate(timeout=SECONDS_MAX)
    assert served.process.returncode == 128 + signal.SIGINT
    with serving(tmp_path / "data") as again:
        assert again.ok("poll", "mail", "--body").out == "hello\n"


def test_leases_and_messages_survive_sigkill(tmp_path: Path) -> None:
    """A receipt from before still acks, and exactly the added messages are there."""
    with serving(tmp_path / "data") as served:
        for body in ("first", "second"):
            served.ok("add", "mail", body)
        receipt = served.ok("poll", "mail", "--lease", "10m", "--json").json["receipt"]
        served.process.kill()
        served.process.wait(SECONDS_MAX)
    with serving(tmp_path / "data") as again:
        assert again.ok("poll", "mail", "--max", "10", "--body").out == "second\n"
        assert again.ok("ack", "mail", receipt).out == "acked 1\n"
        assert again.call("ack", "mail", receipt).code == 7
        again.process.terminate()
        again.process.wait(SECONDS_MAX)
    assert call("doctor", "--data-dir", tmp_path / "data").code == 0


def test_follow_survives_a_server_restart(tmp_path: Path) -> None:
    """The command does not have to be restarted."""
    data = tmp_path / "data"
    with serving(data) as served:
        served.ok("add", "mail", "before")
        follower = subprocess.Popen(
            [COMMAND, "poll", "mail", "--follow", "--ack", "--body"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=served.environment(),
        )  # fmt: skip
        read_until(follower, "before")
        served.process.terminate()
        served.process.communicate(timeout=SECONDS_MAX)
    try:
        with serving(data, "--http", served.url.removeprefix("http://")) as again:
            again.ok("add", "mail", "after")
            assert read_until(follower, "after") == "after\n"
    finally:
        follower.kill()
        follower.communicate()


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """One line names the process that holds it, and the first server continues."""
    with serving(tmp_path / "data") as served:
        second = call("serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0")
        assert (second.code, second.out, second.err.count("\n")) == (6, "", 1)
        assert f"is in use by process {served.process.pid}" in second.err
        assert second.err.endswith("[unavailable]\n")
        served.ok("tenant", "list")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """One line says so, and the directory is released at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--data-dir", tmp_path / "data", "--http", address, TENANTQ_ADMIN_TOKEN=ADMIN_TOKEN)
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr.splitlines()[-1] == (
        f"tenantq: http: cannot listen on {address}: another process listens there; stop it, or choose another port"
        " with --http [unavailable]"
    )
    assert "Traceback" not in done.stderr
    with serving(tmp_path / "data"):
        pass


@pytest.mark.parametrize(
    ("options", "variables", "settings", "text"),
    [
        (("--http", "7070"), {}, "", "http: '7070' is not HOST:PORT [invalid]"),
        (("--durability", "never"), {}, "", "'never' is not one of 'fsync', 'os'"),
        (("--grace", "soon"), {}, "", "'soon' is not a duration such as 30s"),
        (("--config", "/nowhere.toml"), {}, "", "/nowhere.toml: No such file or directory"),
        ((), {"TENANTQ_SHARD__ROUND_MS": "0"}, "", "shard.round_ms: out of range (0, allowed: 1 to 10000)"),
        ((), {"TENANTQ_COLOUR": "red"}, "", "TENANTQ_COLOUR is no setting"),
        ((), {}, "colour = 'red'", "colour: unknown field"),
        ((), {}, "[shard]\nround_ms = 'x'", "round_ms"),
        ((), {}, "= nonsense", "settings file"),
        ((), {}, "[listener]\ncolour = 1", "listener.colour: unknown field"),
        ((), {}, "grace_ms = -5", "grace_ms: out of range (-5, allowed: 0 to"),
        ((), {"TENANTQ_ADMIN_TOKEN": "short"}, "", "TENANTQ_ADMIN_TOKEN: must have 16 to 512 characters"),
        ((), {"TENANTQ_ADMIN_TOKEN": "with spaces in the middle"}, "", "TENANTQ_ADMIN_TOKEN: must be printable ASCII"),
    ],
)
def test_invalid_setting_is_exit_code_2_and_named(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, Any], settings: str, text: str
) -> None:
    """Flag, environment or file: the error is one line, and no directory is created."""
    (tmp_path / "settings.toml").write_text(settings)
    given = ("--config", tmp_path / "settings.toml") if settings else ()
    done = call("serve", "--data-dir", tmp_path / "data", *given, *options, **variables)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.err.startswith("tenantq: ")
    assert text in done.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "variables", "code", "text"),
    [
        (("--http", "no.host.invalid:1"), {}, 6, "unknown host no.host.invalid"),
        (("--http", "192.0.2.1:1"), {}, 6, "it is not an address of this machine"),
        (("--tls-certificate", "/nowhere.pem", "--tls-key", "/nowhere.key"), {}, 2, "/nowhere.pem"),
    ],
)
def test_start_errors_are_one_line(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, Any], code: int, text: str
) -> None:
    """Invalid input exits with 2, other obstacles with 6, and there is no traceback."""
    done = call("serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0", *options, **variables)
    assert (done.code, done.out) == (code, ""), done.err
    line = done.err.splitlines()[-1]
    assert line.startswith("tenantq: ")
    assert text in line
    assert "Traceback" not in done.err


def test_unusable_data_directory_is_refused(tmp_path: Path) -> None:
    """Covers a file, a foreign directory and a path below a file; nothing in them changes."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "photo.jpg").write_text("x")
    for path, code, text in (
        (tmp_path / "file", 2, "is a file"),
        (tmp_path / "strange", 6, "no tenantq store"),
        (tmp_path / "file" / "below", 6, "check the path"),
    ):
        done = call("serve", "--data-dir", path, "--http", "127.0.0.1:0")
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err
        assert text in done.err
    assert (tmp_path / "strange" / "photo.jpg").read_text() == "x"
    assert not (tmp_path / "strange" / "db").exists()


def test_store_failure_ends_the_server(tmp_path: Path) -> None:
    """The call is not confirmed, one line says why the server stopped, and the exit code is 1."""
    program = (
        "import os, sys; from tenantq.cli.main import main; from tenantq.store.rocks import RocksStore\n"
        "from tenantq.errors import StoreFailed\n"
        "good = RocksStore.sync\n"
        "def sync(store):\n"
        f"    if os.path.exists({str(tmp_path / 'broken')!r}): raise StoreFailed('sync: the disk is gone')\n"
        "    return good(store)\n"
        "RocksStore.sync = sync\n"
        f"sys.argv = ['tenantq', 'serve', '--data-dir', {str(tmp_path / 'data')!r}, '--http', '127.0.0.1:0']; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TENANTQ_ADMIN_TOKEN=ADMIN_TOKEN),
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("ready on ").strip()
        (tmp_path / "broken").touch()
        lost = call("add", "mail", "hello", TENANTQ_URL=url, TENANTQ_TOKEN=ADMIN_TOKEN)
        assert (lost.code, lost.out) == (6, "")
        _, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1
    assert err.splitlines()[-1] == (
        "tenantq: the store failed and the server stopped: sync: the disk is gone [unavailable]"
    )
    assert "Traceback" not in err


def test_logs_are_text_or_json_lines(tmp_path: Path) -> None:
    """They go to stderr with time, level and event."""
    for kind in ("text", "json"):
        with serving(tmp_path / "data", "--log-format", kind) as served:
            served.process.terminate()
            _, err = served.process.communicate(timeout=SECONDS_MAX)
        lines = err.splitlines()
        if kind == "json":
            records = [json.loads(line) for line in lines]
            assert [record["message"] for record in records if record["logger"] == "tenantq"][-3:] == [
                "ready",
                "stopping",
                "stopped",
            ]
            assert all({"at", "level", "logger", "message"} <= set(record) for record in records)
            assert {record.get("url") for record in records} >= {served.url}
        else:
            assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) ", line) for line in lines)
            assert f"ready url={served.url}" in err
    with serving(tmp_path / "data", "--log-level", "error") as served:
        served.process.terminate()
        assert served.process.communicate(timeout=SECONDS_MAX) == ("", "")


def test_requests_are_logged_with_tenant_queue_caller_and_trace(tmp_path: Path) -> None:
    """A setting turns this on, with JSON for log collectors."""
    with serving(tmp_path / "data", "--log-format", "json", TENANTQ_GATES__REQUEST_LOG="all") as served:
        headers = {
            "Authorization": f"Bearer {ADMIN_TOKEN}",
            "X-Request-Id": "r-77",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        }
        url = f"{served.url}/v1/tenants/default/queues/mail/messages"
        httpx.post(url, json={"messages": [{"body": "x"}]}, headers=headers).raise_for_status()
        served.process.terminate()
        _, err = served.process.communicate(timeout=SECONDS_MAX)
    (line,) = [one for one in map(json.loads, err.splitlines()) if one.get("action") == "add"]
    wanted = {
        "logger": "tenantq.requests",
        "tenant": "default",
        "queue": "mail",
        "queue_id": 1,
        "request_id": "r-77",
        "outcome": "ok",
    }
    assert {name: line[name] for name in wanted} == wanted
    assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert line["principal"].startswith("key:")


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    """The effective setting shows where it came from."""
    (tmp_path / "settings.toml").write_text('log_level = "debug"\nlog_format = "json"\n[shard]\ndurability = "os"\n')
    options = ("--config", tmp_path / "settings.toml", "--log-level", "info")
    with serving(tmp_path / "data", *options, TENANTQ_LOG_FORMAT="text", TENANTQ_LOG_LEVEL="error") as served:
        served.process.terminate()
        _, err = served.process.communicate(timeout=SECONDS_MAX)
    assert "durability=os" in err
    assert "INFO" in err


def test_https_with_a_custom_certificate(tmp_path: Path) -> None:
    """The printed URL is https; clients that trust the authority connect, others learn why not."""
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    with serving(tmp_path / "data", "--tls-certificate", certificate, "--tls-key", key) as served:
        assert served.url.startswith("https://127.0.0.1:")
        served.ok("add", "mail", "hello", "--ca-file", certificate)
        refused = served.call("add", "mail", "hello")
        assert (refused.code, refused.err.count("\n")) == (6, 1)
        assert "certificate" in refused.err
        profile: dict[str, Any] = {"XDG_CONFIG_HOME": str(tmp_path), "TENANTQ_URL": "", "TENANTQ_TOKEN": ""}
        options = ("--url", served.url, "--token", ADMIN_TOKEN, "--ca-file", certificate)
        assert served.call("profile", "add", "safe", *options, **profile).code == 0
        served.ok("queue", "list", **profile)


def test_installed_command_prints_its_version() -> None:
    """The tests run the installed program."""
    assert subprocess.run([COMMAND, "--version"], capture_output=True, check=True, text=True).stdout.startswith(
        "tenantq "
    )
