"""Every pipeline command on a journal and a lake in a bucket, served by a simulated S3 endpoint."""

from __future__ import annotations

import asyncio
import io
import json
import random
from contextlib import redirect_stdout
from decimal import Decimal
from pathlib import Path
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tenantq.cli.command_line import run as command_line
from tenantq.errors import Conflict
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import open_target
from tenantq.journal.exporter import Exporter
from tenantq.journal.manifest import manifest_names
from tenantq.journal.segment_retention import INGESTED
from tenantq.journal.signing import SigningKey
from tenantq.pipeline.lake.delta_tables import DeltaTables
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.lake.versions import storage_options
from tenantq.pipeline.run_options import RunOptions, RunReport
from tenantq.pipeline.stream import stream
from tenantq.pipeline.tables import TABLES
from tenantq.runtime.clock import ManualClock
from tests.administration import hold_tenant, put_queue, put_tenant
from tests.buckets import bucket_process
from tests.pipeline.conftest import NOW
from tests.pipeline.journals import DAY, START, JournalWriter, entry, message_id
from tests.pipeline.test_lake import Killed, seen, stage, stage_states
from tests.shards import message, pass_time
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

JOURNAL, LAKE, COLD = "s3://evidence/journal", "s3://evidence/lake", "s3://evidence/cold"
PRICES = '[[items]]\nname = "Operations"\nmetric = "operations"\ntiers = [{ from = "0", price = "2.00" }]\n'
LINE = "2026-01/acme/Operations"


def command(*words: object, code: int = 0) -> Any:
    """Run a pipeline command, check its exit code, and return its JSON output."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert command_line(["pipeline", *map(str, words), "--json"]) == code, words
    return json.loads(said.getvalue()) if said.getvalue() else None


async def some_days(data: Path) -> None:
    """Export three days of three tenants from a shard to the bucket. One is put under a legal hold on the first day."""
    clock = ManualClock(START)
    shard = Shard(data, clock=clock, randomness=random.Random(7))
    await shard.open()
    target = open_target(JOURNAL)
    exporter = Exporter(shard.journal, target, SigningKey.load_or_make(data), clock, ExportSettings(keep_records=0))
    await exporter.start()
    for tenant in ("acme", "held", "leaver"):
        await put_tenant(shard, tenant)
        await put_queue(shard, tenant, "work")
    await hold_tenant(shard, "held", reason="a case")
    for day in range(3):
        for tenant in ("acme", "leaver", *(["held"] if day == 0 else [])):
            await shard.add(tenant, "work", [message(f"{tenant} {day}")])
            for one in await shard.poll(tenant, "work", max=1):
                await shard.ack(tenant, "work", [one.receipt])
        await pass_time(shard, clock, DAY)
    await exporter.close()
    await shard.close()


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """Serve one bucket for all tests; return a client of it."""
    with pytest.MonkeyPatch.context() as environ, bucket_process(environ) as client:
        yield client


@pytest.fixture(scope="module")
def data(bucket: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory that the journal in the bucket comes from."""
    assert bucket
    place = tmp_path_factory.mktemp("platform")
    (place / "prices.toml").write_text(PRICES)
    asyncio.run(some_days(place / "data"))
    return place / "data"


@pytest.fixture(scope="module")
def settings(data: Path) -> tuple[object, ...]:
    """Return the options of a run."""
    return ("--journal", JOURNAL, "--lake", LAKE, "--prices", data.with_name("prices.toml"))


@pytest.fixture(scope="module")
def streamed(spark: SparkSession, settings: tuple[object, ...]) -> list[dict[str, Any]]:
    """Return what a stream printed that created the lake, per micro-batch. The tests after it use the same lake."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert command_line(["pipeline", "stream", *map(str, settings), "--files-per-batch", "3", "--json"]) == 0
    return _documents(said.getvalue())


def _documents(text: str) -> list[dict[str, Any]]:
    """Parse JSON documents that follow each other."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:]
    return found


def lake_rows() -> dict[str, list[str]]:
    """Return the rows of all tables, as text and sorted, as any Delta reader sees them."""
    return {
        name: sorted(map(repr, DeltaTable(f"{LAKE}/{name}", storage_options=storage_options()).to_pyarrow_table().to_pylist()))
        for name in TABLES
    }  # fmt: skip


def test_a_stream_and_all_work_at_urls(
    streamed: list[dict[str, Any]], data: Path, settings: tuple[object, ...], tmp_path: Path
) -> None:
    """Micro-batches create every table, nothing is left to run, the totals agree, and any Delta reader reads the bucket."""
    manifests = manifest_names(open_target(JOURNAL))
    assert [one["accepted"] for one in streamed] == [3, len(manifests) - 3]
    assert all(not one["quarantined"] for one in streamed)
    assert open_target(JOURNAL).names(INGESTED)
    done = command("all", *settings, "--data-dir", data, "--out", tmp_path)
    assert (done["run"]["segments"], done["run"]["changed"]) == (0, [])
    assert done["reconcile"]["queues"] >= 3
    assert done["reconcile"]["drifts"] == []
    assert done["report"]["tenants"] >= 3
    assert (tmp_path / "index.html").exists()
    assert len(lake_rows()["message_lives"]) == 7
    assert command("reconcile", "--lake", LAKE, "--data-dir", data)["drifts"] == []
    assert command("report", "--lake", LAKE, "--out", tmp_path / "one", "--tenant", "acme")["tenants"] == 1


@pytest.mark.usefixtures("streamed")
def test_questions_are_answered_from_a_url(tmp_path: Path) -> None:
    """Offsets behind a line, version sets, and a simulation of more shards."""
    found = command("explain", LINE, "--lake", LAKE)
    offsets = command("explain", LINE, "--lake", LAKE, "--rows")
    assert int(found["quantity"]) == Decimal(found["line"]["quantity"]) >= 9
    assert len(offsets) == found["rows"]
    (tmp_path / "topology.toml").write_text('[[shards]]\nname = "a"\noperations_per_hour = 10\n')
    words = ("--lake", LAKE, "--topology", tmp_path / "topology.toml", "--add-shards", "1", "--out", tmp_path / "out")
    assert command("simulate", *words)["tenants"] >= 3
    (newest,) = command("versions", "--lake", LAKE)
    assert newest["tables"].keys() == TABLES.keys()
    (pinned,) = command("versions", "--lake", LAKE, "--pin", newest["set"], "--reason", "a case")
    assert pinned["pin"] == "a case"
    assert command("versions", "--lake", LAKE, "--unpin", newest["set"])[0]["pin"] == ""


@pytest.mark.usefixtures("streamed")
def test_invoices_are_closed_corrected_and_exported_at_a_url(settings: tuple[object, ...]) -> None:
    """A late segment becomes a correction, and the closed month keeps its version set."""
    on_lake = ("--lake", LAKE, "--by", "ann")
    closed = command("invoices", "close", *on_lake, "--period", "2026-01", *settings[4:])
    assert command("invoices", "close", *on_lake, "--period", "2026-01", *settings[4:], code=7) is None
    export = ("invoices", "export", "--lake", LAKE, "--period", "2026-01", "--format")
    before = {kind: command(*export, kind)["lines"] for kind in ("csv", "openmeter", "lago")}
    writer = JournalWriter(open_target(JOURNAL), shard="1")  # type: ignore[arg-type]  # any target will do
    writer.record(
        START + DAY, entry("create_queue", "acme", "late"), entry("add", "acme", "late", ids=message_id(1), size=9)
    )
    writer.segment()
    assert command("run", *settings)["rows"] == 2
    (pending,) = command("invoices", "corrections", "--lake", LAKE)
    assert (pending["line"], pending["status"]) == (f"{LINE}/1", "pending")
    command("invoices", "approve", f"{LINE}/1", *on_lake)
    for kind, lines in before.items():
        assert command(*export, kind)["lines"][:-1] == lines
        assert command(*export, kind, "--set", closed["set"])["lines"] == lines


@pytest.mark.usefixtures("streamed")
def test_days_are_archived_restored_held_and_deleted_at_a_url(tmp_path: Path) -> None:
    """A day with rows of a tenant under a legal hold outlives its retention."""
    before = lake_rows()
    (tmp_path / "rules.toml").write_text("[tables.bronze]\narchive_after_days = 1\n")
    moved = command("archive", "--lake", LAKE, "--to", COLD, "--rules", tmp_path / "rules.toml")
    assert "bronze/2026-01-02" in moved["archived"]
    assert lake_rows() != before
    command("archive", "--lake", LAKE, "--restore")
    assert lake_rows() == before
    days = ["slo_daily/2026-01-02", "slo_daily/2026-01-03"]
    (tmp_path / "rules.toml").write_text("[tables.slo_daily]\narchive_after_days = 1\ndelete_after_days = 2\n")
    ended = command("archive", "--lake", LAKE, "--to", COLD, "--rules", tmp_path / "rules.toml")
    assert (ended["held"], ended["deleted"]) == (["slo_daily/2026-01-01"], days)
    left = [name for name in open_target(COLD).names("slo_daily") if name.endswith(".parquet")]
    assert [name.split("/")[1] for name in left] == ["date=2026-01-01"]


@pytest.mark.usefixtures("streamed")
def test_a_tenant_is_erased_from_a_url(data: Path) -> None:
    """From lake, old versions and archive, with a signed certificate. A legal hold prevents it."""
    words = ("erase", "--lake", LAKE, "--sign-with", data, "--yes", "--reason", "asked by the customer")
    command(*words, "--tenant", "held", code=7)
    erased = command(*words, "--tenant", "leaver")
    assert erased["rows_removed"] > 0
    assert set(erased["rows_left"].values()) == {0}
    assert erased["signature"]
    assert open_target(LAKE).names("erasures") == ["erasures/000001.json"]
    assert "leaver" not in repr(lake_rows())


@pytest.mark.usefixtures("bucket")
def test_of_concurrent_writers_exactly_one_wins(spark: SparkSession) -> None:
    """Both the first commit to a lake and later ones. The others get Conflict."""
    url = "s3://evidence/contested"
    for number in range(3):
        lakes = [Lake(url) for _ in range(3)]
        for lake in lakes:
            assert lake.tables.newest.state.objective == (f"{number - 1}" if number else "")
            stage(spark, lake, number)
            lake.stage_state(LakeState(objective=f"{number}"))
        results = _at_once([lake.commit for lake in lakes])
        refused = [one for one in results if isinstance(one, Conflict)]
        assert (len(refused), len(results) - len(refused)) == (2, 1), results
        assert all("another run" in str(one) for one in refused)
        assert seen(spark, Lake(url)) == {number}
    assert len([name for name in open_target(url).names("ops_daily") if name.endswith(".parquet")]) == 3


def _at_once(calls: list[Callable[[], object]]) -> list[object]:
    """Call functions in threads that begin together; return their results or exceptions."""
    barrier, results = Barrier(len(calls)), list[object]()

    def one(call: Callable[[], object]) -> None:
        barrier.wait()
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001  # the caller looks at it
            results.append(error)

    threads = [Thread(target=one, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.usefixtures("bucket")
def test_a_writer_killed_at_any_step_leaves_nothing_at_a_url(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see the rows before. Its claim keeps others out for half an hour; then the next writer removes what it left."""
    url, clock = "s3://evidence/killed", ManualClock(START)
    first = Lake(url, clock)
    stage(spark, first, 0)
    first.commit()
    for number, (name, before) in enumerate((("_publish", 0), ("commit", 1), ("record", 1), ("sweep", 0)), 1):
        earlier = seen(spark, Lake(url))
        lake = Lake(url, clock)
        stage(spark, lake, number)
        stage_states(spark, lake, number)
        with monkeypatch.context() as patch:
            kill_at(patch, name, before)
            with pytest.raises(Killed):
                lake.commit()
        expected = {number} if name == "sweep" else earlier
        assert seen(spark, Lake(url)) == expected
        other = Lake(url, clock)
        other.stage_state(LakeState(objective=f"{number}"))
        with pytest.raises(Conflict, match="another run is changing it, at most until"):
            other.commit()
        clock.advance(31 * 60_000)
        other.commit()
        assert seen(spark, Lake(url)) == expected
        assert Lake(url).tables.old_files("ops_daily") == []
        table = DeltaTable(f"{url}/ops_daily", storage_options=storage_options())
        assert set(table.to_pyarrow_table()["calls"].to_pylist()) == expected


def kill_at(patch: pytest.MonkeyPatch, name: str, before: int) -> None:
    """Let a call of a method kill the process, after some calls. A killed process does not give its claim back."""
    step, left = getattr(DeltaTables, name), [before]

    def killed(*_: object) -> None:
        raise Killed

    def dying(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            patch.setattr(DeltaTables, "record", killed)
            raise Killed
        return step(*given, **named)

    patch.setattr(DeltaTables, name, dying)


@pytest.mark.usefixtures("bucket")
def test_a_stream_begins_a_batch_again_if_another_writer_was_faster(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a URL no lock keeps others out while a micro-batch is computed."""
    url = "s3://evidence/shared"
    writer = JournalWriter(open_target("s3://evidence/short"))  # type: ignore[arg-type]  # any target will do
    writer.record(START, entry("create_queue"), entry("add", ids=message_id(1), size=9))
    writer.segment()
    commit, raced = Lake.commit, list[int]()

    def slower(lake: Lake, **given: Any) -> list[str]:
        if not raced:
            other = Lake(url)
            other.stage_state(LakeState(objective="faster"))
            commit(other)
            raced.append(other.tables.newest.number)
        return commit(lake, **given)

    monkeypatch.setattr(Lake, "commit", slower)
    reports: list[RunReport] = []
    stream(spark, "s3://evidence/short", Lake(url), RunOptions(now_ms=NOW), on_batch=reports.append).wait()
    assert [one.accepted for one in reports] == [1]
    (newest,) = Lake(url).tables.sets
    assert newest.number == raced.pop() + 1
    assert Lake(url).read(spark, "bronze").count() == 2
