"""The doctor as a user runs it: exit codes, tables, JSON."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from rocksdict import WriteBatch

from tenantq import Client
from tenantq.store.keys import after, queue_prefix
from tenantq.store.rocks import RocksStore
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, call, run, serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that a demo has filled."""
    path = tmp_path_factory.mktemp("demo") / "data"
    assert run("demo", "--data-dir", path, "--http", "127.0.0.1:0", "--seconds", 1).returncode == 0
    return path


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Path:
    """Return a copy of it that the test may damage."""
    subprocess.run(["cp", "-r", str(template), str(tmp_path / "data")], check=True)
    return tmp_path / "data"


def _lose_a_row(path: Path) -> None:
    """Remove the loud tenant's first message from the delivery order, behind the engine's back."""
    mail = queue_prefix(4, 1)  # the fourth tenant after default, acme and globex
    store = RocksStore(path)
    batch = WriteBatch(raw_mode=True)
    batch.delete(store.scan(store.vi, mail, after(mail), 1)[0], store.vi.handle)
    store.write(batch)
    store.sync()
    store.close()


def test_clean_store_is_exit_code_0(data: Path) -> None:
    """The figures and the verdict are printed."""
    done = call("doctor", "--data-dir", data)
    assert (done.code, done.err) == (0, "")
    assert "tenants\t4\n" in done.out
    assert done.out.endswith(f"{data}: clean\n")


def test_drift_is_exit_code_1_and_named(data: Path) -> None:
    """The finding has its kind, tenant, queue and a sentence."""
    _lose_a_row(data)
    done = call("doctor", "--data-dir", data)
    assert (done.code, done.err) == (1, "")
    assert "index\tloud-corp/mail 0" in done.out
    assert "The message is waiting but is missing from the delivery order." in done.out
    assert "The counter ready of priority 0 is" in done.out
    assert done.out.endswith(f"{data}: 2 findings\n")


def test_damaged_files_are_exit_code_1_and_named(data: Path) -> None:
    """Unreadable bytes are a finding, not a traceback."""
    for table in (data / "db").glob("*.sst"):
        table.write_bytes(table.read_bytes()[:50])
    done = call("doctor", "--data-dir", data)
    assert (done.code, done.err) == (1, "")
    assert "\ndamaged\t" in done.out


def test_json_report_has_the_same_exit_codes(data: Path) -> None:
    """It is one object on stdout."""
    clean = call("doctor", "--data-dir", data, "--json")
    assert clean.code == 0
    assert json.loads(clean.out)["clean"] is True
    _lose_a_row(data)
    found = call("doctor", "--json", TENANTQ_DATA_DIR=str(data))
    shown = json.loads(found.out)
    assert (found.code, shown["clean"], shown["findings_total"]) == (1, False, len(shown["findings"]))
    assert {finding["kind"] for finding in shown["findings"]} == {"index", "counters"}
    assert shown["figures"]["messages"] > 0


def test_running_server_under_load_is_examined_and_verified(tmp_path: Path) -> None:
    """Every checkpoint is consistent, the server keeps its lock, and nothing is left in its directory."""
    data = tmp_path / "data"
    with serving(data, TENANTQ_EXPORT__EVERY_MS="100", TENANTQ_EXPORT__KEEP_RECORDS="0") as served:
        over, begun = threading.Event(), threading.Event()

        def work() -> None:
            with Client(served.url, token=ADMIN_TOKEN, timeout_ms=60_000) as client:
                queue = client.queue("mail")
                while not over.is_set():
                    queue.add_many([os.urandom(5_000) for _ in range(20)])
                    begun.set()
                    for message in queue.poll(max=15):
                        message.ack()

        with ThreadPoolExecutor(1) as threads:
            at_work = threads.submit(work)
            try:
                assert begun.wait(SECONDS_MAX)
                for _ in range(3):
                    done = [
                        call(*command, "--data-dir", data, "--json") for command in (("doctor",), ("audit", "verify"))
                    ]
                    assert [(one.code, one.err) for one in done] == [(0, ""), (0, "")], done
                    assert json.loads(done[0].out)["figures"]["messages"] > 0
                    assert json.loads(done[1].out)["live_records"] > 0
            finally:
                over.set()
        at_work.result()
        assert not list(data.glob("checkpoint*"))
        assert call("serve", "--data-dir", data, "--http", "127.0.0.1:0").code == 6
    assert call("doctor", "--data-dir", data).code == 0


def test_unusable_files_are_exit_code_6_and_named(data: Path) -> None:
    """They are not a finding, because nothing was examined."""
    (data / "lock").unlink()
    (data / "lock").mkdir()
    for command in (("doctor",), ("audit", "verify")):
        done = call(*command, "--data-dir", data)
        assert (done.code, done.out) == (6, "")
        told = f"{data / 'lock'}: Is a directory; check the path and its permissions"
        assert done.err.splitlines()[-1] == f"tenantq: {told} [unavailable]"


def test_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    """An empty, missing or foreign directory is refused in one line, and nothing is created."""
    (tmp_path / "file").write_text("x")
    for path, code, text in (
        (tmp_path, 6, "no tenantq store"),
        (tmp_path / "none", 6, "no tenantq store"),
        (tmp_path / "file", 2, "file"),
    ):
        done = call("doctor", "--data-dir", path)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
        assert done.err.startswith("tenantq: ")
        assert text in done.err
    assert not (tmp_path / "none").exists()


def _run_on_terminal(data: Path, **variables: str) -> str:
    """Run the doctor with all its output on a terminal of 80 columns."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **variables}
    process = subprocess.Popen(
        [COMMAND, "doctor", "--data-dir", str(data)], stdin=child, stdout=child, stderr=child, env=environment
    )
    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 65_536):
            shown += chunk
    except OSError:
        pass  # the other end is closed
    os.close(parent)
    assert process.wait(timeout=SECONDS_MAX) == 1
    return shown.decode()


def test_colour_only_on_terminals_without_no_color(data: Path) -> None:
    """A pipe never gets colour."""
    _lose_a_row(data)
    os.environ.pop("NO_COLOR", None)
    assert "\x1b[1;31m" in _run_on_terminal(data)
    plain = _run_on_terminal(data, NO_COLOR="1")
    assert not any(f"\x1b[{code}m" in plain for code in ("31", "32", "1;31", "1;32"))
    assert "2 findings" in plain
