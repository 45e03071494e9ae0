"""Several shards on one machine: a supervisor that starts, watches and stops one process per shard."""
