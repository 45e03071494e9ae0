"""The store beyond one machine: a shard's rows in Redis or Valkey, all under one hash tag, owned by one server at a time.

The engine's rules are not written a second time here: a round is executed by the same Python and applied by one server-side function.
docs/internals/decisions/0015-redis-store.md says why, docs/internals/stores.md describes the keys.
"""
