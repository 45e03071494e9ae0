"""Queues of other systems that live in Redis."""
