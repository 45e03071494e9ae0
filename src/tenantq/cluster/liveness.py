"""Which members are alive, judged by how long each heartbeat has not changed while this member could read the store."""

from collections.abc import Mapping


class Liveness:
    """Observes heartbeats. Only time in which the store answered counts, so an outage of the store declares no member dead."""

    def __init__(self, dead_ms: int, step_ms_max: int) -> None:
        """``step_ms_max``: a longer gap between two observations counts as this much."""
        self._dead_ms = dead_ms
        self._step_ms_max = step_ms_max
        self._last_ms: int | None = None
        self._beats: dict[str, int] = {}  # by member: its last heartbeat
        self._silent_ms: dict[str, int] = {}  # by member: for how long it has not changed

    def observe(self, now_ms: int, beats: Mapping[str, int]) -> set[str]:
        """Take the heartbeat of each member, read at ``now_ms`` of a monotonic clock; return the members that are alive."""
        step = 0 if self._last_ms is None else min(now_ms - self._last_ms, self._step_ms_max)
        self._last_ms = now_ms
        self._silent_ms = {
            id: self._silent_ms.get(id, 0) + step if self._beats.get(id) == beat else 0 for id, beat in beats.items()
        }
        self._beats = dict(beats)
        return {id for id, silent_ms in self._silent_ms.items() if silent_ms < self._dead_ms}
