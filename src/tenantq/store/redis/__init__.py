"""The store beyond one machine: a shard's rows in Redis or Valkey, all under one hash tag, owned by one server at a time.

The engine's rules are not written a second time here: a round is executed by the same Python and applied by one server-side function.
See docs/decisions for why, and docs/store.md for what the keys hold.
"""
