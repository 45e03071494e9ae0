"""Adding, polling, settling, redriving and inspecting messages from the command line."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import COMMAND, SECONDS_MAX, read_until, run, serving
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served

DELIVERED_KEYS = {
    "id", "receipt", "body", "attempt", "priority", "attributes", "group", "added_at", "lease_until", "tenant", "queue",
}  # fmt: skip
BINARY = bytes(range(256))


# ---- adding ----


def test_adding_prints_the_id(server: Served) -> None:
    """All options reach the message."""
    options = (
        "--priority",
        7,
        "--ttl",
        "1h",
        "--group",
        "g",
        "--attribute",
        "a=1",
        "--attribute",
        "b=x=y",
        "--max-attempts",
        2,
    )
    id = server.ok("add", "one", "hello", *options).out.strip()
    facts = server.ok("message", "show", "one", id, "--json").json
    assert (facts["body"], facts["priority"], facts["group"], facts["max_attempts"]) == ("hello", 7, "g", 2)
    assert facts["attributes"] == {"a": "1", "b": "x=y"}
    assert facts["expires_at"] - facts["visible_at"] == 3_600_000
    late = server.ok("add", "one", "later", "--delay", "1h", "--json").json
    assert set(late) == {"id", "duplicate"}
    assert server.ok("message", "show", "one", late["id"], "--json").json["state"] == "delayed"


def test_idempotency_key_adds_once(server: Served) -> None:
    """The second add prints the first ID; another body with the same key is a conflict."""
    first = server.ok("add", "keyed", "hello", "--key", "k1", "--json").json
    second = server.ok("add", "keyed", "hello", "--key", "k1", "--json").json
    assert (first["duplicate"], second["duplicate"], first["id"]) == (False, True, second["id"])
    assert server.call("add", "keyed", "other", "--key", "k1").code == 7
    assert server.ok("queue", "show", "keyed", "--json").json["ready"] == 1


@pytest.mark.parametrize("argument", [(), ("-",)])
def test_body_from_stdin_is_kept_byte_for_byte(server: Served, argument: tuple[str, ...]) -> None:
    """This includes invalid UTF-8 and any line endings."""
    server.ok("add", "bytes", *argument, stdin=BINARY)
    (got,) = server.ok("poll", "bytes", "--ack", "--json").json_lines
    assert base64.b64decode(got["body_base64"]) == BINARY
    server.ok("add", "bytes", *argument, stdin=b"two\nlines\n")
    assert server.ok("poll", "bytes", "--ack", "--body").out == "two\nlines\n\n"


def test_add_from_json_lines(server: Served) -> None:
    """More than one batch keeps its order; options of a line override those of the command."""
    lines = [json.dumps({"body": f"n{number}", "key": f"key {number}"}) for number in range(1_500)]
    lines[3] = json.dumps({"body": {"any": ["JSON"]}, "priority": 9, "attributes": {"x": "y"}})
    lines[4] = json.dumps({"body_base64": base64.b64encode(BINARY).decode()})
    done = server.ok("add", "bulk", "--jsonl", "--priority", 2, stdin="\n".join([*lines, ""]).encode())
    assert done.out.startswith("added 1500 (0 duplicates, 0 refused) in ")
    got = server.ok("poll", "bulk", "--max", 6, "--json").json_lines
    assert [json.loads(got[0]["body"]), got[0]["priority"], got[0]["attributes"]] == [{"any": ["JSON"]}, 9, {"x": "y"}]
    assert [one.get("body") for one in got[1:]] == ["n0", "n1", "n2", None, "n5"]
    assert got[1]["priority"] == 2
    again = server.ok("add", "bulk", "--jsonl", "--json", stdin="\n".join(lines[:3]).encode()).json_lines
    assert [(one["line"], one["duplicate"], one["error"]) for one in again] == [
        (1, True, None),
        (2, True, None),
        (3, True, None),
    ]


def test_invalid_lines_are_named_and_the_others_added(server: Served) -> None:
    """The exit code is that of the first refused line."""
    lines = [
        b'{"body": "good"}',
        b"nonsense",
        b'["no object"]',
        b'{"body": "x", "colour": "red"}',
        b'{"body": "x", "priority": 10}',
        b'{"body": "x", "body_base64": "eA=="}',
        b'{"body_base64": "!"}',
        b'{"body": "also good"}',
    ]
    done = server.call("add", "mixed", "--jsonl", stdin=b"\n".join(lines))
    assert (done.code, done.out.partition(" in ")[0]) == (2, "added 2 (0 duplicates, 6 refused)")
    errors = done.err.splitlines()
    assert len(errors) == 6
    for number, (line, text) in enumerate(
        zip(
            errors,
            ("is not valid JSON", "is not an object", "'colour'", "priority: ", "give one", "not valid base64"),
            strict=True,
        ),
        2,
    ):
        assert line.startswith(f"tenantq: line {number}: ")
        assert text in line
    told = server.call("add", "mixed", "--jsonl", "--json", stdin=b"\n".join(lines[:2])).json_lines
    assert [told[0]["error"], told[1]["id"], told[1]["error"]["code"]] == [None, None, "invalid"]


def test_lines_are_numbered_as_in_the_input(server: Served) -> None:
    """Empty lines count, although nothing is added for them."""
    done = server.call("add", "numbers", "--jsonl", "--json", stdin=b'\n\n{"body": "x"}\n\nnonsense\n')
    assert [one["line"] for one in done.json_lines] == [3, 5]
    assert done.err.startswith("tenantq: line 5: ")


def test_add_from_plain_lines(server: Served) -> None:
    """Each line is a message; empty lines are skipped."""
    done = server.ok("add", "plain", "--lines", "--group", "g", stdin=b"one\ntwo\r\n\nthree")
    assert done.out.startswith("added 3 ")
    assert server.ok("poll", "plain", "--body", "--ack").out == "one\n"
    assert server.ok("poll", "plain", "--body", "--ack").out == "two\n"


@pytest.mark.parametrize(
    "options", [("body", "--jsonl"), ("--jsonl", "--lines"), ("--lines", "--key", "k"), ("x", "--attribute", "novalue")]
)
def test_contradicting_options_are_wrong_usage(server: Served, options: tuple[str, ...]) -> None:
    """Nothing is added."""
    assert server.call("add", "never", *options, stdin=b"x").code == 2
    assert server.call("queue", "show", "never").code == 3


# ---- polling and settling ----


def test_polling_prints_messages_for_people_and_for_scripts(server: Served) -> None:
    """Both formats contain what is needed to settle them."""
    server.ok("add", "polled", "hello", "--priority", 3, "--attribute", "a=b")
    id = server.ok("add", "polled", "bye").out.strip()
    described = server.ok("poll", "polled", "--lease", "1m").out
    assert "attempt 1, priority 3, leased for 1m, a=b\n  receipt " in described
    assert described.endswith("\n  hello\n")
    (got,) = server.ok("poll", "polled", "--json").json_lines
    assert (set(got), got["id"], got["tenant"], got["queue"]) == (DELIVERED_KEYS, id, "default", "polled")
    assert server.ok("poll", "polled", "--wait", "10ms").out == ""
    assert server.call("poll", "missing").code == 3


def test_terminal_control_characters_are_not_printed(server: Served) -> None:
    """Bodies are untrusted text. --body prints them raw."""
    server.ok("add", "evil", "\x1b[2Jgone\x9b1m", "--attribute", "a=\x1b]0;title\x07")
    shown = server.ok("queue", "peek", "evil").out + server.ok("poll", "evil", "--lease", "1ms").out
    assert "gone" in shown
    assert not any(character in shown for character in "\x1b\x9b\x07")
    assert server.ok("poll", "evil", "--wait", "5s", "--body").out == "\x1b[2Jgone\x9b1m\n"


def test_settling_by_receipt(server: Served) -> None:
    """Ack, nack, release and extend work; receipts can come from stdin."""
    server.ok("queue", "create", "settled", "--max-attempts", 2)
    server.ok("add", "settled", "--lines", stdin=b"a\nb\nc\nd\n")
    a, b, c, d = (one["receipt"] for one in server.ok("poll", "settled", "--max", 4, "--json").json_lines)
    assert server.ok("ack", "settled", a).out == "acked 1\n"
    assert server.ok("nack", "settled", b, "--delay", "1h", "--reason", "no luck").out == "nacked 1\n"
    assert server.ok("release", "settled", c).out == "released 1\n"
    extended = server.ok("extend", "settled", d, "--lease", "10m", "--json").json["results"]
    assert [(one["receipt"], one["ok"], one["error"]) for one in extended] == [(d, True, None)]
    assert isinstance(extended[0]["lease_until"], int)
    assert server.ok("extend", "settled", d, "--lease", "10m").out.startswith("extended 1 until 20")
    (again,) = server.ok("poll", "settled", "--json").json_lines
    assert (again["body"], again["attempt"]) == ("c", 1)
    both = f"{again['receipt']}\n{d}\n".encode()
    assert server.ok("ack", "settled", "-", stdin=both).out == "acked 2\n"


def test_lost_lease_is_exit_code_7_and_hides_no_other_outcome(server: Served) -> None:
    """Every receipt has its own outcome."""
    server.ok("add", "lost", "--lines", stdin=b"a\nb\n")
    a, b = (one["receipt"] for one in server.ok("poll", "lost", "--max", 2, "--json").json_lines)
    server.ok("ack", "lost", a)
    done = server.call("ack", "lost", a, b)
    assert (done.code, done.out) == (7, "acked 1\n")
    assert done.err.startswith(f"tenantq: {a}: ")
    assert done.err.endswith("[lease_lost]\n")
    results = server.call("nack", "lost", a, "--json").json["results"]
    assert results == [
        {"receipt": a, "ok": False, "error": {"code": "lease_lost", "detail": results[0]["error"]["detail"]}, "lease_until": None}
    ]  # fmt: skip


def test_following_a_queue(server: Served) -> None:
    """Messages are printed as they are added; an interrupt exits with 130, and printed messages are acked."""
    server.ok("queue", "create", "followed")
    process = subprocess.Popen(
        [COMMAND, "poll", "followed", "--follow", "--ack", "--body"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment(),
    )  # fmt: skip
    try:
        server.ok("add", "followed", "first")
        assert read_until(process, "first") == "first\n"
        server.ok("add", "followed", "second")
        assert read_until(process, "second") == "second\n"
        while server.ok("queue", "show", "followed", "--json").json["acked_total"] != 2:
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
        assert (out, err.strip()) == ("", "")
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130


def test_follow_waits_for_a_missing_queue(server: Served) -> None:
    """Without --follow, a missing queue is an error."""
    assert server.call("poll", "not-yet").code == 3
    process = subprocess.Popen(
        [COMMAND, "poll", "not-yet", "--follow", "--ack", "--body"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment(),
    )  # fmt: skip
    try:
        server.ok("add", "not-yet", "first")
        assert read_until(process, "first") == "first\n"
    finally:
        process.kill()
        process.communicate()


def test_closed_pipe_acks_only_what_was_printed(server: Served) -> None:
    """The command ends quietly, and unprinted messages are released at once."""
    server.ok("add", "piped", "--lines", stdin=b"".join(b"%06d %s\n" % (n, b"x" * 2_000) for n in range(200)))
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [COMMAND, "poll", "piped", "--max", "200", "--ack", "--body"],
        stdout=writer, stderr=subprocess.PIPE, text=True, env=server.environment(),
    )  # fmt: skip
    os.close(writer)
    assert process.communicate(timeout=SECONDS_MAX)[1] == ""
    figures = server.ok("queue", "show", "piped", "--json").json
    assert (figures["ready"], figures["acked_total"]) == (200, 0)


# ---- dead letters ----


def _die(server: Served, queue: str, count: int) -> None:
    server.ok("queue", "create", queue, "--max-attempts", 1)
    server.ok("add", queue, "--lines", stdin=b"job\n" * count)
    receipts = [one["receipt"] for one in server.ok("poll", queue, "--max", count, "--json").json_lines]
    server.ok("nack", queue, *receipts, "--reason", "it broke")


def test_redriving_dead_letters(server: Served) -> None:
    """A dry run counts them, then they move; filters and waiting for the end work."""
    _die(server, "broken", 5)
    assert server.ok("redrive", "broken", "--dry-run").out == "done: would move 5, skipped 0\n"
    assert server.ok("redrive", "broken", "--reason", "another", "--wait", "--json").json["moved"] == 0
    done = server.ok("redrive", "broken", "--limit", 2, "--wait", "--json").json
    assert set(done) == {"task", "state", "moved", "skipped", "dry_run", "reason"}
    assert (done["state"], done["moved"]) == ("done", 2)
    assert server.ok("redrive", "broken", "--status", done["task"], "--json").json == done
    id = server.ok("queue", "peek", "broken-dlq", "--max", 10, "--json").json["messages"][0]["id"]
    assert server.ok("redrive", "broken", "--id", id, "--wait", "--json").json["moved"] == 1
    figures = server.ok("queue", "show", "broken", "--json").json
    assert (figures["ready"], figures["dead"]) == (3, 2)


def test_a_slow_redrive_can_be_stopped(server: Served) -> None:
    """Messages it already moved stay moved. Whoever waits for it gets an exit code."""
    _die(server, "slow", 20)
    begun = server.ok("redrive", "slow", "--rate", 1, "--json").json
    assert begun["state"] == "running"
    stopped = server.ok("redrive", "slow", "--cancel", begun["task"], "--json").json
    assert stopped["state"] == "cancelled"
    assert server.call("redrive", "slow", "--status", begun["task"], "--wait").code == 1
    assert server.call("redrive", "slow", "--status", "nonsense").code == 3


def test_a_redrive_survives_kills(tmp_path: Path) -> None:
    """It continues after each kill, moves each message once, and can be waited for and read."""
    data_dir = tmp_path / "data"
    with serving(data_dir) as server:
        _die(server, "killed", 200)
        task = server.ok("redrive", "killed", "--rate", 50, "--json").json["task"]
        time.sleep(1)
    for _ in range(2):
        with serving(data_dir) as server:
            running = server.ok("redrive", "killed", "--status", task, "--json").json
            assert running["state"] == "running"
            assert 0 < running["moved"] < 200
            time.sleep(0.5)
    with serving(data_dir) as server:
        ended = server.ok("redrive", "killed", "--status", task, "--wait", "--json").json
        assert (ended["state"], ended["moved"], ended["skipped"]) == ("done", 200, 0)
        rows = server.ok("audit", "--action", "redrive", "--all", "--json").json_lines
        assert len([row for row in rows if row["message_id"]]) == 200
        figures = server.ok("queue", "show", "killed", "--json").json
        assert (figures["ready"], figures["dead"]) == (200, 0)
    with serving(data_dir) as server:
        assert server.ok("redrive", "killed", "--status", task, "--json").json == ended
    assert run("doctor", "--data-dir", data_dir).returncode == 0


def test_waiting_for_a_redrive_survives_a_restart(tmp_path: Path) -> None:
    """The command retries until a server answers at the address, and reports the end."""
    data_dir, address = tmp_path / "data", f"127.0.0.1:{free_port()}"
    with serving(data_dir, "--http", address) as server:
        _die(server, "waited", 60)
        waiting = subprocess.Popen(
            [COMMAND, "redrive", "waited", "--rate", "10", "--wait", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment(),
        )  # fmt: skip
        while not server.ok("queue", "show", "waited", "--json").json["ready"]:
            pass
    try:
        time.sleep(4)  # the retries of the SDK end earlier
        assert waiting.poll() is None
        with serving(data_dir, "--http", address):
            out, _ = waiting.communicate(timeout=SECONDS_MAX)
    finally:
        waiting.kill()
        waiting.communicate()
    assert (json.loads(out)["state"], json.loads(out)["moved"]) == ("done", 60)


# ---- one message ----


def test_show_and_trace_a_message(server: Served) -> None:
    """Facts are available while it is stored, the trace also afterwards."""
    _die(server, "looked", 1)
    (letter,) = server.ok("queue", "peek", "looked-dlq", "--json").json["messages"]
    assert "\tit broke\t" in server.ok("queue", "peek", "looked-dlq").out
    moved = server.call("message", "show", "looked", letter["id"])
    assert (moved.code, "the message is in the dead-letter queue 'looked-dlq'" in moved.err) == (3, True)
    shown = server.ok("message", "show", "looked-dlq", letter["id"]).out
    assert "dead.reason\tit broke\n" in shown
    assert "attempt 1  nacked " in shown
    assert shown.endswith("body\tjob\n")
    rows = server.ok("message", "trace", "looked", letter["id"], "--json").json["rows"]
    assert [row["op"] for row in rows][:2] == ["add", "poll"]
    assert {row["op"] for row in rows[2:]} == {"nack", "dead_letter"}
    assert "\tdead_letter\t" in server.ok("message", "trace", "looked", letter["id"]).out
    assert server.ok("message", "remove", "looked-dlq", letter["id"]).out == "removed 1\n"
    gone = server.call("message", "remove", "looked-dlq", letter["id"])
    assert (gone.code, gone.out) == (3, "removed 0\n")
    assert server.call("message", "show", "looked-dlq", letter["id"]).code == 3
    assert server.call("message", "show", "looked", "nonsense").code == 2


def test_results(server: Served) -> None:
    """A pending result is exit code 6, a completed one prints its value, a failed one is exit code 1."""
    from tenantq.client import Client  # noqa: PLC0415  # only here: the command line reports no results

    ids = [server.ok("add", "asked", body).out.strip() for body in ("good", "bad", "open")]
    assert server.call("message", "result", "asked", ids[0]).code == 6
    pending = server.call("message", "result", "asked", ids[0], "--json")
    assert (pending.code, pending.json["status"]) == (6, "pending")
    environment = server.environment()
    with Client(environment["TENANTQ_URL"], environment["TENANTQ_TOKEN"]) as client:
        good, bad = client.queue("asked").poll(2)
        good.ack({"answer": 42})
        bad.fail("it broke")
    assert server.ok("message", "result", "asked", ids[0]).out == '{"answer":42}\n'
    shown = server.ok("message", "result", "asked", ids[0], "--json").json
    assert shown == {
        "id": ids[0],
        "status": "completed",
        "value": '{"answer":42}',
        "value_hidden": False,
        "error": None,
    }
    failed = server.call("message", "result", "asked", ids[1], "--json")
    assert (failed.code, failed.json["status"], failed.json["error"]) == (1, "failed", "it broke")
    failed = server.call("message", "result", "asked", ids[1])
    assert (failed.code, failed.out, failed.err) == (1, "", "tenantq: the job failed: it broke\n")
    late = server.call("message", "result", "asked", ids[2], "--wait", "20ms")
    assert (late.code, late.out) == (6, "")


def test_viewer_sees_no_bodies(server: Served) -> None:
    """The output says that they are hidden."""
    create = ("key", "create", "v", "--tenant", "default", "--role", "viewer", "--quiet")
    token = server.ok(*create).out.strip()
    id = server.ok("add", "secret", "nobody may read this").out.strip()
    for arguments in (("queue", "peek", "secret"), ("message", "show", "secret", id)):
        assert "nobody may read this" not in server.ok(*arguments, TENANTQ_TOKEN=token).out
    (message,) = server.ok("queue", "peek", "secret", "--json", TENANTQ_TOKEN=token).json["messages"]
    assert (message["body_hidden"], "body" in message) == (True, False)


# ---- on a terminal ----


def test_empty_poll_says_that_the_queue_is_paused(server: Served) -> None:
    """It also says how to resume the queue. An empty queue that is not paused gets no such hint."""
    server.ok("queue", "create", "halted")
    assert server.run_on_terminal("poll", "halted") == (0, "no messages\n")
    server.ok("queue", "pause", "halted")
    code, shown = server.run_on_terminal("poll", "halted")
    assert (code, shown) == (
        0,
        "no messages: queue halted is paused; resume it with 'tenantq queue resume halted'\n",
    )
    assert server.run_on_terminal("poll", "halted", "--json") == (0, "no messages\n")


def test_message_acked_at_once_shows_no_lease(server: Served) -> None:
    """Its receipt is of no further use."""
    for body in ("one", "two"):
        server.ok("add", "brief", body)
    leased = server.ok("poll", "brief").out
    assert ("leased for 30s" in leased, "receipt " in leased) == (True, True)
    acked = server.ok("poll", "brief", "--ack").out
    assert ("lease" in acked, "receipt" in acked, acked.endswith("\n  two\n")) == (False, False, True)


def test_refused_line_is_shown_above_the_progress_bar(server: Served, tmp_path: Path) -> None:
    """The terminal line is cleared before the error is written."""
    lines = tmp_path / "lines"
    lines.write_bytes(b'{"body": "x"}\nnonsense\n')
    with lines.open("rb") as stdin:
        code, shown = server.run_on_terminal("add", "barred", "--jsonl", stdin=stdin)
    assert code == 2
    assert "\x1b[2Ktenantq: line 2: is not valid JSON" in shown
