"""The tenant directory of embedded shards: each shard's catalog is the truth, and the others announce theirs."""

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
    """Return the tenants that a shard announces: without its probe tenants, and 'default' only from shard 0."""
    hidden = _EVERYWHERE if number == HOME else _ABROAD
    return [name for name in names if name not in hidden]


class Directory:
    """What one shard knows about all. A shard that is down keeps its tenants."""

    def __init__(self, number: int, topology: Topology, own: Callable[[], Container[str]]) -> None:
        self.number = number
        self.topology = topology
        self._own = own
        self._hidden = _EVERYWHERE if number == HOME else _ABROAD
        self._shard_of: dict[str, int] = {DEFAULT_TENANT: HOME}
        self._known: set[int] = {number}  # shards that have announced their tenants, and still run

    def find(self, tenant: str, queue: str | None = None) -> int | None:
        """Return the shard of a tenant and all its queues, of two the lower one; None if it is not known."""
        del queue
        if tenant in self._own() and tenant not in self._hidden:
            return min(self.number, self._shard_of.get(tenant, self.number))
        return self._shard_of.get(tenant) if tenant not in _EVERYWHERE else self.number

    def is_on_another_shard(self, tenant: str) -> bool:
        """Return whether another shard has announced a tenant."""
        return self._shard_of.get(tenant, self.number) != self.number

    def is_known(self, shard: int) -> bool:
        """Return whether a shard runs and has announced its tenants."""
        return shard in self._known

    async def refresh(self) -> None:
        """Do nothing: the other shards announce their tenants."""

    def check_reachable(self, tenant: str) -> None:
        """Raise ShardDown for a tenant whose shard does not run."""
        shard = self.find(tenant)
        if shard is not None and shard not in self._known:
            raise shard_down(shard)

    def check_whole(self) -> None:
        """Raise ShardDown unless all shards have announced their tenants: an unknown name may belong to a silent one."""
        silent = self.silent
        if silent:
            raise shard_down(min(silent))

    @property
    def silent(self) -> set[int]:
        """The shards that do not run, or have not announced their tenants yet."""
        return set(range(len(self.topology.shards))) - self._known

    def place(self, tenant: str, regions: Iterable[str]) -> int:
        """Return the shard for a new tenant: the jump hash of its name over the shards in its regions.

        Raises Invalid if no shard is in its regions.
        """
        allowed = tuple(regions)
        places = self.topology.eligible(allowed)
        if not places:
            there = ", ".join(sorted({one.region or "none" for one in self.topology.shards}))
            raise Invalid(
                f"regions: no shard is in {', '.join(allowed)}. The server has shards in these regions: {there}.",
                tenant=tenant,
            )
        return places[jump_hash(tenant_key(tenant), len(places))]

    # ---- announcements ----

    def learn_all(self, shard: int, tenants: Collection[str]) -> list[str]:
        """Note all tenants of a shard; return names that another shard has too, which stay with the lower one."""
        for name in [name for name, holder in self._shard_of.items() if holder == shard and name != DEFAULT_TENANT]:
            del self._shard_of[name]
        twice = [name for name in tenants if name in self._shard_of and self._shard_of[name] != shard]
        for name in tenants:
            self._shard_of[name] = min(shard, self._shard_of.get(name, shard))
        self._known.add(shard)
        return twice

    def learn(self, shard: int, made: Iterable[str], gone: Iterable[str]) -> None:
        """Note changes at a shard."""
        for name in gone:
            if self._shard_of.get(name) == shard:
                del self._shard_of[name]
        for name in made:
            self._shard_of[name] = shard

    def learn_own(self, tenant: str) -> None:
        """Note that a tenant is this shard's, as the first shard says; earlier announcements are outdated."""
        self._shard_of.pop(tenant, None)

    def lose(self, shard: int) -> None:
        """Note that a shard does not run."""
        self._known.discard(shard)
