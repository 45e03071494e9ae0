"""Lets Spark find the connector by itself: it imports every top-level package whose name begins with ``pyspark_``."""

try:
    from tenantq.pipeline.connector import TenantqSource as DefaultSource
except ImportError:  # without pyarrow, other sources of the same Spark must go on working
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
