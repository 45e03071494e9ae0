"""Gold ``compliance_gdpr_art30``: the record of processing activities required by article 30, by day and tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from tenantq.pipeline.gold.compliance_evidence import compliance, verification

ACTIVITIES: Final = {
    "30.1.b": ("Processing: messages stored and handed to workers", ("add", "poll", "ack"), ("ok",)),
    "30.1.d": ("Disclosure: contents that people looked at or took away", ("peek", "get", "result", "export"), ("ok",)),
    "30.1.f": ("Erasure: what was deleted, by whom or by its time limit", ("remove", "purge", "drop_queue", "delete_tenant", "expire"), ("ok", "expired")),
    "30.1.g": ("Security: calls that were refused", ("*",), ("denied", "throttled")),
}  # fmt: skip
"""Paragraph -> its subject, and the ops and outcomes that show it."""


def compliance_gdpr_art30(
    ops: DataFrame, segments: DataFrame, quarantine: DataFrame, dates: Sequence[str] = ()
) -> DataFrame:
    """Return rows of COMPLIANCE for the days of ``ops`` (ops_daily); ``dates`` are all days of the lake."""
    title = "Security: the record itself is complete and unchanged"
    return compliance(ops, ACTIVITIES, verification(ops, segments, quarantine, "30.1.g", title, dates))
