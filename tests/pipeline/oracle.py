"""What the tables must say, computed in plain Python, one row of the journal after the other."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tenantq.journal.record import JournalRow, rows
from tests.pipeline.journals import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.journal.record import ChainedRecord

Place = tuple[str, str]


def journal_rows(sealed: Iterable[ChainedRecord]) -> list[JournalRow]:
    """Return every row, in order."""
    return [row for one in sealed for row in rows(one.record)]


class Oracle:
    """Walks over a journal and keeps every message in its place."""

    def __init__(self, found: Iterable[JournalRow]) -> None:
        self.lives: dict[tuple[str, str], dict[str, Any]] = {}
        self.held: dict[Place, dict[str, int]] = defaultdict(dict)  # id -> size
        self.leased: dict[Place, set[str]] = defaultdict(set)
        self.hours: dict[tuple[str, str, int], dict[str, int]] = {}
        self._levels: dict[Place, tuple[int, int]] = {}  # since when, bytes
        self._now = 0
        last: tuple[int, int] | None = None
        for row in found:
            if last is not None and row.seq != last[0]:
                self._note_peaks(last[1])
            last = (row.seq, row.ts)
            self._now = row.ts
            self._take(row)
        if last is not None:
            self._note_peaks(last[1])
            end = (last[1] // HOUR + 1) * HOUR
            for place in list(self._levels):
                self._pass_time(place, end)

    def _hour(self, place: Place, ts: int) -> dict[str, int]:
        names = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_ms", "peak_backlog", "peak_in_flight", "denied", "throttled")  # fmt: skip
        return self.hours.setdefault((*place, ts // HOUR), dict.fromkeys(names, 0))

    def _pass_time(self, place: Place, now: int) -> None:
        """Charge what lay in a queue since its last change, hour by hour."""
        since, size = self._levels.get(place, (now, 0))
        while size and since < now:
            end = min(now, (since // HOUR + 1) * HOUR)
            hour = self._hour(place, since)
            hour["byte_ms"] += size * (end - since)
            hour["peak_backlog"] = max(hour["peak_backlog"], len(self.held[place]) - len(self.leased[place]))
            hour["peak_in_flight"] = max(hour["peak_in_flight"], len(self.leased[place]))
            since = end
        self._levels[place] = (now, size)

    def _note_peaks(self, ts: int) -> None:
        for place, held in self.held.items():
            if held:
                hour = self._hour(place, ts)
                hour["peak_backlog"] = max(hour["peak_backlog"], len(held) - len(self.leased[place]))
                hour["peak_in_flight"] = max(hour["peak_in_flight"], len(self.leased[place]))

    def _change(self, place: Place, ts: int) -> None:
        self._levels[place] = (ts, sum(self.held[place].values()))

    def _take(self, row: JournalRow) -> None:
        place = (row.tenant, row.queue)
        hour = self._hour(place, row.ts)
        hour["operations"] += row.count if row.outcome == "ok" and row.principal != "system" else 0
        hour["denied"] += row.count if row.outcome == "denied" else 0
        hour["throttled"] += row.count if row.outcome == "throttled" else 0
        if row.op == "purge" and row.outcome == "ok":
            self._pass_time(place, row.ts)
            for id in self.held[place]:
                self._end(row, id, "purged")
            self.held[place].clear()
            self.leased[place].clear()
            self._change(place, row.ts)
        if not row.message_id or row.outcome not in {"ok", "expired", "dead"}:
            return
        self._pass_time(place, row.ts)
        self._message(row, place, hour)
        self._change(place, row.ts)

    def _message(self, row: JournalRow, place: Place, hour: dict[str, int]) -> None:
        id, held, leased = row.message_id, self.held[place], self.leased[place]
        life = self.lives.setdefault(
            (row.tenant, id), {"queue": None, "bytes": 0, "waits": [], "times": [], "outcome": "", "ended_at": None, "dead_letters": 0}
        )  # fmt: skip
        if row.op == "add":
            hour["messages_in"] += 1
            hour["bytes_in"] += row.bytes
            held[id] = row.bytes
            life.update(queue=row.queue, bytes=row.bytes, outcome="waiting")
        elif row.op == "poll":
            hour["messages_out"] += 1
            hour["bytes_out"] += row.bytes
            leased.add(id)
            life["waits"].append(row.wait_ms)
            life["outcome"] = "in_flight"
        elif row.op in {"ack", "remove", "expire"}:
            held.pop(id)
            leased.discard(id)
            if row.op == "ack":
                life["times"].append(row.process_ms)
            self._end(row, id, {"ack": "acked", "remove": "removed", "expire": "expired"}[row.op])
        elif row.op in {"nack", "release", "lease_expired"}:
            leased.discard(id)
            life["times"].append(row.process_ms)
            if life["outcome"] != "dead":  # the move to the dead letters is told before what led to it
                life["outcome"] = "waiting"
        elif row.op in {"dead_letter", "redrive"}:
            match = re.match(r"to ([^:]*)", row.details)
            assert match
            target = (row.tenant, match.group(1))
            held.pop(id)
            leased.discard(id)
            self._pass_time(target, row.ts)
            self.held[target][id] = row.bytes
            self._change(target, row.ts)
            life["outcome"] = "dead" if row.op == "dead_letter" else "waiting"
            life["dead_letters"] += row.op == "dead_letter"

    def _end(self, row: JournalRow, id: str, outcome: str) -> None:
        self.lives[row.tenant, id].update(outcome=outcome, ended_at=datetime.fromtimestamp(row.ts / 1_000, UTC))
