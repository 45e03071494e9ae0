"""What a supervisor and its shard processes say to each other, over a socket that nobody else has."""

from __future__ import annotations

import msgspec

from tenantq.cli.addresses import Place
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.settings import ServerSettings

LENGTH_BYTES = 4
ALIVE_EVERY_MS = 1_000
"""How often a shard that is ready says that it is alive; its event loop says so, on which everything depends."""


class ShardStartup(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard process is told first: everything it needs to serve. Sockets are told by their descriptors."""

    seat: ShardSpec
    settings: ServerSettings
    admin_token: str | None
    peers_fd: int
    http_fds: tuple[int, ...]  # its own addresses, which outlive it ...
    rpc_fds: tuple[int, ...]
    http_places: tuple[Place, ...]  # ... and those of all shards
    rpc_places: tuple[Place, ...]


class ShardStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a shard process tells: a line of JSON each."""

    what: str  # "opened", "ready", "failed", "alive" or "drained"
    code: str = ""  # of the error for which it could not start
    message: str = ""


DRAIN = b"drain\n"
"""Take no more requests, and finish those in flight; the others may still need an answer."""
CLOSE = b"close\n"
"""Nobody needs an answer any more: close the store."""
