"""Gold ``compliance_soc2``: results and records per control of the trust services criteria, by day."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.gold.compliance_evidence import RECORDED, compliance, control_results, evidence_rows, verification

ACTIVITIES: Final = {
    "CC6.1": ("Access is restricted: calls that were denied", ("*",), ("denied",)),
    "CC6.2": ("Credentials are issued and revoked", ("create_key", "revoke_key", "revoke_token"), ("ok",)),
    "CC6.3": ("Access is granted by role and revoked", ("put_grant", "delete_grant"), ("ok",)),
    "CC6.5": ("Data is disposed of", ("purge", "drop_queue", "delete_tenant", "expire"), ("ok", "expired")),
    "CC6.6": ("Floods are limited: calls that were throttled", ("*",), ("throttled",)),
    "CC8.1": (
        "Changes are recorded with their author",
        ("create_tenant", "configure_tenant", "suspend_tenant", "resume_tenant", "create_queue", "configure_queue"),
        ("ok",),
    ),
}  # fmt: skip
"""Control -> its subject, and the ops and outcomes that show it."""


def compliance_soc2(
    ops: DataFrame, evaluated: DataFrame, anomalies: DataFrame, segments: DataFrame, quarantine: DataFrame,
    dates: Sequence[str] = (),
) -> DataFrame:  # fmt: skip
    """Return rows of COMPLIANCE for the days of ``ops`` (ops_daily); ``dates`` are all days of the lake.

    ``evaluated`` are rows of bronze with results of controls.
    """
    seen = anomalies.groupBy("date", "tenant", f.concat_ws(": ", "severity", "kind").alias("evidence"))
    counted = seen.agg(f.count("*").alias("count"))
    return compliance(
        ops, ACTIVITIES, control_results(evaluated, "soc2"),
        evidence_rows(counted, "CC7.2", "The system is monitored: anomalies that were found", f.lit(RECORDED)),
        verification(ops, segments, quarantine, "PI1.4", "Records are complete and unchanged", dates),
    )  # fmt: skip
