"""Settings of one shard."""

from typing import Annotated, Literal

import msgspec

from tenantq.domain.names import RegionName, ShardName
from tenantq.domain.validation import about, between

_Cost = Annotated[int, between(1, 100_000)]


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one shard process."""

    name: Annotated[ShardName, about("Name of the shard in topologies. Default: its name in the journal.")] | None = (
        None
    )
    address: Annotated[str, about("Address for clients, as listed in a topology.")] | None = None
    region: Annotated[RegionName, about("Region of the shard. A tenant with regions is served only there.")] | None = (
        None
    )
    durability: Annotated[
        Literal["fsync", "os"], about('"os" replies before the sync, which follows within sync_every_ms.')
    ] = "fsync"
    sync_every_ms: Annotated[int, between(1, 60_000, 'Interval of syncs with durability "os".')] = 100
    round_cost_alone: Annotated[
        _Cost, about("Most work in a round while one tenant has any; 1 is a message of up to 4 KiB.")
    ] = 1_024
    round_cost_shared: Annotated[
        _Cost, about("Most work in a round while several tenants have work, or had in the last second.")
    ] = 32
    round_ms: Annotated[int, between(1, 10_000, "No operation starts in a round after this time.")] = 2
    turn_cost: Annotated[_Cost, about("Work of one tenant before the next one's turn.")] = 4
    sweep_rows: Annotated[
        int, between(2, 100_000, "Most rows that one step of sweeping touches; 32 while several tenants have work.")
    ] = 256
    line_ops_max: Annotated[int, between(1, 10_000_000, "Operations of one tenant that may wait.")] = 20_000
    waiting_polls_max: Annotated[int, between(1, 10_000_000, "Long polls of one queue that may wait.")] = 10_000
    disk_reserve_bytes: Annotated[int, between(0, 1 << 60, "Refuse new messages below this much free space.")] = (
        64 << 20
    )
    memory_bytes: Annotated[int, between(8 << 20, 1 << 40, "Block cache and write buffers together.")] = 96 << 20
