"""Filters of journal rows, and the audit result of a row's outcome."""

from typing import Final

import msgspec

from tenantq.domain.access import AuditResult, matches
from tenantq.journal.record import JournalRow
from tenantq.runtime.randomness import id_bytes

_RESULTS_OF: Final[dict[str, AuditResult]] = {
    **dict.fromkeys(("ok", "expired", "dead", "deferred", "healed"), "SUCCESS"),
    **dict.fromkeys(("denied", "throttled"), "DENIED"),
}


def result_of(outcome: str) -> AuditResult:
    """Return the audit result of an outcome. Refusals, alerts and failed checks are errors."""
    return _RESULTS_OF.get(outcome, "ERROR")


def outcomes_of(result: str) -> tuple[list[str], bool]:
    """Return outcomes, and whether they are those with this result or all those without it."""
    named = [outcome for outcome, its_result in _RESULTS_OF.items() if its_result == result]
    return (named, True) if named else (list(_RESULTS_OF), False)


class JournalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on journal rows; None: any. All conditions must hold."""

    tenant: str | None = None
    ops: frozenset[str] | None = None
    result: str | None = None
    principal: str | None = None
    start: int | None = None  # wall clock, from this on
    end: int | None = None  # wall clock, before this
    queue: str | None = None
    queues: tuple[str, ...] | None = None  # patterns, one of which the queue must match; rows about no queue match none
    message: str | None = None

    def matches(self, row: JournalRow) -> bool:
        """Return whether a row meets all conditions."""
        return (
            (self.tenant is None or row.tenant == self.tenant)
            and (self.ops is None or row.op in self.ops)
            and (self.result is None or result_of(row.outcome) == self.result)
            and (self.principal is None or row.principal == self.principal)
            and (self.start is None or row.ts >= self.start)
            and (self.end is None or row.ts < self.end)
            and (self.queue is None or row.queue == self.queue)
            and (self.queues is None or self.sees(row.queue))
            and (self.message is None or row.message_id == self.message)
        )

    def sees(self, queue: str) -> bool:
        """Return whether one of the patterns matches a queue."""
        return self.queues is None or (queue != "" and any(matches(pattern, queue) for pattern in self.queues))

    def needles(self) -> list[list[bytes]]:
        """Return lists of bytes. A record can match only if it contains one of each list. Searching is cheaper than decoding."""
        texts = [[text.encode()] for text in (self.tenant, self.principal, self.queue) if text is not None]
        if self.ops is not None:
            texts.append([op.encode() for op in self.ops])
        return [*texts, [id_bytes(self.message)]] if self.message is not None else texts
