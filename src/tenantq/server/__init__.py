"""Running servers: one on its embedded store (``Server``), or a member of a cluster on a remote store.

Both wire shards (``shard_runtime``) and listeners (``transports``) together.
"""

from tenantq.server.embedded import Server

__all__ = ["Server"]
