"""The fence of a move: the source takes and hands out nothing more, its leases end, and then nothing of it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from tenantq.migration.notes import Outgoing, outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenantq.migration.sides import Side
    from tenantq.runtime.clock import Clock

LOOK_EVERY_MS: Final = 250


class Fence:
    """What keeps a source, or some queues of it, as they are."""

    def __init__(self, source: Side, target: Side, queues: Sequence[str], *, whole: bool) -> None:
        self._source = source
        self._target = target
        self._queues = queues
        self._whole = whole

    def close(self) -> None:
        """Take no adds and no polls any more; what is leased may be settled. What is frozen already stays so."""
        self._suspend("settle", "moving", unless_frozen=True)

    def freeze(self) -> None:
        """Let nothing change any more, so that every export is the same. Leases are lost from here on."""
        self._suspend("freeze", "moving")

    def mark_moved(self) -> None:
        """Note that the tenant is served elsewhere now: from here on there is no way back."""
        self._suspend("freeze", "moved")

    def in_flight(self) -> int:
        """Return how many messages are leased."""
        with self._source.calling():
            return sum(one.in_flight for name, one in self._source.queues().items() if name in self._queues)

    def settle(self, clock: Clock, wait_ms: int, pause: Callable[[int], None], tell: Callable[[int, int], None]) -> int:
        """Wait until nothing is leased, at most ``wait_ms``; return how many leases are left. ``tell`` gets these and the time left."""
        end_ms = clock.monotonic_ms() + wait_ms
        while True:
            left, left_ms = self.in_flight(), end_ms - clock.monotonic_ms()
            tell(left, max(0, left_ms))
            if not left or left_ms <= 0:
                return left
            pause(min(LOOK_EVERY_MS, left_ms))

    def is_frozen(self) -> bool:
        """Tell whether everything that moves is frozen by this move."""
        with self._source.calling():
            facts = self._source.tenant.get()
            if self._whole:
                found = [facts.suspension]
            else:
                there = self._source.queues()
                found = [there[name].suspension for name in self._queues]
        return all(one is not None and one.mode == "freeze" and self._is_ours(outgoing(one)) for one in found)

    def _is_ours(self, note: Outgoing | None) -> bool:
        return (
            note is not None and note.state == "moving" and note.leads_to(self._target.known.server, self._target.name)
        )

    def _suspend(self, mode: Literal["settle", "freeze"], state: str, *, unless_frozen: bool = False) -> None:
        note = Outgoing(
            "moved" if state == "moved" else "moving", self._target.known.server, self._target.name, self._target.url
        )
        with self._source.calling():
            if self._whole:
                suspension = self._source.tenant.get().suspension
                if not (unless_frozen and suspension is not None and suspension.mode == "freeze"):
                    self._source.tenant.suspend(note.text(), mode)
                return
            there = self._source.queues()
            for name in self._queues:
                suspension = there[name].suspension
                if not (unless_frozen and suspension is not None and suspension.mode == "freeze"):
                    self._source.queue(name).suspend(note.text(), mode)
