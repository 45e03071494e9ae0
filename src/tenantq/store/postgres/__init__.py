"""The PostgreSQL store: a shard's rows in a partition of one table, with one owner at a time.

The engine executes a round as on any other store; one transaction applies it. See docs/internals/decisions/0022-postgres-store.md
for the reasons and docs/internals/stores.md for the tables.
"""
