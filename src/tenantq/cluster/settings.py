"""Settings of a server with several shards."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from tenantq.domain.cluster_view import CLUSTER_SHARDS_MAX
from tenantq.domain.names import OptionalRegionName
from tenantq.domain.validation import about, between
from tenantq.errors import Invalid
from tenantq.store.shard_directories import SHARDS_MAX

SECRET_CHARS_MIN: Final = 16
STALLED_MS_MIN: Final = 3_000
_FirstPort = Annotated[int, between(1, (1 << 16) - SHARDS_MAX)]


class ShardsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number, regions and addresses of the shards."""

    count: Annotated[int, between(1, SHARDS_MAX, "Number of shards. Default: as in the data directory.")] | None = None
    ports: Annotated[_FirstPort, about("Shard k listens on this HTTP port + k. Default: free ports.")] | None = None
    rpc_ports: (
        Annotated[_FirstPort, about("Shard k listens on this Cap'n Proto port + k. Default: free ports.")] | None
    ) = None
    addresses: Annotated[
        tuple[str, ...], about("Address of each shard for clients. Default: its port on the host of the request.")
    ] = ()
    regions: Annotated[
        tuple[OptionalRegionName, ...], about("Region of each shard. Default: all in shard.region.")
    ] = ()
    stalled_ms: Annotated[
        int, between(0, 3_600_000, "Restart a shard whose event loop stalls this long, from 3000; 0: never.")
    ] = 30_000

    def __post_init__(self) -> None:
        """Refuse an address without a scheme, and a limit that a busy shard could reach."""
        for address in self.addresses:
            if not address.startswith(("http://", "https://")):
                raise Invalid(f"addresses: {address[:80]!r} is not http://HOST:PORT or https://HOST:PORT")
        if 0 < self.stalled_ms < STALLED_MS_MIN:
            raise Invalid(f"stalled_ms: out of range ({self.stalled_ms}, allowed: 0, {STALLED_MS_MIN} to 3600000)")


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster of servers that share one remote store."""

    shards: (
        Annotated[
            int, between(1, CLUSTER_SHARDS_MAX, "Number of shards. Default: as in the store, or 64 in a new one.")
        ]
        | None
    ) = None
    regions: Annotated[
        tuple[str, ...], about("Regions of a new cluster: shard k is in region k modulo their number.")
    ] = ()
    secret: (
        Annotated[
            str,
            msgspec.Meta(min_length=SECRET_CHARS_MIN),
            about("Secret that all servers know. It encrypts the keys that they share in the store."),
        ]
        | None
    ) = None
    previous_secrets: Annotated[
        tuple[str, ...], about("Earlier values of the secret, which other servers may still have.")
    ] = ()

    peer: (
        Annotated[
            str,
            about(
                "Address where other servers reach this one, over TLS except on loopback. Process k uses port + k."
                " Default: this machine's address towards the store, any free port."
            ),
        ]
        | None
    ) = None
    url: Annotated[str, about("URL where clients reach this server. Default: its HTTP address.")] | None = None
    processes: Annotated[int, between(1, SHARDS_MAX, "Processes of this server, behind one address.")] = 1
    capacity: Annotated[float, msgspec.Meta(gt=0), about("Share of the shards, relative to other servers.")] = 1.0

    def __post_init__(self) -> None:
        """Refuse previous secrets without a current one."""
        if self.previous_secrets and self.secret is None:
            raise Invalid("previous_secrets: requires cluster.secret, which replaces them.")

    @property
    def secrets(self) -> list[str]:
        """The secret that encrypts, then those that are accepted as well; empty if there is none."""
        return [self.secret, *self.previous_secrets] if self.secret is not None else []

    def __repr__(self) -> str:
        """Show everything but the secrets."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if "secret" not in name)
        return f"ClusterSettings({', '.join(shown)})"


def one_each(name: str, given: Sequence[str], count: int, default: str) -> list[str]:
    """Return one value for each shard. Raises Invalid if another number of them is given."""
    if given and len(given) != count:
        raise Invalid(f"shards.{name}: wrong number of values ({len(given)}, must be {count}). Set one per shard.")
    return list(given) or [default] * count
