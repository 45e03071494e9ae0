"""Spark reads and writes tenantq: ``spark.read``, ``readStream``, ``write`` and ``writeStream`` with ``format("tenantq")``.

from tenantq.pipeline.connector import register
register(spark)
"""

from tenantq.pipeline.connector.source import TenantqSource, register

__all__ = ["TenantqSource", "register"]
