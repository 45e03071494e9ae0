"""Capacity and placement: where queues would lie on other shards, how full these would be, and what would move."""
