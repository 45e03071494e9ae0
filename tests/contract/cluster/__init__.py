"""Servers on a shared Redis Cluster."""
