"""The load of each shard: the share of a core that its rounds use, as a mean of the last seconds."""

from collections.abc import Mapping
from typing import Final

MEAN_OVER_MS: Final = 10_000
"""A shorter mean would follow bursts, and shards would move back and forth."""


class ShardLoads:
    """Measures loads. How often that happens does not change them."""

    def __init__(self, now_ms: int) -> None:
        self._measured_ms = now_ms
        self._busy_us: dict[int, int] = {}
        self._age_ms: dict[int, int] = {}
        self._loads: dict[int, float] = {}

    def measure(self, now_ms: int, busy_us: Mapping[int, int]) -> dict[int, float]:
        """Return the load of each shard; ``busy_us`` are the sums of what their rounds took. A new shard has no load yet."""
        passed_ms, self._measured_ms = max(1, now_ms - self._measured_ms), now_ms
        loads: dict[int, float] = {}
        for shard, busy in busy_us.items():
            if shard not in self._busy_us:
                loads[shard], self._age_ms[shard] = 0.0, 0
                continue
            share = max(0, busy - self._busy_us[shard]) / (passed_ms * 1_000)
            self._age_ms[shard] = min(MEAN_OVER_MS, self._age_ms[shard] + passed_ms)
            weight = min(1.0, passed_ms / self._age_ms[shard])
            loads[shard] = self._loads[shard] * (1 - weight) + share * weight
        self._busy_us, self._loads = dict(busy_us), loads
        return loads
