"""The reply about a server and its shards."""

from tenantq.wire.base_types import WireReply


class ShardItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A shard: its name, where it is, and how clients reach it."""

    name: str
    region: str = ""  # none: it serves no tenant that names regions
    address: str = ""  # none: not configured


class TopologyReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The shards that a server knows, and what it is itself."""

    shards: list[ShardItem]
    server: str  # unique identity of the server, from its audit key
    version: str
    format: int  # of its store's format
    now: int  # its clock
    encryption: bool  # whether tenants can be encrypted there
