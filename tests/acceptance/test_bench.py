"""``tenantq bench`` against a real server: what it counts, cleans up and refuses. Speed is not asserted."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, call, environment
from tests.processes import alive, descendants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.acceptance.command import Served

SHORT = ("--seconds", 0.2, "--warm-up", "50ms", "--in-flight", 8)
CASE_KEYS = {
    "case", "seconds", "calls", "messages", "messages_per_second", "p50_ms", "p90_ms", "p99_ms", "max_ms", "errors",
    "refusals", "calls_total", "messages_total", "ended", "texts",
}  # fmt: skip
REPORT_KEYS = {
    "format", "measured_at", "environment", "load", "cases", "neighbour", "interrupted", "left_behind", "compared",
    "unlike",
}  # fmt: skip


def _queues(server: Served, *options: object) -> set[str]:
    return {queue["name"] for queue in server.ok("queue", "list", "--json", *options).json["queues"]}


def _tenants(server: Served) -> set[str]:
    return {tenant["name"] for tenant in server.ok("tenant", "list", "--json").json["tenants"]}


def test_counts_equal_those_of_the_server(server: Served) -> None:
    """It uses an existing queue, whose totals stay, and leaves it empty."""
    server.ok("queue", "create", "lent")
    options = ("--case", "add", "--case", "cycle", "--case", "batch", "--batch", 10, "--coalesce", "both")
    report = server.ok("bench", *options, *SHORT, "--queue", "lent", "--reuse", "--json").json
    totals = {figures["case"]: figures["messages_total"] for figures in report["cases"]}
    assert list(totals) == ["add", "cycle", "add, each alone", "cycle, each alone", "add by 10", "cycle by 10"]
    for figures in report["cases"]:
        assert 0 < figures["messages"] <= figures["messages_total"]
        assert figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"] <= figures["max_ms"]
        assert (figures["errors"], figures["refusals"], figures["ended"]) == ({}, {}, "time")
    there = server.ok("queue", "show", "lent", "--json").json
    assert there["added_total"] == sum(totals.values())
    assert there["acked_total"] == sum(count for case, count in totals.items() if case.startswith("cycle"))
    assert there["ready"] + there["in_flight"] == 0
    assert (report["left_behind"], report["interrupted"]) == ([], False)


def test_own_queue_is_deleted_and_reports_can_be_compared(server: Served, tmp_path: Path) -> None:
    """The JSON report names everything, and a second run is compared with it case by case."""
    before = _queues(server)
    first = server.ok("bench", "--case", "add", "--case", "cycle", *SHORT, "--json")
    assert _queues(server) == before
    assert set(first.json) == REPORT_KEYS
    assert all(set(figures) == CASE_KEYS for figures in first.json["cases"])
    version = call("--version").out.split()[1]
    facts = first.json["environment"]
    assert (facts["server_version"], facts["client_version"], facts["durability"]) == (version, version, "fsync")
    assert (first.json["load"]["in_flight"], first.json["load"]["size"]) == (8, 100)
    file = tmp_path / "then.json"
    file.write_text(first.out)
    again = server.ok("bench", "--case", "add", *SHORT, "--compare", file, "--json").json
    (compared,) = again["compared"]
    now, then = again["cases"][0]["messages_per_second"], first.json["cases"][0]["messages_per_second"]
    assert (compared["case"], compared["messages_per_second_then"]) == ("add", then)
    assert compared["messages_per_second_ratio"] == pytest.approx(now / then, abs=0.001)
    assert again["unlike"] == []
    shown = server.call("bench", "--case", "cycle", *SHORT, "--size", "1KiB", "--compare", file)
    assert shown.code == 0
    assert shown.out.splitlines()[2].split("\t")[:2] == ["case", "messages/s"]
    assert "case\tmessages/s then\tnow\tratio\tp50 ratio\tp99 ratio" in shown.out
    assert shown.err == "tenantq: not comparable: size: 100 then, 1024 now\n"
    assert _queues(server) == before


@pytest.mark.parametrize(
    ("setting", "case", "code"),
    [("limits.write.ops_per_sec=5", "add", "rate_limited"), ("quotas.backlog=20", "batch", "quota_exceeded")],
)
def test_refusals_are_not_mistaken_for_a_slow_server(server: Served, setting: str, case: str, code: str) -> None:
    """They are counted and named, the exit code is 5, and the queue is deleted anyway."""
    name = code.replace("_", "-")
    server.ok("tenant", "create", name, "--set", setting)
    done = server.call("bench", "--case", case, *SHORT, "--tenant", name, "--json")
    assert done.code == 5
    for figures in done.json["cases"]:
        assert 0 < figures["refusals"][code] <= figures["calls_total"]
    assert "calls were refused by a limit, so the results show the limit, not the server" in done.err
    assert code in done.err
    assert _queues(server, "--tenant", name) == set()


def test_existing_queue_is_not_touched(server: Served) -> None:
    """Without --reuse it is refused; with --reuse it must be empty."""
    server.ok("add", "used", "hello")
    before = server.ok("queue", "show", "used", "--json").json
    refused = server.call("bench", *SHORT, "--queue", "used")
    assert (refused.code, refused.out) == (7, "")
    assert "queue used already exists" in refused.err
    refused = server.call("bench", *SHORT, "--queue", "used", "--reuse")
    assert (refused.code, refused.out) == (7, "")
    assert "holds 1 message" in refused.err
    assert {**server.ok("queue", "show", "used", "--json").json, "oldest_age_ms": 0} == {**before, "oldest_age_ms": 0}


def test_neighbour_case_compares_a_victim_alone_and_next_to_a_flood(server: Served) -> None:
    """Both tenants are erased afterwards."""
    before = _tenants(server)
    report = server.ok("bench", "--case", "neighbour", *SHORT, "--flood", 4, "--victim-rate", 100, "--json").json
    cases = {figures["case"]: figures for figures in report["cases"]}
    assert list(cases) == ["victim alone", "victim next to the flood", "flood"]
    assert cases["victim alone"]["calls"] == cases["victim next to the flood"]["calls"] == 20
    assert cases["flood"]["messages"] > 0
    assert report["neighbour"]["flood_per_second"] == cases["flood"]["messages_per_second"]
    alone, beside = cases["victim alone"]["p99_ms"], cases["victim next to the flood"]["p99_ms"]
    assert report["neighbour"]["p99_ratio"] == pytest.approx(beside / alone, rel=0.01)
    assert _tenants(server) == before
    erased = {one["tenant"] for one in server.ok("tenant", "erasures", "--json").json["erasures"]}
    assert {name.rsplit("-", 1)[0] for name in erased} >= {"bench-victim", "bench-flood"}


def test_missing_rights_are_reported_before_measuring(server: Served) -> None:
    """The neighbour case needs a platform administrator; creating a queue needs the right to create it."""
    before = _queues(server)
    server.ok("queue", "create", "lent-too")
    admin = server.ok("key", "create", "bench", "--role", "tenant-admin", "--json").json["token"]
    refused = server.call("bench", "--case", "all", *SHORT, TENANTQ_TOKEN=admin)
    assert (refused.code, refused.out) == (4, "")
    assert "platform administrator" in refused.err
    producer = server.ok("key", "create", "bench", "--role", "producer", "--json").json["token"]
    refused = server.call("bench", "--case", "add", *SHORT, TENANTQ_TOKEN=producer)
    assert (refused.code, refused.out) == (4, "")
    assert "with --queue and --reuse" in refused.err
    left = server.call("bench", "--case", "add", *SHORT, "--queue", "lent-too", "--reuse", TENANTQ_TOKEN=producer)
    assert left.code == 1
    assert "not cleaned up: messages in the queue lent-too" in left.err
    assert _queues(server) == before | {"lent-too"}


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--url", "http://192.0.2.1:7070"), 2, "Give --yes to confirm"),
        (("--url", "http://127.0.0.1:9"), 6, "http://127.0.0.1:9: cannot connect"),
        (("--in-flight", 1_025), 2, "1025 is not in the range"),
        (("--seconds", 3_601), 2, "is not in the range"),
        (("--size", "2MiB"), 2, "must be 1 to 1,048,576 bytes"),
        (("--size", "large"), 2, "is not a number of bytes"),
        (("--batch", 1_000, "--size", "9KiB"), 2, "bodies of a batch are limited"),
        (("--reuse",), 2, "--reuse requires --queue"),
        (("--queue", "no such name"), 2, "queue: invalid value"),
        (("--data-dir", "/"), 2, "require --local"),
        (("--local", "--token", "mine"), 2, "omit --token"),
        (("--compare", "/nowhere"), 2, "/nowhere: No such file"),
    ],
)
def test_invalid_options_are_a_one_line_error(
    server: Served, options: tuple[object, ...], code: int, text: str
) -> None:
    """They are refused before anything is sent."""
    refused = server.call("bench", "--case", "add", *options)
    assert (refused.code, refused.out) == (code, "")
    assert refused.err.startswith("tenantq: ")
    assert text in refused.err
    assert refused.err.count("\n") == 1


def test_remote_server_is_loaded_only_after_confirmation(server: Served) -> None:
    """On a terminal it asks; any answer but yes ends it, and nothing was sent."""
    code, shown = server.run_on_terminal("bench", "--url", "http://192.0.2.1:7070", typed=["n\n"])
    assert code == 1
    assert "This puts maximum load on the server http://192.0.2.1:7070. Continue? [y/N]:" in shown
    assert "nothing was sent" in shown


def test_terminal_shows_progress(server: Served) -> None:
    """A line shows the progress while it runs, and a table follows at the end."""
    code, shown = server.run_on_terminal("bench", "--case", "add", *SHORT)
    assert code == 0
    assert "of 0 s" in shown
    assert "messages/s" in shown


def _wait_for(found: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """Wait until ``find`` returns something; fails if the process ends first."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        if result := found():
            return result
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_ctrl_c_cleans_up_and_prints_the_results_so_far(server: Served) -> None:
    """The interrupted case is in the report, the next one is not, and the queue is deleted."""
    process = subprocess.Popen(
        [COMMAND, "bench", "--case", "add", "--case", "cycle", "--seconds", "60", "--warm-up", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment(),
    )  # fmt: skip

    def busy() -> bool:
        queues = server.ok("queue", "list", "--json").json["queues"]
        added: int = sum(queue["added_total"] for queue in queues if queue["name"].startswith("bench-"))
        return added > 200  # more than are in flight, so some got a reply

    _wait_for(busy, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert err == "tenantq: interrupted: showing results so far\n"
    report = json.loads(out)
    assert report["interrupted"]
    assert [(figures["case"], figures["ended"]) for figures in report["cases"]] == [("add", "interrupted")]
    assert report["cases"][0]["messages"] > 0
    assert not any(name.startswith("bench-") for name in _queues(server))


# ---- its own server ----


def _local(directory: Path, *options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "bench", "--local", "--data-dir", str(directory), *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(TENANTQ_ADMIN_TOKEN=ADMIN_TOKEN, TENANTQ_EXPORT__TARGET="s3://of-another-server"),
    )  # fmt: skip


def _serving(process: subprocess.Popen[str], directory: Path) -> set[int]:
    """Wait until the bench's own server has data, and return the processes."""
    _wait_for(lambda: list(directory.glob("tenantq-bench-*/data/*")), process)
    return descendants(process.pid)


def test_local_server_is_removed_at_the_end(tmp_path: Path) -> None:
    """It ignores the settings in the environment, and its data is deleted with it."""
    process = _local(tmp_path, "--case", "neighbour", *SHORT, "--flood", 2, "--durability", "os", "--json")
    started = _serving(process, tmp_path)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, err) == (0, "tenantq: durability is 'os': replies precede the sync\n")
    report = json.loads(out)
    assert (report["environment"]["durability"], len(report["cases"])) == ("os", 3)
    assert report["environment"]["file_system"]
    assert list(tmp_path.iterdir()) == []
    assert started
    assert alive(started) == set()


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_local_server_is_removed_on_a_signal(tmp_path: Path, signals: list[signal.Signals]) -> None:
    """One signal stops it cleanly, a second one immediately."""
    process = _local(tmp_path, "--seconds", 60)
    started = _serving(process, tmp_path)
    process.send_signal(signal.SIGSTOP)  # all signals are pending when it continues
    for number in signals:
        process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode - 128 in signals
    assert list(tmp_path.iterdir()) == []
    assert started
    assert alive(started) == set()
