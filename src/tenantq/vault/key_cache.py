"""The unwrapped keys of all tenants in memory, limited in number and age."""

from collections import OrderedDict
from typing import Final

from tenantq.runtime.clock import Clock, Timer
from tenantq.vault.envelope import PlainKey

SWEEPS_PER_AGE: Final = 4


class KeyCache:
    """Holds each tenant's keys by number. The mapping returned by ``of`` stays live."""

    def __init__(self, clock: Clock, *, age_max_ms: int, keys_max: int) -> None:
        self._clock = clock
        self._sweep_ms = max(1, age_max_ms // SWEEPS_PER_AGE)
        self._keys_max = keys_max
        self._tenants: dict[int, dict[int, PlainKey]] = {}
        self._oldest_first: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._oldest_first)

    def of(self, tenant_id: int) -> dict[int, PlainKey]:
        """Return the live, read-only mapping of a tenant's keys by number."""
        return self._tenants.setdefault(tenant_id, {})

    def keep(self, key: PlainKey) -> None:
        """Add a key that was just unwrapped. Beyond the limit, the oldest ones are dropped."""
        place = key.tenant_id, key.number
        self.of(key.tenant_id)[key.number] = key
        self._oldest_first[place] = None
        self._oldest_first.move_to_end(place)
        while len(self._oldest_first) > self._keys_max:
            self._drop(*next(iter(self._oldest_first)))
        if self._timer is None:
            self._timer = self._clock.call_later(self._sweep_ms, self._sweep)

    def forget(self, tenant_id: int) -> None:
        for number in [*self.of(tenant_id)]:
            self._drop(tenant_id, number)

    def clear(self) -> None:
        for tenant_id in [*self._tenants]:
            self.forget(tenant_id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self, tenant_id: int, number: int) -> None:
        del self._tenants[tenant_id][number]
        del self._oldest_first[tenant_id, number]

    def _sweep(self) -> None:
        now = self._clock.monotonic_ms()
        while self._oldest_first:
            tenant_id, number = next(iter(self._oldest_first))
            if self._tenants[tenant_id][number].expires_at > now:
                break  # all have the same age, so the others are younger
            self._drop(tenant_id, number)
        self._timer = self._clock.call_later(self._sweep_ms, self._sweep) if self._oldest_first else None
