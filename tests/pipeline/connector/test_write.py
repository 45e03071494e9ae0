"""Writing to queues with Spark: every row becomes one message, whatever happens to the tasks."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from tenantq.client import NO_RETRIES, Added, Client, NewMessage
from tenantq.errors import (
    ConnectionFailed,
    Invalid,
    NotFound,
    QuotaExceeded,
    RateLimited,
    TenantqError,
    Unauthenticated,
)
from tenantq.pipeline.connector import queue_writer
from tenantq.pipeline.connector.batch_sender import BatchSender
from tenantq.pipeline.connector.message_rows import OutgoingRow, check_columns
from tenantq.pipeline.connector.options import WriteOptions, read_options
from tenantq.pipeline.connector.queue_writer import QueueWriter, add_rows
from tenantq.pipeline.connector.row_keys import RowKeys
from tests.pipeline.journals import MINUTE, START, JournalWriter, QueueModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tenantq.journal.export_target import DirectoryTarget
    from tests.pipeline.connector.conftest import TenantAccess


def _options(tenant_access: TenantAccess, **more: str) -> WriteOptions:
    return read_options(WriteOptions, tenant_access.options(**more))


def _schema(columns: str) -> StructType:
    found = StructType.fromDDL(columns)
    assert isinstance(found, StructType)
    return found


def _batches(bodies: list[Any], size: int = 4) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(bodies), size):
        yield pa.RecordBatch.from_pylist([{"body": body} for body in bodies[start : start + size]])


# ---- with Spark ----


def test_every_column_reaches_the_message(connected: SparkSession, tenant_access: TenantAccess) -> None:
    """Body, priority, delay, time to live, key, group, attributes, attempts, and the queue by column or option."""
    connected.sql(
        """select cast('a' as binary) body, 7 priority, cast(null as int) delay_ms, 60000L ttl_ms, 'k1' key, 'g' `group`,
                  map('color', 'red') attributes, 3 max_attempts, cast(null as string) queue, 'acme' tenant
           union all
           select unhex('ff00'), null, 5000, null, null, null, null, null, 'columns-two', null"""
    ).write.format("tenantq").mode("append").options(**tenant_access.options(queue="columns-one")).save()
    (first,) = tenant_access.client.queue("columns-one").peek().messages
    assert (first.body, first.priority, first.group, first.attributes) == (b"a", 7, "g", {"color": "red"})
    assert (first.max_attempts, first.expires_at) == (3, first.visible_at + 60_000)
    assert tenant_access.client.queue("columns-one").add("a", key="k1").duplicate
    (second,) = tenant_access.client.queue("columns-two").peek().messages
    assert (second.body, second.priority, second.visible_at - second.added_at) == (b"\xff\x00", 0, 5_000)


def test_a_task_retried_after_a_failure_adds_each_row_once(
    connected: SparkSession, tenant_access: TenantAccess
) -> None:
    """The second attempt sees the same rows in another order, some of them identical."""
    options = tenant_access.options(queue="halfway")
    url, token = tenant_access.url, tenant_access.token

    def unreliable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415  # inside the worker

        context = TaskContext.get()
        assert context is not None
        rows = [row for batch in batches for row in batch.to_pylist()]
        if context.attemptNumber() > 0:
            yield pa.RecordBatch.from_pylist(rows[::-1])
            return
        yield pa.RecordBatch.from_pylist(rows[: len(rows) // 2])
        if context.partitionId() == 0:
            with Client(url, token) as client:
                for _ in range(600):  # until the writer after this has sent them
                    if client.queue("halfway").stats().ready >= len(rows) // 2:
                        break
                    threading.Event().wait(0.05)
            raise RuntimeError("made to fail after half was sent")
        yield pa.RecordBatch.from_pylist(rows[len(rows) // 2 :])

    frame = connected.range(0, 40, 1, 2).selectExpr("concat('row ', id % 15) body")
    expected = sorted(row.body.encode() for row in frame.collect())
    spread = frame.mapInArrow(unreliable, "body string")
    spread.write.format("tenantq").mode("append").options(**options, batchSize=5).save()
    assert tenant_access.bodies("halfway") == expected


def test_a_stream_adds_each_row_once_despite_a_crash(
    connected: SparkSession, tenant_access: TenantAccess, journal: DirectoryTarget, tmp_path: Path
) -> None:
    """A micro-batch that was not recorded as done is written again and adds nothing, with the sink and with foreachBatch."""
    writer = JournalWriter(journal)
    model = QueueModel(writer, 5)
    for number in range(12):
        model.round(START + number * MINUTE)
    manifest = writer.segment()

    def add(batch: DataFrame, _: int) -> None:
        batch.write.format("tenantq").mode("append").options(**tenant_access.options(queue="each-batch")).save()

    def run() -> None:
        source = connected.readStream.format("tenantq").option("journal", str(journal.path)).load()
        rows = source.selectExpr("concat_ws('/', op, message_id) body").writeStream.trigger(availableNow=True)
        sink = rows.format("tenantq").options(**tenant_access.options(queue="streamed"))
        queries = [sink.option("checkpointLocation", str(tmp_path / "sink")).start()]
        each = source.selectExpr("concat_ws('/', op, message_id) body").writeStream.trigger(availableNow=True)
        queries.append(each.foreachBatch(add).option("checkpointLocation", str(tmp_path / "each")).start())
        for query in queries:
            query.awaitTermination()

    run()
    assert len(tenant_access.bodies("streamed")) == len(tenant_access.bodies("each-batch")) == manifest.rows
    for name in ("0", ".0.crc"):
        for sink in ("sink", "each"):
            (tmp_path / sink / "commits" / name).unlink()
    model.round(START + 20 * MINUTE)
    more = writer.segment()
    run()
    assert len(tenant_access.bodies("streamed")) == len(tenant_access.bodies("each-batch")) == manifest.rows + more.rows


def test_errors_of_a_write_reach_the_user_of_spark(connected: SparkSession, tenant_access: TenantAccess) -> None:
    """With the connector's own message, and without the token."""
    write = connected.range(1).selectExpr("id text").write.format("tenantq").mode("append")
    with pytest.raises(PySparkException, match=r"column 'text': unknown column"):
        write.options(**tenant_access.options(queue="errors")).save()
    body = connected.range(1).selectExpr("'x' body")
    with pytest.raises(PySparkException, match=r"only .mode\(.append.\) is supported"):
        body.write.format("tenantq").mode("overwrite").options(**tenant_access.options(queue="errors")).save()
    wrong = tenant_access.options(queue="errors", token="tq_wrong_token-that-opens-nothing")  # noqa: S106  # it does not
    with pytest.raises(PySparkException, match=r"row 0 of partition \d, for errors: unauthenticated") as caught:
        body.write.format("tenantq").mode("append").options(**wrong).save()
    assert "opens-nothing" not in str(caught.value)
    assert str(caught.value).count("Traceback") == 1  # Spark's own; neither our calls nor our causes
    assert "enqueue.py" not in str(caught.value)
    with pytest.raises(
        AnalysisException, match="url: must start with http:// or https://"
    ):  # when the query is planned
        body.write.format("tenantq").mode("append").options(
            **tenant_access.options(queue="errors", url="nonsense")
        ).save()


# ---- the parts ----


def test_rows_without_a_key_get_one_that_does_not_depend_on_their_order() -> None:
    """The same multiset of rows has the same keys, identical rows have different ones, and another write, partition or content differs."""

    def row(body: bytes, **more: Any) -> OutgoingRow:
        return OutgoingRow(0, None, "q", NewMessage(body=body, **more))

    rows = [row(b"a"), row(b"a"), row(b"b"), row(b"a", priority=1), row(b"a", attributes={"x": "1", "y": "2"})]

    def keys(rows: list[OutgoingRow], write: str = "w", partition: int = 0, *, once: bool = False) -> list[str]:
        made = RowKeys(write, partition, once=once)
        return sorted(made.key(one) for one in rows)

    shuffled = rows[:]
    random.Random(3).shuffle(shuffled)
    assert keys(rows) == keys(shuffled)
    assert len(set(keys(rows))) == 5
    assert not set(keys(rows)) & (set(keys(rows, "v")) | set(keys(rows, partition=1)))
    assert keys(rows, once=True) == keys(shuffled, partition=1, once=True)
    assert len(set(keys(rows, once=True))) == 4
    assert keys([row(b"a", attributes={"y": "2", "x": "1"})]) == keys([rows[4]])
    assert keys([row(b"a", key="mine")], "any", 9) == ["mine"]


def test_the_same_partition_run_twice_at_once_adds_each_row_once(tenant_access: TenantAccess) -> None:
    """Speculative execution: two attempts race in different orders, and one of them adds each row."""
    bodies = [f"row {number % 70}" for number in range(100)]
    told: list[Any] = []

    def attempt(seed: int) -> None:
        mine = bodies[:]
        random.Random(seed).shuffle(mine)
        told.append(add_rows(_batches(mine), _options(tenant_access, queue="speculative", batchSize="7"), "one-write"))

    threads = [threading.Thread(target=attempt, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tenant_access.bodies("speculative") == sorted(body.encode() for body in bodies)
    assert [one.rows for one in told] == [100, 100]
    assert sum(one.added for one in told) == sum(one.duplicates for one in told) == 100


def test_a_write_id_makes_the_write_repeatable(tenant_access: TenantAccess) -> None:
    """The same ID again adds nothing, another or none adds everything. Identical rows can become one message."""
    bodies = ["x", "y", "x"]

    def write(partition_rows: list[str], **options: str) -> tuple[int, int]:
        given = _options(tenant_access, **options)
        writer = QueueWriter(given, _schema("body string"), overwrite=False)
        told = writer.write(_batches(partition_rows))
        writer.commit([told])
        return told.added, told.duplicates

    assert write(bodies, queue="repeat", writeId="monday") == (3, 0)
    assert write(bodies[::-1], queue="repeat", writeId="monday") == (0, 3)
    assert write(bodies, queue="repeat", writeId="tuesday") == (3, 0)
    assert write(bodies, queue="repeat") == (3, 0)
    assert write(bodies, queue="repeat") == (3, 0)
    assert write(bodies, queue="once", writeId="monday", identicalRows="once") == (2, 1)


def test_a_rate_limited_write_waits(tenant_access: TenantAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused rows are sent again when the server allows it; a limit on the wait ends it with a clear error."""
    tenant_access.client.queue("slow").configure(limits={"write": {"ops_per_sec": 10, "burst": 10}})
    told = add_rows(_batches([f"{number}" for number in range(25)], 50), _options(tenant_access, queue="slow"), "w")
    assert (told.rows, told.added, len(tenant_access.bodies("slow"))) == (25, 25, 25)
    monkeypatch.setattr(queue_writer, "_RETRIES", NO_RETRIES)  # the client's own retries are enough for this limit
    with pytest.raises(
        RateLimited,
        match=r"row \d+ of partition 0, for slow: rate_limited: .*maxWaitMs.*rows of this task were taken before",
    ):
        add_rows(
            _batches([f"{number}" for number in range(25)], 50),
            _options(tenant_access, queue="slow", maxWaitMs="0"),
            "v",
        )


class _ScriptedQueue:
    """A queue with scripted answers, for pauses that are too long for a test."""

    def __init__(self, *answers: TenantqError | None) -> None:
        self.answers = list(answers)

    def queue(self, _: str) -> _ScriptedQueue:
        return self

    def add_many(self, messages: Any, *, errors: str) -> list[Any]:
        assert errors == "return"
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return [Added("id") for _ in messages]


def _send(*answers: TenantqError | None, max_wait_ms: int = 60_000) -> list[float]:
    """Send a row with these answers; return the pauses."""
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    client: Any = _ScriptedQueue(*answers)
    sender = BatchSender(
        client, batch_size=1, max_wait_ms=max_wait_ms, task="partition 3", sleep=sleep, monotonic=lambda: now[0]
    )
    sender.send_all([OutgoingRow(17, None, "q", NewMessage(body=b"x"))])
    return pauses


def test_pauses_follow_retry_after_and_double_without_it() -> None:
    """A pause beyond the limit is not waited for."""
    assert _send(RateLimited(retry_after_ms=3_000), None) == [3.0]
    assert _send(*[ConnectionFailed() for _ in range(4)], None) == [0.2, 0.4, 0.8, 1.6]
    with pytest.raises(
        QuotaExceeded, match=r"row 17 of partition 3, for q: quota_exceeded: .*next try is in 7200000 ms.*60000 ms"
    ):
        _send(QuotaExceeded(retry_after_ms=7_200_000))
    with pytest.raises(ConnectionFailed, match="the bound is 10000 ms"):
        _send(*[ConnectionFailed() for _ in range(20)])


def test_an_invalid_row_is_named(tenant_access: TenantAccess) -> None:
    """Its position, its partition and the problem; never its body."""

    def refused(rows: list[dict[str, Any]], **options: str) -> str:
        batch = pa.RecordBatch.from_pylist(rows)
        with pytest.raises(TenantqError) as caught:
            add_rows(iter([batch]), _options(tenant_access, **options), "w")
        assert "geheim" not in str(caught.value)
        return str(caught.value)

    good = {"body": "geheim", "priority": 1, "attributes": None, "queue": "named"}
    assert "row 1 of partition 0: body is null" in refused([good, {**good, "body": None}], queue="named")
    assert "row 1 of partition 0, for named: invalid: priority: " in refused(
        [good, {**good, "priority": 11}], queue="named"
    )
    assert "row 0 of partition 0, for no/name: invalid: queue: invalid value" in refused([{**good, "queue": "no/name"}])
    assert "queue is null" in refused([{**good, "queue": None}])
    too_long = refused([{**good, "body": "geheim" * 300_000}], queue="named")
    assert "too_large: body: 1800000 bytes, the limit is 1048576" in too_long


def test_a_missing_queue_is_an_error_if_queues_are_not_created_automatically(tenant_access: TenantAccess) -> None:
    """A mistyped name creates no queue."""
    other = type(tenant_access)(tenant_access.server, "strict")
    with Client(settings=tenant_access.server.settings()) as admin:
        admin.tenant("strict").configure(create_queues=False)
    with pytest.raises(NotFound, match="row 0 of partition 0, for mistyped: not_found"):
        add_rows(_batches(["x"]), _options(other, queue="mistyped"), "w")
    other.client.close()


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("text string", {"queue": "q"}, "column 'text': unknown column"),
        ("priority int", {"queue": "q"}, "column body: required"),
        ("body int", {"queue": "q"}, "column body: is int, and must be binary or string; cast it"),
        ("body string, attributes map<string,int>", {"queue": "q"}, "must be map<string,string>"),
        ("body string, priority string", {"queue": "q"}, "column priority: is string"),
        ("body string", {}, "queue: required"),
        ("body string", {"queue": "no/name"}, "queue: invalid value"),
        ("body string", {"queue": "q", "tenant": "X"}, "tenant"),
        ("body string", {"queue": "q", "batchSize": "1001"}, "option batchSize: 1001 is not from 1 to 1000"),
        ("body string", {"queue": "q", "identicalRows": "drop"}, "option identicalRows: Invalid enum value"),
        ("body string", {"queue": "q", "writeId": "x" * 201}, "option writeId"),
        ("body string", {"queue": "q", "url": ""}, "option url: is missing"),
        ("body string", {"queue": "q", "path": "x"}, "option path: unknown option"),
    ],
)
def test_invalid_writes_are_refused_when_planned(schema: str, options: dict[str, str], said: str) -> None:
    """Before anything is sent, naming the column or option."""
    with pytest.raises(Invalid, match=said.replace("(", r"\(")):
        check_columns(_schema(schema), read_options(WriteOptions, {"url": "http://127.0.0.1:1", **options}))


def test_a_token_from_an_option_or_the_environment_is_never_shown(
    tenant_access: TenantAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text of the options contains it."""
    monkeypatch.delenv("TENANTQ_TOKEN", raising=False)
    options = _options(tenant_access, queue="secret")
    assert tenant_access.token not in repr(options) + str(options)
    bare = read_options(WriteOptions, {"url": tenant_access.url, "queue": "secret"})
    with pytest.raises(Invalid, match="token: is missing"):
        add_rows(_batches(["x"]), bare, "w")
    monkeypatch.setenv("TENANTQ_TOKEN", tenant_access.token)
    assert add_rows(_batches(["x"]), bare, "w").added == 1
    monkeypatch.setenv("TENANTQ_TOKEN", "tq_wrong_one")
    with pytest.raises(Unauthenticated) as caught:
        add_rows(_batches(["x"]), bare, "w")
    assert "wrong_one" not in str(caught.value)
