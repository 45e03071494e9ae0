"""The engine of one shard: fair rounds of operations on the store."""
