"""Active alerts, and the notifications about them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, Self

import msgspec

from tenantq.domain.alert_rules import AlertKind, Severity

ACTIVE_MAX: Final = 10_000
"""Active alerts of one shard. Further ones are counted, not kept."""


EVENTS: Final = frozenset(("denials", "cross_tenant", "new_places", "self_check"))
"""Kinds of alerts about something that happened. They are journaled where they are raised, each time."""

EVENT_MS: Final = 900_000
"""How long an event, such as a burst of denied calls, counts as active."""


class Subject(msgspec.Struct, frozen=True):
    """The subject of an alert. Two alerts with the same subject are one."""

    kind: AlertKind
    tenant: str = ""
    queue: str = ""
    detail: str = ""  # the quota, check or principal

    @classmethod
    def of_event(cls, kind: AlertKind, tenant: str, principal: str, text: str) -> Self:
        """Return the subject of an event. The text of a failed self-check begins with its name."""
        return cls(kind, tenant, detail=principal or (text.partition(":")[0] if kind == "self_check" else ""))


class Excess(msgspec.Struct, frozen=True):
    """A threshold that is exceeded now."""

    text: str
    severity: Severity = "warning"
    targets: tuple[str, ...] = ()
    silenced_until: int = 0  # wall clock


class ActiveAlert(msgspec.Struct):
    """An alert that lasts."""

    subject: Subject
    finding: Excess
    since: int  # wall clock
    is_noted: bool = False  # its start was journaled
    sent_at: int | None = None  # None: not sent yet, because it is silenced or its targets are busy
    was_sent: bool = False  # before a restart
    ends_at: int | None = None  # when an event that has no end of its own counts as over


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification as its recipients get it."""

    status: Literal["firing", "resolved", "test"]
    kind: AlertKind | Literal["test"]
    severity: Severity = "warning"
    tenant: str = ""
    queue: str = ""
    detail: str = ""
    text: str
    since: int  # wall clock
    at: int
    server: str
    is_repeat: bool = False  # sent before, and still true


class Change(msgspec.Struct, frozen=True):
    """A notification that is due. Without targets, because of a silence, it is only journaled."""

    notification: Notification
    targets: tuple[str, ...]
    is_new: bool  # the alert has begun, or ended


class ActiveAlerts:
    """Active alerts. It notifies once when an alert starts, again after ``repeat_ms``, and when it ends."""

    def __init__(self, server: str, repeat_ms: int) -> None:
        self._server, self._repeat_ms = server, repeat_ms
        self._active: dict[Subject, ActiveAlert] = {}
        self.dropped = 0

    @property
    def active(self) -> list[ActiveAlert]:
        """The active alerts, oldest first."""
        return sorted(self._active.values(), key=lambda one: one.since)

    def report(self, subject: Subject, finding: Excess, now: int) -> None:
        """Note an event, such as a burst of denials."""
        active = self._keep(subject, finding, now)
        if active is not None:
            active.ends_at = now + EVENT_MS

    def restore(self, subject: Subject, finding: Excess, since: int, last_at: int, now: int) -> None:
        """Continue an alert that was active before a restart. It is sent again, because its delivery may have been lost.

        ``last_at`` is when it was last reported, for an event.
        """
        was_sent = now >= finding.silenced_until
        ends_at = last_at + EVENT_MS if subject.kind in EVENTS else None
        restored = ActiveAlert(subject, finding, since, is_noted=True, was_sent=was_sent, ends_at=ends_at)
        known = self._active.setdefault(subject, restored)
        known.since = min(known.since, since)  # an event may have been reported again already

    def counts(self) -> Counter[AlertKind]:
        """Return the number of active alerts by kind."""
        return Counter(one.kind for one in self._active)

    def update(
        self, found: Mapping[Subject, Excess], now: int, has_room: Callable[[tuple[str, ...]], bool] = lambda _: True
    ) -> Iterator[Change | None]:
        """Replace the thresholds that are exceeded, and yield what is due.

        A notification whose targets have no room is due again later. After every other step it yields None: the caller
        decides when to pause.
        """
        for subject, finding in found.items():
            self._keep(subject, finding, now)
            yield None
        for subject, active in list(self._active.items()):
            is_over = now >= active.ends_at if active.ends_at is not None else subject not in found
            yield self._end(active, now, has_room) if is_over else self._continue(active, now, has_room)

    def _end(self, active: ActiveAlert, now: int, has_room: Callable[[tuple[str, ...]], bool]) -> Change | None:
        targets = active.finding.targets if active.sent_at is not None or active.was_sent else ()
        if not has_room(targets):
            return None
        del self._active[active.subject]
        return Change(self._notification(active, "resolved", now), targets, is_new=True)

    def _continue(self, active: ActiveAlert, now: int, has_room: Callable[[tuple[str, ...]], bool]) -> Change | None:
        targets = active.finding.targets
        is_sent = now >= active.finding.silenced_until and self._is_due(active, now) and has_room(targets)
        is_new, active.is_noted = not active.is_noted, True
        if not is_sent and not is_new:
            return None
        is_repeat = active.sent_at is not None or active.was_sent
        notification = self._notification(active, "firing", now, is_repeat=is_repeat)
        if is_sent:
            active.sent_at = now
        return Change(notification, targets if is_sent else (), is_new)

    def _keep(self, subject: Subject, finding: Excess, now: int) -> ActiveAlert | None:
        active = self._active.get(subject)
        if active is None:
            if len(self._active) >= ACTIVE_MAX:
                self.dropped += 1
                return None
            active = self._active[subject] = ActiveAlert(subject, finding, now)
        active.finding = finding
        return active

    def _is_due(self, active: ActiveAlert, now: int) -> bool:
        return active.sent_at is None or bool(self._repeat_ms and now >= active.sent_at + self._repeat_ms)

    def _notification(
        self, active: ActiveAlert, status: Literal["firing", "resolved"], now: int, *, is_repeat: bool = False
    ) -> Notification:
        finding = active.finding
        return Notification(
            **msgspec.structs.asdict(active.subject), status=status, severity=finding.severity, text=finding.text,
            since=active.since, at=now, server=self._server, is_repeat=is_repeat,
        )  # fmt: skip
