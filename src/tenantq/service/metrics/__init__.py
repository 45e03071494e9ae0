"""Metrics for Prometheus. Values are read on request; the parts of a server only count."""
