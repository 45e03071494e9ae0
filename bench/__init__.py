"""Benchmarks: what tenantq costs, compared with the bare cost of the same work in one run."""
