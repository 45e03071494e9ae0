"""The source of a migration: fenced while it is copied, or resumed."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

from tenantq.errors import Conflict
from tenantq.migration.endpoint import Endpoint
from tenantq.migration.move_note import OutgoingMove, parse_outgoing
from tenantq.runtime.clock import Clock

POLL_EVERY_MS: Final = 250


class SourceFence:
    """Suspends the source, or some of its queues, in two steps: first no new work, then no change at all."""

    def __init__(self, source: Endpoint, target: Endpoint, queues: Sequence[str], *, whole_tenant: bool) -> None:
        self._source = source
        self._target = target
        self._queues = queues
        self._whole_tenant = whole_tenant

    def close(self) -> None:
        """Refuse adds and polls. Leases may be settled. What is frozen already stays frozen."""
        self._suspend("settle", "moving", unless_frozen=True)

    def freeze(self) -> None:
        """Refuse all changes, so that every export is the same. Leases are lost."""
        self._suspend("freeze", "moving")

    def mark_moved(self) -> None:
        """Record that the target serves the tenant now. The migration cannot be aborted any more."""
        self._suspend("freeze", "moved")

    def in_flight(self) -> int:
        """Return the number of leased messages."""
        with self._source.naming_errors():
            return sum(one.in_flight for name, one in self._source.queues().items() if name in self._queues)

    def settle(
        self, clock: Clock, wait_ms: int, pause: Callable[[int], None], report: Callable[[int, int], None]
    ) -> int:
        """Wait until nothing is leased, at most ``wait_ms``. Returns the leases left. ``report`` gets leases and time left."""
        end_ms = clock.monotonic_ms() + wait_ms
        while True:
            left, left_ms = self.in_flight(), end_ms - clock.monotonic_ms()
            report(left, max(0, left_ms))
            if not left or left_ms <= 0:
                return left
            pause(min(POLL_EVERY_MS, left_ms))

    def is_frozen(self) -> bool:
        """Return whether everything that moves is frozen by this migration."""
        with self._source.naming_errors():
            facts = self._source.tenant.get()
            if self._whole_tenant:
                found = [facts.suspension]
            else:
                there = self._source.queues()
                found = [there[name].suspension for name in self._queues]
        return all(one is not None and one.mode == "freeze" and self._is_ours(parse_outgoing(one)) for one in found)

    def _is_ours(self, note: OutgoingMove | None) -> bool:
        return (
            note is not None
            and note.state == "moving"
            and note.is_about(self._target.topology.server, self._target.name)
        )

    def _suspend(
        self, mode: Literal["settle", "freeze"], state: Literal["moving", "moved"], *, unless_frozen: bool = False
    ) -> None:
        target = self._target
        note = OutgoingMove(state=state, server=target.topology.server, tenant=target.name, url=target.url)
        with self._source.naming_errors():
            if self._whole_tenant:
                suspension = self._source.tenant.get().suspension
                if not (unless_frozen and suspension is not None and suspension.mode == "freeze"):
                    self._source.tenant.suspend(note.text(), mode)
                return
            there = self._source.queues()
            for name in self._queues:
                suspension = there[name].suspension
                if not (unless_frozen and suspension is not None and suspension.mode == "freeze"):
                    self._source.queue(name).suspend(note.text(), mode)


def resume_source(source: Endpoint) -> list[str]:
    """End the suspensions of a migration at the source. Returns what was resumed. Does not need the target.

    Raises Conflict after the cut-over, because two servers would deliver the same messages.
    """
    with source.naming_errors():
        facts, queues = source.tenant.get(), source.queues()
        notes = [parse_outgoing(facts.suspension), *(parse_outgoing(one.suspension) for one in queues.values())]
        for note in notes:
            if note is not None and note.state == "moved":
                raise Conflict(
                    f"it was cut over: tenant {note.tenant} works at {note.url}; to have it here, move it back"
                )
        resumed = []
        if notes[0] is not None:
            source.tenant.resume()
            resumed.append(f"tenant {source.name}")
        for name, note in zip(queues, notes[1:], strict=True):
            if note is not None:
                source.queue(name).reopen()
                resumed.append(f"queue {name}")
    return resumed
