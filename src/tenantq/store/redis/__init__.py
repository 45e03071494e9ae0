"""The Redis and Valkey store: a shard's rows under one hash tag, with one owner at a time.

The engine executes a round as on any other store; one server-side function applies it. See
docs/internals/decisions/0015-redis-store.md for the reasons and docs/internals/stores.md for the keys.
"""
