"""Erasure removes a tenant from every layer and the archive, leaves a certificate, and is permanent."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tenantq.errors import Conflict, Invalid, NotFound, StoreDamaged
from tenantq.pipeline.gold.anomalies import ANOMALIES
from tenantq.pipeline.lake.archive import archive, restore
from tenantq.pipeline.lake.erasure import check_certificates, erase
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.silver.places_daily import PLACES_DAILY
from tenantq.pipeline.silver.tenant_changes import PLACED, TENANT_CHANGES
from tests.pipeline.conftest import NOW, digests
from tests.pipeline.test_archive import DAY_OLD, THIRD_DAY
from tests.pipeline.test_lake import Killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tenantq.journal.signing import SigningKey
    from tests.pipeline.conftest import ProcessedJournal

GONE = "umbrella"
PERSONAL = ("message_id", "principal", "remote", "request_id", "details", "user_agent")


def personal_values(lake: Lake) -> set[str]:
    """Return what only rows of the tenant have in the columns of the journal that may identify a person."""
    rows = lake.rows("bronze")
    mine, others = (
        {row[name] for row in rows if (row["tenant"] == GONE) == of_tenant for name in PERSONAL}
        for of_tenant in (True, False)
    )
    return {value for value in mine - others if value}


def values_below(path: Path, values: set[str]) -> set[str]:
    """Return which of the values any file below a directory has, including the logs of Delta Lake."""
    found: set[str] = set()
    for file in path.rglob("*"):
        if file.is_file():
            is_table = file.suffix == ".parquet"
            text = repr(pq.ParquetFile(file).read().to_pylist()) if is_table else file.read_text()
            found |= {value for value in values if value in text}
    return found


def test_an_erased_tenant_is_gone_from_every_table_and_stays_gone(
    spark: SparkSession, processed: ProcessedJournal, tmp_path: Path, key: SigningKey
) -> None:
    """Also from the archive and after an interruption; a new run over the same journal gives the same tables without it."""
    lake, cold = processed.copy(tmp_path / "lake"), tmp_path / "cold"
    personal = personal_values(processed.lake)
    assert personal <= values_below(lake.path, personal)
    with lake.locked():
        lake.tables.pin(1, "invoices of January")
    archive(spark, lake, str(cold), DAY_OLD, THIRD_DAY)

    def dying(step: str) -> None:
        if step.startswith("archive"):
            raise Killed

    with pytest.raises(Killed):
        erase(spark, lake, GONE, "asked by the customer", NOW, progress=dying)
    certificate, file = erase(spark, lake, GONE, "asked by the customer", NOW, key)
    rows = processed.lake.read(spark, "bronze").where(f"tenant = '{GONE}'").count()
    by_table: dict[str, int] = {}
    for one in certificate.removals:
        table = one.partition.split("/")[0]
        by_table[table] = by_table.get(table, 0) + one.rows_removed
        assert one.sha256_before != one.sha256_after
    assert by_table["bronze"] == rows
    assert any(one.archive for one in certificate.removals)
    assert set(certificate.rows_left.values()) == {0}
    assert key.public.verifies(certificate.signature, certificate.hashed_text())
    assert check_certificates(lake) == [certificate]
    assert values_below(lake.path, personal) == set()
    assert values_below(cold, personal) == set()
    for name in cold.rglob("*.parquet"):
        table = pq.read_table(io.BytesIO(name.read_bytes()))
        assert GONE not in table["tenant"].to_pylist()

    with lake.locked():
        restore(spark, lake, lambda _: True)
    again = Lake(tmp_path / "again")
    with again.locked():
        again.stage_state(LakeState(erased=lake.state().erased))
        again.commit()
    run(spark, str(processed.journal.path), again, RunOptions(now_ms=NOW))
    layers = ("bronze", "message_lives", "queue_hours", "ops_daily", "usage_hourly", "invoice_lines", "queue_resets")
    kept, rebuilt = (
        {name: digest for name, digest in digests(one).items() if name.startswith(layers)} for one in (lake, again)
    )
    assert kept == rebuilt
    with pytest.raises(NotFound, match="no rows of this tenant"):
        erase(spark, lake, GONE, "asked once more", NOW)

    told = json.loads(Path(file).read_text())
    Path(file).write_text(json.dumps({**told, "rows_removed": 1}))
    with pytest.raises(StoreDamaged, match="was changed"):
        check_certificates(lake)


def test_an_erasure_leaves_no_principal_in_kept_versions_and_logs(spark: SparkSession, lake: Lake) -> None:
    """Principals, networks and texts of the tenant are in no file, although older version sets were kept."""
    when = datetime(2026, 1, 1, tzinfo=UTC)
    who, network, text = "mallory@umbrella.example", "198.51.100.0/24", "guessed a password"
    values = {who, network, text}
    with lake.locked():
        for calls in (1, 2, 3):
            place = (GONE, who, network, calls, when, "0/7", "2026-01-01")
            lake.stage(spark.createDataFrame([place], PLACES_DAILY), "places_daily")
            odd = ("brute_force", "high", GONE, "", who, when, when, float(calls), 1.0, text, ["0/7"], "2026-01-01")
            lake.stage(spark.createDataFrame([odd], ANOMALIES), "anomalies")
            lake.commit(keep=3)
    assert len(lake.tables.sets) == 3
    assert values_below(lake.path, values) == values
    erase(spark, lake, GONE, "asked by the customer", NOW)
    assert values_below(lake.path, values) == set()


def test_a_tenant_under_a_legal_hold_is_not_erased(spark: SparkSession, lake: Lake) -> None:
    """The hold is found in the journal, and the refusal changes nothing. Without a reason nothing is erased either."""
    with lake.locked():
        rows = [("0", 7, 0, None, "acme", PLACED, "a case", "2026-01-01")]
        lake.stage(spark.createDataFrame(rows, TENANT_CHANGES), "tenant_changes")
        lake.commit()
    before = digests(lake)
    with pytest.raises(Conflict, match="legal hold"):
        erase(spark, lake, "acme", "asked by the customer", NOW)
    with pytest.raises(Invalid, match="must not be empty"):
        erase(spark, lake, "acme", " ", NOW)
    assert digests(lake) == before
    assert lake.state().erased == []
