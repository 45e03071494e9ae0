"""The generated journals of the benchmarks are like those of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.synthetic_journal import Plan, make_journal
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.record import decode_record
from tenantq.journal.segment import decode
from tenantq.journal.signing import PublicKey
from tenantq.journal.verify import verify_segments
from tests.pipeline.journals import ChainedRecord, encode_chained
from tests.pipeline.oracle import Oracle, journal_rows

if TYPE_CHECKING:
    from pathlib import Path


def test_a_generated_journal_is_valid(tmp_path: Path) -> None:
    """Chain, hashes, signatures and rows verify, segments are the encoder's bytes, and message lives are consistent."""
    plan = Plan(rows=12_000, rows_per_day=40_000, shards=2, tenants=5, segment_rows=700)
    made = make_journal(tmp_path / "journal", plan, processes=1)
    target = DirectoryTarget(tmp_path / "journal")
    report = verify_segments(target, PublicKey.load(tmp_path / "audit_key.pub"))
    assert report.clean, report.findings
    assert (report.rows, report.segments) == (made.rows, made.segments)
    assert 0.8 < made.rows / plan.rows < 1.2
    outcomes: set[str] = set()
    for shard in ("0", "1"):
        chained: list[ChainedRecord] = []
        for name in sorted(one for one in target.names("") if f"shard={shard}/" in one and one.endswith(".parquet")):
            data = target.read(name)
            records = [
                ChainedRecord(link, payload, decode_record(link + payload)[1]) for link, payload, _ in decode(data)
            ]
            assert encode_chained(records)[0] == data
            chained += records
        outcomes |= {life["outcome"] for life in Oracle(journal_rows(chained)).lives.values()}
    assert outcomes >= {"acked", "dead", "expired", "purged", "removed"}
