"""Reading a queue with Spark: its contents at one point in time."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tenantq.client import NO_RETRIES, Client, NewMessage
from tenantq.errors import ConnectionFailed, Invalid, NotFound, Unauthenticated
from tenantq.pipeline.connector.options import SnapshotOptions, read_options
from tenantq.pipeline.connector.queue_reader import QueueReader
from tenantq.pipeline.connector.source import TenantqSource
from tenantq.pipeline.schemas import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.pipeline.connector.conftest import TenantAccess


def _load(spark: SparkSession, tenant_access: TenantAccess, **options: object) -> DataFrame:
    return spark.read.format("tenantq").options(**tenant_access.options(**options)).load()


def _reader(tenant_access: TenantAccess, **options: str) -> QueueReader:
    return QueueReader(read_options(SnapshotOptions, tenant_access.options(**options)), MESSAGES)


def test_messages_are_read_with_all_their_fields(connected: SparkSession, tenant_access: TenantAccess) -> None:
    """Bodies as bytes, times as timestamps, the state of each, and the reason of dead letters."""
    queue = tenant_access.client.queue("facts")
    queue.configure(max_attempts=1)
    queue.add_many(
        [NewMessage(body=b"\xff\x00", attributes={"a": "b"}, group="g"), NewMessage(body=b"later", delay_ms=60_000)]
    )
    queue.add("dead", priority=9)
    queue.poll(1)[0].nack(reason="broken")
    rows = {
        bytes(row.body): row for row in _load(connected, tenant_access, queue="facts", partitionMessages=1).collect()
    }
    assert set(rows) == {b"\xff\x00", b"later"}
    first, later = rows[b"\xff\x00"], rows[b"later"]
    assert (first.state, first.attributes, first.group, first.tenant) == ("ready", {"a": "b"}, "g", "acme")
    assert (later.state, (later.visible_at - later.added_at).total_seconds()) == ("delayed", 60)
    (letter,) = _load(connected, tenant_access, queue="facts-dlq").collect()
    assert (letter.dead.source, letter.dead.attempts, letter.history[0].reason) == ("facts", 1, "broken")
    assert first.dead is None


def test_all_tasks_read_one_snapshot(tenant_access: TenantAccess) -> None:
    """Messages consumed and added between the tasks of a query do not change its result."""
    queue = tenant_access.client.queue("moment")
    queue.add_many([f"{number:03}" for number in range(100)])
    reader = _reader(tenant_access, queue="moment", partitionMessages="30")
    parts = reader.partitions()
    assert len(parts) == 4
    found: list[bytes] = []
    for part in pickle.loads(pickle.dumps(parts)):  # noqa: S301  # as Spark ships them
        remote: QueueReader = pickle.loads(pickle.dumps(reader))  # noqa: S301  # likewise
        found += [body for batch in remote.read(part) for body in batch.column("body").to_pylist()]
        queue.ack_many(queue.poll(30))
        queue.add("new")
    assert found == [b"%03d" % number for number in range(100)]
    assert len(tenant_access.bodies("moment")) < 50


def test_a_snapshot_can_be_shared_by_queries_and_columns_chosen(
    connected: SparkSession, tenant_access: TenantAccess
) -> None:
    """Two queries over one snapshot agree, although the queue has changed."""
    queue = tenant_access.client.queue("shared")
    queue.add_many(["a", "b"])
    taken = queue.open_snapshot()
    queue.add("c")
    shared = (
        connected.read.format("tenantq")
        .schema("body binary, state string")
        .options(**tenant_access.options(queue="shared", snapshot=taken.snapshot))
        .load()
    )
    assert shared.columns == ["body", "state"]
    assert sorted(row[0] for row in shared.select(f.col("body").cast("string")).collect()) == ["a", "b"]
    queue.close_snapshot(taken.snapshot)
    with pytest.raises(PySparkException, match=r"no such snapshot.*load the data frame again, with a longer keepMs"):
        shared.count()


def test_bodies_are_null_without_permission_to_read_them(tenant_access: TenantAccess) -> None:
    """A viewer's token can count messages, but not read them."""
    tenant_access.client.queue("hidden").add("geheim", attributes={"a": "b"})
    with Client(settings=tenant_access.server.settings("acme", role="viewer")) as viewer:
        token = viewer.settings.token
    reader = _reader(tenant_access, queue="hidden", token=str(token))
    (row,) = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert (row["body"], row["attributes"], row["state"]) == (None, None, "ready")


def test_no_plan_or_error_shows_the_token(
    connected: SparkSession, tenant_access: TenantAccess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Explained, printed or failed."""
    tenant_access.client.queue("plans").add("x")
    frame = _load(connected, tenant_access, queue="plans").where("priority = 0")
    frame.explain(extended=True)
    shown = capsys.readouterr().out + repr(frame) + str(frame._jdf.queryExecution().toString())
    with pytest.raises(PySparkException) as caught:
        _load(connected, tenant_access, queue="nowhere").count()
    assert "not_found" in str(caught.value) or "nowhere" in str(caught.value)
    assert tenant_access.token not in shown + str(caught.value)
    assert "tenantq" in shown


def test_unreadable_sources_are_named(tenant_access: TenantAccess) -> None:
    """Unknown queue, wrong token, unreachable server, conflicting options."""
    with pytest.raises(NotFound):
        _reader(tenant_access, queue="nowhere").partitions()
    with pytest.raises(Unauthenticated):
        _reader(tenant_access, queue="q", token="tq_wrong_token").partitions()  # noqa: S106  # it opens nothing
    with pytest.raises(Invalid, match="option queue: is missing"):
        _reader(tenant_access)
    with pytest.raises(Invalid, match="queue: invalid value"):
        _reader(tenant_access, queue="no/name")
    with pytest.raises(Invalid, match="url: must start with http"):
        _reader(tenant_access, queue="q", url="ftp://x").partitions()
    for options, said in (
        ({"url": "http://x", "journal": "y"}, "give url to read a queue, or journal to read a journal"),
        ({}, "to read a journal, or"),
    ):
        with pytest.raises(Invalid, match=said):
            TenantqSource(options).schema()
    with pytest.raises(Invalid, match="cannot be read as a stream"):
        TenantqSource({"url": "http://x"}).streamReader(MESSAGES)


def test_an_unreachable_server_is_an_error_after_a_few_attempts(
    tenant_access: TenantAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so."""
    monkeypatch.setattr("tenantq.pipeline.connector.queue_reader._RETRIES", NO_RETRIES)
    with pytest.raises(ConnectionFailed):
        _reader(tenant_access, queue="q", url="http://127.0.0.1:9").partitions()
