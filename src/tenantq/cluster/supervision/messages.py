"""The messages between a supervisor and its shard processes, over a socket pair of their own."""

from typing import Literal

import msgspec

from tenantq.cluster.shard_spec import ShardSpec
from tenantq.server.listen_addresses import SharedAddress
from tenantq.settings import ServerSettings

LENGTH_BYTES = 4
ALIVE_EVERY_MS = 1_000
"""How often a shard that is ready reports that it is alive. Its event loop sends the report, so a stalled loop is noticed."""


class ShardStartup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a process: everything it needs to serve. Sockets are given by file descriptor."""

    number: int
    spec: ShardSpec | None  # of the shard that it serves; None: it is a member of a cluster
    settings: ServerSettings
    admin_token: str | None
    peers_fd: int | None
    http_fds: tuple[int, ...]  # its own addresses, which outlive it ...
    rpc_fds: tuple[int, ...]
    http_addresses: tuple[SharedAddress, ...]  # ... and those of all shards
    rpc_addresses: tuple[SharedAddress, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All file descriptors that the process inherits."""
        return (*(() if self.peers_fd is None else (self.peers_fd,)), *self.http_fds, *self.rpc_fds)


class ShardStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a shard process: one line of JSON."""

    state: Literal["starting", "opened", "ready", "failed", "alive", "drained"]
    code: str = ""  # of the error that stopped its start
    message: str = ""


DRAIN = b"drain\n"
"""Accept no more requests, and finish those in flight. The other shards may still need answers."""
CLOSE = b"close\n"
"""No shard needs an answer any more: close the store."""
