"""The journal in a bucket: exported, queried and verified over a real S3 endpoint that fails and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Invalid
from tenantq.journal.audit_query import AuditReader
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import open_target
from tenantq.journal.exporter import Exporter
from tenantq.journal.row_filter import JournalFilter
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.verify import verify_segments
from tests.buckets import served_bucket
from tests.contract.journal.test_export import some_work
from tests.shards import journal_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tenantq.journal.signing import SigningKey
    from tenantq.runtime.clock import ManualClock
    from tests.verbs import Shard


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a client of a bucket."""
    with served_bucket(monkeypatch) as served:
        yield served.client


async def test_journal_is_exported_to_a_bucket_queried_and_verified(
    bucket: Any, shard: Shard, key: SigningKey, clock: ManualClock
) -> None:
    """A restart continues the export, and removed objects are reported."""
    target = open_target("s3://evidence/journals/one")
    index = SegmentIndex(target, shard.name)
    await some_work(shard, 10)
    exporter = Exporter(shard.journal, target, key, clock, ExportSettings(segment_rows=9, keep_records=4), index)
    await exporter.start()
    rows = await journal_rows(shard)
    await exporter.export_now()
    assert shard.journal.span[0] > 5
    await some_work(shard, 2)
    again = Exporter(shard.journal, target, key, clock, ExportSettings(keep_records=4), index)
    await again.start()
    assert again.exported_seq == exporter.exported_seq
    await again.close()
    page = AuditReader(shard.journal, SegmentIndex(target, shard.name)).page(JournalFilter(), limit=1_000)
    assert page.rows[: len(rows)] == rows
    report = verify_segments(target, key.public)
    assert report.clean
    assert report.last_seq == {"0": again.exported_seq}
    listed = bucket.list_objects_v2(Bucket="evidence", Prefix="journals/one/date=")["Contents"]
    bucket.delete_object(Bucket="evidence", Key=listed[1]["Key"])
    assert [finding.text for finding in verify_segments(target, key.public).findings] == ["The segment is missing."]


async def test_missing_bucket_is_an_error_and_never_looks_empty(bucket: Any) -> None:
    """Otherwise the journal would look like one that was never exported."""
    target = open_target("s3://nobody/has/this")
    with pytest.raises(OSError, match="nobody"):
        target.write("x", b"y")
    with pytest.raises(FileNotFoundError):
        open_target("s3://evidence").read("nothing")
    open_target("s3://evidence").delete("nothing")
    bucket.put_object(Bucket="evidence", Key="two/a/b", Body=b"c")
    assert open_target("s3://evidence/two/").names("") == ["a/b"]
    assert open_target("s3://evidence/two").names("elsewhere") == []
    with pytest.raises(OSError, match=r"(?i)connect"):
        open_target("s3://evidence/two?endpoint_override=127.0.0.1:9&scheme=http").names("")


def test_invalid_bucket_url_is_refused_by_name() -> None:
    """Secrets in its query are not shown."""
    with pytest.raises(Invalid) as caught:
        open_target("s3://bucket/p?no_such_option=secret")
    assert "s3://bucket/p" in caught.value.message
