"""Gold ``compliance_soc2``: evidence per control of the trust services criteria, by day."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.pipeline.gold.exclude_probe_tenants import exclude_probe_tenants
from tenantq.pipeline.gold.verification import evidence_rows, verification

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    found = [controlled(ops, control, *rest) for control, rest in CONTROLS.items()]
    seen = anomalies.groupBy("date", "tenant", f.concat_ws(": ", "severity", "kind").alias("evidence"))
    status = f.when(f.col("evidence").startswith("high"), "review").otherwise("pass")
    found.append(
        evidence_rows(
            seen.agg(f.count("*").alias("count")), "CC7.2", "The system is watched for anomalies", status
        )
    )  # fmt: skip
    found.append(verification(ops, segments, quarantine, "PI1.4", "Records are complete and unchanged", dates))
    return exclude_probe_tenants(reduce(lambda one, other: one.unionByName(other), found))


def controlled(
    ops: DataFrame, control: str, title: str, names: tuple[str, ...], outcomes: tuple[str, ...]
) -> DataFrame:
    """Return the evidence for one control: how often each op occurred."""
    wanted = f.col("outcome").isin(*outcomes)
    if names != ("*",):
        wanted &= f.col("op").isin(*names)
    grouped = ops.where(wanted).groupBy("date", "tenant", f.concat_ws(" ", "op", "outcome").alias("evidence"))
    return evidence_rows(grouped.agg(f.sum("calls").alias("count")), control, title, f.lit("pass"))
