"""What can be set for a server of several shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.cluster.layout import SHARDS_MAX
from tenantq.domain.message import check_int
from tenantq.domain.placement import check_region
from tenantq.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence


STALLED_MS_MIN: Final = 3_000
STALLED_MS_MAX: Final = 3_600_000


class ShardsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many shards there are, where they are, and how they are reached one by one."""

    count: int | None = None  # none: as many as the data directory has
    ports: int | None = None  # shard k's own HTTP address has this port + k; none: free ones
    rpc_ports: int | None = None  # the same for Cap'n Proto
    addresses: tuple[str, ...] = ()  # where clients reach each shard; none: its own port on the host they came by
    regions: tuple[str, ...] = ()  # where each shard is; none: all in shard.region
    stalled_ms: int = 30_000  # a shard whose event loop stood still for so long is killed and started again; 0: never


def check_shards(settings: ShardsSettings) -> ShardsSettings:
    """Return ``settings`` if they can be, else raise Invalid naming what is wrong."""
    if settings.count is not None:
        check_int("shards.count", settings.count, 1, SHARDS_MAX)
    for name in ("ports", "rpc_ports"):
        if (port := getattr(settings, name)) is not None:
            check_int(f"shards.{name}", port, 1, (1 << 16) - SHARDS_MAX)
    if settings.stalled_ms:
        check_int("shards.stalled_ms", settings.stalled_ms, STALLED_MS_MIN, STALLED_MS_MAX)
    for region in settings.regions:
        check_region("shards.regions", region)
    for address in settings.addresses:
        if not address.startswith(("http://", "https://")):
            raise Invalid(f"shards.addresses: {address[:80]!r} is not http://HOST:PORT or https://HOST:PORT")
    return settings


def one_each(name: str, given: Sequence[str], count: int, default: str) -> list[str]:
    """Return one value for each shard; Invalid where another number of them is given."""
    if given and len(given) != count:
        raise Invalid(f"shards.{name}: {len(given)} are given, there are {count} shards; give one for each")
    return list(given) or [default] * count
