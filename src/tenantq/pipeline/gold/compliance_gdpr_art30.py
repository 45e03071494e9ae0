"""Gold ``compliance_gdpr_art30``: the record of processing activities required by article 30, by day and tenant."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from tenantq.pipeline.gold.compliance_evidence import compliance, control_results, verification

ACTIVITIES: Final = {
    "30.1.b": ("Processing: messages stored and delivered to workers", ("add", "poll", "ack"), ("ok",)),
    "30.1.d": ("Disclosure: contents that were read or exported", ("peek", "get", "result", "export"), ("ok",)),
    "30.1.f": ("Erasure: data that was deleted, by a principal or by its TTL", ("remove", "purge", "drop_queue", "delete_tenant", "expire"), ("ok", "expired")),
    "30.1.g": ("Security: calls that were refused", ("*",), ("denied", "throttled")),
}  # fmt: skip
"""Paragraph -> its subject, and the ops and outcomes that show it."""


def compliance_gdpr_art30(
    ops: DataFrame, evaluated: DataFrame, segments: DataFrame, quarantine: DataFrame, dates: Sequence[str] = ()
) -> DataFrame:
    """Return rows of COMPLIANCE for the days of ``ops`` (ops_daily); ``dates`` are all days of the lake.

    ``evaluated`` are rows of bronze with results of controls.
    """
    title = "Security: the record itself is complete and unchanged"
    return compliance(
        ops, ACTIVITIES, control_results(evaluated, "gdpr"),
        verification(ops, segments, quarantine, "30.1.g", title, dates),
    )  # fmt: skip
