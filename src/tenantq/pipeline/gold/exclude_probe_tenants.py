"""Whom gold is about: customers. The server's own tenants, between which it probes their isolation, pay nothing and are reported to nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tenantq.domain.names import PROBE_TENANTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def customers(rows: DataFrame) -> DataFrame:
    """Leave out the rows of the server's own tenants. Bronze and silver keep them, so the record stays whole and reconciles."""
    return rows.where(~f.col("tenant").isin(*PROBE_TENANTS))
