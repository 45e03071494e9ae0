"""Erasure: nothing of the tenant is left in any layer or the archive, there is proof, and it never comes back."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tenantq.errors import Conflict, Invalid, NotFound, StoreDamaged
from tenantq.pipeline.lake.archive import archive, restore
from tenantq.pipeline.lake.erasure import check_certificates, erase
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import LakeState
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.pipeline.schemas import TENANT_CHANGES
from tenantq.pipeline.silver.tenant_changes import PLACED
from tests.pipeline.conftest import NOW, digests
from tests.pipeline.test_archive import DAY_OLD, THIRD_DAY
from tests.pipeline.test_lake import Killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tenantq.journal.signing import SigningKey
    from tests.pipeline.conftest import Made

GONE = "umbrella"


def test_an_erased_tenant_is_nowhere_and_never_comes_back(
    spark: SparkSession, made: Made, tmp_path: Path, key: SigningKey
) -> None:
    """Also from the archive, also when killed in between; the same journal run anew leaves the same tables without it."""
    lake, cold = made.copy(tmp_path / "lake"), tmp_path / "cold"
    archive(spark, lake, str(cold), DAY_OLD, THIRD_DAY)

    def dying(step: str) -> None:
        if step.startswith("archive"):
            raise Killed

    with pytest.raises(Killed):
        erase(spark, lake, GONE, "asked by the customer", NOW, progress=dying)
    certificate, file = erase(spark, lake, GONE, "asked by the customer", NOW, key)
    rows = made.lake.read(spark, "bronze").where(f"tenant = '{GONE}'").count()
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
    for name in cold.rglob("*.parquet"):
        table = pq.read_table(io.BytesIO(name.read_bytes()))
        assert GONE not in table["tenant"].to_pylist()

    with lake.locked():
        restore(spark, lake, lambda _: True)
    again = Lake(tmp_path / "again")
    with again.locked():
        again.stage_state(LakeState(erased=lake.state().erased))
        again.commit()
    run(spark, str(made.journal.path), again, RunOptions(now_ms=NOW))
    layers = ("bronze", "message_lives", "queue_hours", "ops_daily", "usage_hourly", "invoice_lines", "queue_resets")
    kept, anew = (
        {name: digest for name, digest in digests(one).items() if name.startswith(layers)} for one in (lake, again)
    )
    assert kept == anew
    with pytest.raises(NotFound, match="no rows of this tenant"):
        erase(spark, lake, GONE, "asked once more", NOW)

    told = json.loads(Path(file).read_text())
    Path(file).write_text(json.dumps({**told, "rows_removed": 1}))
    with pytest.raises(StoreDamaged, match="was changed"):
        check_certificates(lake)


def test_a_tenant_under_a_legal_hold_is_not_erased(spark: SparkSession, lake: Lake) -> None:
    """The hold is found in what the journal says; the refusal changes nothing. Nor is anything erased without a reason."""
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
