"""Which shard has which tenant. The truth is each shard's own catalog; here stands what the others have said of theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from typing import Final

from tenantq.cluster.error_codec import shard_down
from tenantq.cluster.layout import HOME
from tenantq.domain.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.domain.placement import Topology, jump_hash, tenant_key
from tenantq.errors import Invalid

_EVERYWHERE: Final = frozenset(PROBE_TENANTS)
_ABROAD: Final = frozenset((DEFAULT_TENANT, *PROBE_TENANTS))


def announced(number: int, names: Iterable[str]) -> list[str]:
    """Return which of a shard's tenants others may know: every shard has some of its own, and 'default' counts on shard 0 alone."""
    hidden = _EVERYWHERE if number == HOME else _ABROAD
    return [name for name in names if name not in hidden]


class Directory:
    """What one shard knows of all. A shard that is down keeps its tenants: they are nobody else's."""

    def __init__(self, number: int, topology: Topology, own: Callable[[], Container[str]]) -> None:
        self.number = number
        self.topology = topology
        self._own = own
        self._hidden = _EVERYWHERE if number == HOME else _ABROAD
        self._shard_of: dict[str, int] = {DEFAULT_TENANT: HOME}
        self._known: set[int] = {number}  # shards that have told what they have, and still run

    def find(self, tenant: str) -> int | None:
        """Return the shard that has a tenant, of two the one with the lower number; None: none that is known."""
        if tenant in self._own() and tenant not in self._hidden:
            return min(self.number, self._shard_of.get(tenant, self.number))
        return self._shard_of.get(tenant) if tenant not in _EVERYWHERE else self.number

    def is_elsewhere(self, tenant: str) -> bool:
        """Tell whether another shard has said that it has a tenant."""
        return self._shard_of.get(tenant, self.number) != self.number

    def address_of(self, shard: int) -> str:
        """Return where clients reach a shard; empty if it is not known."""
        return self.topology.shards[shard].address

    def is_known(self, shard: int) -> bool:
        """Tell whether a shard runs and has told what it has."""
        return shard in self._known

    async def refresh(self) -> None:
        """Do nothing: the other shards announce their tenants."""

    def check_reachable(self, tenant: str) -> None:
        """Raise ShardDown for a tenant whose shard does not run."""
        shard = self.find(tenant)
        if shard is not None and shard not in self._known:
            raise shard_down(shard)

    def check_whole(self) -> None:
        """Raise ShardDown unless all shards have told what they have: an unknown name may be a tenant of a silent one."""
        silent = self.silent
        if silent:
            raise shard_down(min(silent))

    @property
    def silent(self) -> set[int]:
        """The shards that do not run, or have not told yet what they have."""
        return set(range(len(self.topology.shards))) - self._known

    def place(self, tenant: str, regions: Iterable[str]) -> int:
        """Return the shard for a tenant that is to be made: the jump hash of its name over those that it allows.

        Raises Invalid where there is none; another region is never a way out.
        """
        allowed = tuple(regions)
        places = self.topology.eligible(allowed)
        if not places:
            there = ", ".join(sorted({one.region or "none" for one in self.topology.shards}))
            raise Invalid(
                f"regions: no shard is in any of {', '.join(allowed)}; there are shards in {there}", tenant=tenant
            )
        return places[jump_hash(tenant_key(tenant), len(places))]

    # ---- what others say ----

    def learn_all(self, shard: int, tenants: Collection[str]) -> list[str]:
        """Take note of everything that a shard has; return names that another one has too, which stay with the lower number."""
        for name in [name for name, holder in self._shard_of.items() if holder == shard and name != DEFAULT_TENANT]:
            del self._shard_of[name]
        twice = [name for name in tenants if name in self._shard_of and self._shard_of[name] != shard]
        for name in tenants:
            self._shard_of[name] = min(shard, self._shard_of.get(name, shard))
        self._known.add(shard)
        return twice

    def learn(self, shard: int, made: Iterable[str], gone: Iterable[str]) -> None:
        """Take note of what has changed at a shard."""
        for name in gone:
            if self._shard_of.get(name) == shard:
                del self._shard_of[name]
        for name in made:
            self._shard_of[name] = shard

    def learn_own(self, tenant: str) -> None:
        """Take note that a tenant is this shard's, on the word of the first one: what others had said of it is past."""
        self._shard_of.pop(tenant, None)

    def lose(self, shard: int) -> None:
        """Take note that a shard does not run."""
        self._known.discard(shard)
