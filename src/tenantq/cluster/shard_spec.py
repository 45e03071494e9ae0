"""The place of one shard among those of its server: what its supervisor tells it before it starts."""

from __future__ import annotations

import socket

import msgspec

from tenantq.domain.placement import Topology, TopologyShard


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One shard's place. The secret is what shards of one server know each other by; it is new with every start."""

    number: int
    shards: tuple[TopologyShard, ...]  # all, in their order: names, regions and addresses as clients are told
    secret: str
    peer_ports: tuple[int, ...]  # on loopback, where each is asked by the others
    home_dir: str  # the data directory of the whole server

    @property
    def topology(self) -> Topology:
        """All shards."""
        return Topology(self.shards)

    @property
    def name(self) -> str:
        """What the journal calls this shard."""
        return str(self.number)


class Sockets(msgspec.Struct, frozen=True):
    """The listening sockets of one shard, opened by its supervisor: those of all shards, and its own."""

    peers: socket.socket
    http: tuple[socket.socket, ...]
    rpc: tuple[socket.socket, ...] = ()
