"""The place of one shard among the shards of its server, assigned by its supervisor."""

import socket

import msgspec

from tenantq.domain.placement import Topology, TopologyShard


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One shard's place. Shards of one server authenticate each other with the secret, which is new with every start."""

    number: int
    shards: tuple[TopologyShard, ...]  # all, in order: names, regions, and addresses for clients
    secret: str
    peer_ports: tuple[int, ...]  # on loopback, for the other shards
    home_dir: str  # the data directory of the whole server

    @property
    def topology(self) -> Topology:
        """All shards."""
        return Topology(self.shards)

    @property
    def name(self) -> str:
        """Name of this shard in the journal."""
        return str(self.number)


class Sockets(msgspec.Struct, frozen=True):
    """The listening sockets of one shard, opened by its supervisor: those of all shards, and its own."""

    peers: socket.socket | None  # None: of a member of a cluster, which opens its own
    http: tuple[socket.socket, ...]
    rpc: tuple[socket.socket, ...] = ()
