"""Gold ``compliance_gdpr_art30``: the record of processing activities that article 30 asks for, day by day and tenant by tenant."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from tenantq.pipeline.gold.compliance_soc2 import controlled
from tenantq.pipeline.gold.verification import verification

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACTIVITIES: Final = {
    "30.1.b": ("Processing: messages stored and handed to workers", ("add", "poll", "ack"), ("ok",)),
    "30.1.d": ("Disclosure: contents that people looked at or took away", ("peek", "get", "result", "export", "audit"), ("ok",)),
    "30.1.f": ("Erasure: what was deleted, by whom or by its time limit", ("remove", "purge", "drop_queue", "delete_tenant", "expire"), ("ok", "expired")),
    "30.1.g": ("Security: calls that were refused", ("*",), ("denied", "throttled")),
}  # fmt: skip
"""Paragraph -> what it is about, which ops show it, with which outcomes."""


def compliance_gdpr_art30(ops: DataFrame, segments: DataFrame, quarantine: DataFrame) -> DataFrame:
    """Return rows of COMPLIANCE for the days of ``ops`` (ops_daily)."""
    found = [controlled(ops, control, *rest) for control, rest in ACTIVITIES.items()]
    dates = ops.select("date").distinct()
    found.append(
        verification(dates, segments, quarantine, "30.1.g", "Security: the record itself is complete and unchanged")
    )
    return reduce(lambda one, other: one.unionByName(other), found)
