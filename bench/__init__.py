"""Benchmarks: what tenantq costs, beside the bare cost of the same work, in one run."""
