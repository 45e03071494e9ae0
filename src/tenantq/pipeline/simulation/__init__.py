"""Capacity and placement: where tenants would be on other shards, how full these would be, and what would move."""
