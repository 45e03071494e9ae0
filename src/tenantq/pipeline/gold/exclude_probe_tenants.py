"""Gold tables are about customers: they leave out the tenants between which the server tests their isolation."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tenantq.domain.names import PROBE_TENANTS


def exclude_probe_tenants(rows: DataFrame) -> DataFrame:
    """Return the rows of customers. Bronze and silver keep all rows, because they must reconcile with the queues."""
    return rows.where(~f.col("tenant").isin(*PROBE_TENANTS))
