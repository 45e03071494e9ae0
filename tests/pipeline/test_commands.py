"""The real commands as processes: killed, stopped by a signal, repeated, and their errors."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tenantq.cli.command_line import run as command_line
from tenantq.pipeline.lake.archive import archive, restore
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.retention import load_retention
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.stream import stream
from tenantq.pipeline.tables import TABLES
from tests.acceptance.command import COMMAND, call, environment
from tests.pipeline.conftest import FAST_STARTUP, NOW, SMALL_DATA, digests
from tests.processes import alive, descendants, kill_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.pipeline.conftest import ProcessedJournal

PATIENCE_S = 240


_SMALL = {"spark.driver.defaultJavaOptions": FAST_STARTUP, "spark.sql.shuffle.partitions": "2", **SMALL_DATA}


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a command with little data."""
    place = tmp_path_factory.mktemp("conf")
    (place / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in _SMALL.items()))
    return {"SPARK_CONF_DIR": str(place)}


def begin(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start a pipeline command."""
    return subprocess.Popen(
        [COMMAND, "pipeline", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
        start_new_session=True,
    )


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Poll until a condition holds; fail if the process ends before."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)  # no clock of ours controls another process


def tables(lake: Lake) -> dict[str, str]:
    """Return the digests of the visible table files; no temporary files may be left in the lake."""
    assert not {path.name for path in lake.path.iterdir()} & {"_staging", "_incoming"}
    return {name: value for name, value in digests(lake).items() if not name.startswith("_")}


def test_after_a_stopped_run_and_a_killed_stream_the_tables_are_those_of_one_run(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path, small: dict[str, str]
) -> None:
    """SIGTERM between layers prints one line and ends Java. After SIGKILL during the commit, the next run completes it."""
    journal, lake = str(processed.journal.path), Lake(tmp_path / "lake")
    common = ("--journal", f"file://{journal}", "--lake", lake.path, "--master", "local[2]")
    with begin("run", *common, **small) as stopped:
        until(lambda: list(lake.path.glob("_staging/*/bronze")), stopped)
        with begin("run", *common) as second:
            said = second.communicate(timeout=PATIENCE_S)[1]
        assert second.returncode == 7
        assert said == f"tenantq: lake {lake.path}: another run is changing it. Wait until it has ended. [conflict]\n"
        started = descendants(stopped.pid)
        os.killpg(stopped.pid, signal.SIGTERM)
        stopped.wait(PATIENCE_S)
        assert started  # Java, and Python workers if a table needs them
        assert not alive(started)
        output, complaints = stopped.communicate()
    assert (stopped.returncode, output) == (143, "")
    assert complaints == (
        "tenantq: stopped by SIGTERM; the tables are unchanged, or completely changed [interrupted]\n"
    )
    assert not list(lake.path.glob("[a-z]*/**/*.parquet"))
    with begin("stream", *common, **small) as killed:
        until(lambda: list(lake.path.glob("*/_delta_log/*.json")), killed)
        kill_tree(killed.pid)
    stream(spark, journal, lake, RunOptions(now_ms=NOW)).wait()
    assert tables(lake) == digests(processed.lake)
    assert run(spark, journal, lake, RunOptions(now_ms=NOW)).changed == []


def test_a_small_run_needs_one_job_for_each_table(processed: ProcessedJournal, tmp_path: Path) -> None:
    """Jobs, not rows, dominate the time of a small run. The summary of new rows and the invoice totals need one more each."""
    log = tmp_path / "log"
    log.mkdir()
    wanted = {"enabled": "true", "dir": log.as_uri(), "compress": "false", "rolling.enabled": "false"}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"spark.eventLog.{k} {v}\n" for k, v in wanted.items()))
    arguments = ("--journal", processed.journal.path, "--lake", tmp_path / "lake", "--master", "local[2]", "--json")
    process = begin("run", *arguments, SPARK_CONF_DIR=str(tmp_path))
    output, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    (file,) = log.iterdir()
    jobs = file.read_text().count('"Event":"SparkListenerJobStart"')
    assert jobs <= len(TABLES) + 2
    assert set(TABLES) - {"invoice_corrections"} <= json.loads(output)["stages"].keys()


def test_a_killed_archive_command_resumes(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path, small: dict[str, str]
) -> None:
    """Killed after the first day of a table: run again, each day is archived once and restored unchanged."""
    lake, cold = processed.copy(tmp_path / "lake"), tmp_path / "cold"
    given = ("--lake", lake.path, "--to", cold, "--older-than", "1d", "--master", "local[2]")
    with begin("archive", *given, **small) as killed:
        until(lambda: list(cold.glob("*/*/*.parquet")), killed)
        kill_tree(killed.pid)
    archive(spark, lake, str(cold), load_retention(None, 1), NOW)
    assert sorted(path.relative_to(cold).parts[0] for path in cold.rglob("*.parquet")) == sorted(
        {day.table for day in lake.state().archived}
    )
    with lake.locked():
        restore(spark, lake, lambda _: True)
    assert tables(lake) == digests(processed.lake)


def test_a_report_reports_a_dead_java_process_in_one_line(
    processed: ProcessedJournal, tmp_path: Path, small: dict[str, str]
) -> None:
    """As when memory runs out: with its own exit code and no partial page."""
    given = ("--lake", processed.lake.path, "--out", tmp_path / "pages", "--master", "local[2]")
    with begin("report", *given, **small) as process:
        until(lambda: _busy_spark(process.pid), process)
        os.kill(_busy_spark(process.pid)[0], signal.SIGKILL)
        output, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (6, "")
    assert complaints.startswith("tenantq: Java ended unexpectedly. The tables are unchanged. It was killed")
    assert complaints.count("\n") == 1
    assert not list(tmp_path.glob("pages/.*"))


def _busy_spark(pid: int) -> list[int]:
    """Return a child process that is Spark's Java, once it runs tasks."""
    try:
        children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [one for one in children if any(name.startswith("Executor task") for name in _threads(one))]
    except OSError:  # one of them has just ended
        return []


def _threads(pid: int) -> list[str]:
    return [(one / "comm").read_text() for one in Path(f"/proc/{pid}/task").iterdir()]


_SHOWN = """
import click
from tenantq.cli.commands.pipeline.spark_runtime import StageProgress
with StageProgress(["one"]) as progress:
    progress.begin("one")
    click.echo("figures")
"""


def test_output_and_progress_bar_are_kept_apart() -> None:
    """With the bar on the terminal and stdout in a file, neither contains the other."""
    terminal, end = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", _SHOWN], stdout=subprocess.PIPE, stderr=end, check=True, env=environment(TERM="xterm")
    )
    os.close(end)
    shown = os.read(terminal, 65_536)
    os.close(terminal)
    assert done.stdout == b"figures\n"
    assert b"one" in shown
    assert b"figures" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "--journal", "{tmp}/none", "--lake", "{tmp}/lake"), 2, "is not a directory"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/file"), 2, "must be a directory"),
        (("run", "--journal", "{tmp}", "--lake", "nowhere://x"), 2, "nowhere://x: not a URL that fsspec supports"),
        (("run", "--journal", "nowhere://x", "--lake", "{tmp}/lake"), 2, "nowhere://x: not a URL that fsspec supports"),
        (("stream", "--journal", "nowhere://x", "--lake", "{tmp}/lake"), 2, "nowhere://x: not a URL that fsspec supports"),
        (("report", "--lake", "{tmp}/lake", "--out", "{tmp}/file/x"), 2, "/file is not a directory"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/lake", "--from", "2026-02-01", "--to", "2026-01-01"), 2, "is after --to"),
        (("run", "--journal", "{tmp}", "--lake", "{tmp}/lake", "--prices", "{tmp}/gap.toml"), 2, "a gap between 5 and 9"),
        (("stream", "--journal", "{tmp}", "--lake", "{tmp}/lake"), 6, "needs Java 17 or later"),
        (("stream", "--journal", "{tmp}", "--lake", "{tmp}/lake", "--every", "10"), 2, "must be at least 1s"),
        (("archive", "--lake", "{tmp}/lake", "--to", "{tmp}/cold", "--older-than", "5h"), 2, "whole days"),
        (("erase", "--lake", "{tmp}/lake", "--tenant", "acme"), 2, "Give --yes and --reason"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_an_exit_code(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    """Before Spark starts where possible; a missing Java is reported too."""
    (tmp_path / "manifest").mkdir()
    (tmp_path / "file").write_text("")
    tiers = '[{ from = "0", upto = "5", price = "1" }, { from = "9", price = "1" }]'
    (tmp_path / "gap.toml").write_text(f'[[items]]\nname = "Ops"\nmetric = "operations"\ntiers = {tiers}\n')
    done = call("pipeline", *(one.format(tmp=tmp_path) for one in arguments), PATH=str(tmp_path), JAVA_HOME="")
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_version_sets_are_listed_and_pinned_without_spark(
    processed: ProcessedJournal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list names the Delta version of each table; a pin has a reason."""
    lake = processed.copy(tmp_path / "lake")
    given = ["pipeline", "versions", "--lake", str(lake.path), "--json"]
    assert command_line([*given, "--pin", "1", "--reason", "invoices of January"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["set"], listed["pin"]) == (1, "invoices of January")
    assert listed["tables"] == {name: DeltaTable(str(lake.path / name)).version() for name in TABLES}
    assert command_line([*given, "--unpin", "1"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["pin"] == ""
    assert command_line([*given, "--pin", "7", "--reason", "no such set"]) == 3
    assert command_line([*given, "--pin", "1"]) == 2


def test_schedule_examples_quote_the_command_for_each_scheduler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths are absolute and quoted, a percent sign survives cron and systemd, and the Airflow file is valid Python."""
    lake = tmp_path / "my lake 5%"
    assert (
        command_line(["pipeline", "schedule", "--journal", "s3://evidence/journal", "--lake", str(lake), "--json"]) == 0
    )
    texts = json.loads(capsys.readouterr().out)
    cron = texts["cron"].splitlines()[-1].split(" ", 5)
    assert cron[:5] == ["10", "*", "*", "*", "*"]
    words = shlex.split(cron[5].replace(r"\%", "%"))
    assert words[1:] == ["pipeline", "run", "--journal", "s3://evidence/journal", "--lake", str(lake)]
    assert Path(words[0]).name == "tenantq"
    started = next(line for line in texts["systemd"].splitlines() if line.startswith("ExecStart="))
    assert shlex.split(started.removeprefix("ExecStart=").replace("%%", "%")) == words
    tree = ast.parse(texts["airflow"])
    (command,) = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "bash_command"]
    assert shlex.split(ast.literal_eval(command)) == words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their sections, keys and values are known, and the program exists."""
    words = ["--journal", "j", "--lake", str(tmp_path / "my lake 5%"), "--reports", str(tmp_path), "--json"]
    assert command_line(["pipeline", "schedule", *words]) == 0
    units = re.split(r"^(?=# systemd: )", json.loads(capsys.readouterr().out)["systemd"], flags=re.MULTILINE)[1:]
    for unit in units:
        (name,) = re.findall(r"^# systemd: /etc/systemd/system/([a-z-]+\.(?:service|timer))", unit)
        (tmp_path / name).write_text(unit)
    files = sorted(str(file) for file in tmp_path.glob("tenantq-*"))
    assert len(files) == 4
    checked = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_reports_are_scheduled_every_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the hourly run; every scheduler gets a second job."""
    words = ["--journal", "j", "--lake", str(tmp_path), "--reports", str(tmp_path / "out"), "--json"]
    assert command_line(["pipeline", "schedule", *words]) == 0
    texts = json.loads(capsys.readouterr().out)
    *_, hourly, daily = texts["cron"].splitlines()
    assert hourly.startswith("10 * * * * ")
    assert shlex.split(daily)[:5] == ["10", "1", "*", "*", "*"]
    assert shlex.split(daily)[6:] == ["pipeline", "report", "--lake", str(tmp_path), "--out", str(tmp_path / "out")]
    assert texts["systemd"].count("OnCalendar=") == 2
    assert "OnCalendar=*-*-* 1:10:00" in texts["systemd"]
    assert {"tenantq_pipeline", "tenantq_report"} <= set(re.findall("tenantq_[a-z]+", texts["airflow"]))
    ast.parse(texts["airflow"])


def test_scheduled_commands_write_the_reports_for_auditors(
    processed: ProcessedJournal, tmp_path: Path, small: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines for cron run as they are printed, and leave a SOC 2 and a GDPR Art. 30 report."""
    lake, reports = processed.copy(tmp_path / "lake"), tmp_path / "reports"
    words = ["--journal", str(processed.journal.path), "--lake", str(lake.path), "--reports", str(reports), "--json"]
    assert command_line(["pipeline", "schedule", *words]) == 0
    lines = json.loads(capsys.readouterr().out)["cron"].splitlines()
    for line in lines[-2:]:
        command = line.split(" ", 5)[5].replace(r"\%", "%")
        ended = subprocess.run(
            ["sh", "-c", command],
            env=environment(**small),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    assert "CC8.1" in (reports / "soc2.html").read_text()
    assert "30.1.b" in (reports / "gdpr-art30.html").read_text()
    assert {len(list(reports.glob(f"tenants/*.{stem}.html"))) > 0 for stem in ("soc2", "gdpr-art30")} == {True}
