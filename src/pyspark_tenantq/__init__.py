"""Lets Spark find the connector by itself: it imports every top-level package whose name begins with ``pyspark_``."""

try:
    from tenantq.pipeline.connector import TenantqSource as DefaultSource
except ImportError:  # without pyarrow, other data sources of the session must keep working
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
