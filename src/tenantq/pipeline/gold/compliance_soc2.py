"""Gold ``compliance_soc2``: evidence per control of the trust services criteria, by day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.gold.compliance_evidence import compliance, evidence_rows, verification

CONTROLS: Final = {
    "CC6.1": ("Access is restricted: calls that were denied", ("*",), ("denied",)),
    "CC6.2": ("Credentials are issued and withdrawn", ("create_key", "revoke_key", "revoke_token"), ("ok",)),
    "CC6.3": ("Access is granted by role and taken back", ("put_grant", "delete_grant"), ("ok",)),
    "CC6.5": ("Data is disposed of", ("purge", "drop_queue", "delete_tenant", "expire"), ("ok", "expired")),
    "CC6.6": ("Floods are held off: calls that were throttled", ("*",), ("throttled",)),
    "CC8.1": (
        "Changes are recorded with who made them",
        ("create_tenant", "configure_tenant", "suspend_tenant", "resume_tenant", "create_queue", "configure_queue"),
        ("ok",),
    ),
}  # fmt: skip
"""Control -> its subject, and the ops and outcomes that show it."""


def compliance_soc2(
    ops: DataFrame, anomalies: DataFrame, segments: DataFrame, quarantine: DataFrame, dates: Sequence[str] = ()
) -> DataFrame:
    """Return rows of COMPLIANCE for the days of ``ops`` (ops_daily); ``dates`` are all days of the lake."""
    seen = anomalies.groupBy("date", "tenant", f.concat_ws(": ", "severity", "kind").alias("evidence"))
    status = f.when(f.col("evidence").startswith("high"), "review").otherwise("pass")
    counted = seen.agg(f.count("*").alias("count"))
    return compliance(
        ops, CONTROLS,
        evidence_rows(counted, "CC7.2", "The system is watched for anomalies", status),
        verification(ops, segments, quarantine, "PI1.4", "Records are complete and unchanged", dates),
    )  # fmt: skip
