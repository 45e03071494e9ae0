"""The expected contents of the tables, computed in plain Python row by row from the journal."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tenantq.journal.record import JournalRow, rows
from tests.pipeline.journals import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.pipeline.journals import ChainedRecord

QueueKey = tuple[str, str]


def journal_rows(chained: Iterable[ChainedRecord]) -> list[JournalRow]:
    """Return every row, in order."""
    return [row for one in chained for row in rows(one.record)]


class Oracle:
    """Walks through a journal and tracks every message."""

    def __init__(self, found: Iterable[JournalRow]) -> None:
        self.lives: dict[tuple[str, str], dict[str, Any]] = {}
        self.held: dict[QueueKey, dict[str, int]] = defaultdict(dict)  # id -> size
        self.leased: dict[QueueKey, set[str]] = defaultdict(set)
        self.hours: dict[tuple[str, str, int], dict[str, int]] = {}
        self._levels: dict[QueueKey, tuple[int, int]] = {}  # start, bytes
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
            for queue_key in list(self._levels):
                self._pass_time(queue_key, end)

    def _hour(self, queue_key: QueueKey, ts: int) -> dict[str, int]:
        names = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_ms", "peak_backlog", "peak_in_flight", "denied", "throttled")  # fmt: skip
        return self.hours.setdefault((*queue_key, ts // HOUR), dict.fromkeys(names, 0))

    def _pass_time(self, queue_key: QueueKey, now: int) -> None:
        """Charge the storage of a queue since its last change, hour by hour."""
        since, size = self._levels.get(queue_key, (now, 0))
        while size and since < now:
            end = min(now, (since // HOUR + 1) * HOUR)
            hour = self._hour(queue_key, since)
            hour["byte_ms"] += size * (end - since)
            hour["peak_backlog"] = max(hour["peak_backlog"], len(self.held[queue_key]) - len(self.leased[queue_key]))
            hour["peak_in_flight"] = max(hour["peak_in_flight"], len(self.leased[queue_key]))
            since = end
        self._levels[queue_key] = (now, size)

    def _note_peaks(self, ts: int) -> None:
        for queue_key, held in self.held.items():
            if held:
                hour = self._hour(queue_key, ts)
                hour["peak_backlog"] = max(hour["peak_backlog"], len(held) - len(self.leased[queue_key]))
                hour["peak_in_flight"] = max(hour["peak_in_flight"], len(self.leased[queue_key]))

    def _change(self, queue_key: QueueKey, ts: int) -> None:
        self._levels[queue_key] = (ts, sum(self.held[queue_key].values()))

    def _take(self, row: JournalRow) -> None:
        queue_key = (row.tenant, row.queue)
        hour = self._hour(queue_key, row.ts)
        hour["operations"] += row.count if row.outcome == "ok" and row.principal != "system" else 0
        hour["denied"] += row.count if row.outcome == "denied" else 0
        hour["throttled"] += row.count if row.outcome == "throttled" else 0
        if row.op == "purge" and row.outcome == "ok":
            self._pass_time(queue_key, row.ts)
            for id in self.held[queue_key]:
                self._end(row, id, "purged")
            self.held[queue_key].clear()
            self.leased[queue_key].clear()
            self._change(queue_key, row.ts)
        if not row.message_id or row.outcome not in {"ok", "expired", "dead"}:
            return
        self._pass_time(queue_key, row.ts)
        self._message(row, queue_key, hour)
        self._change(queue_key, row.ts)

    def _message(self, row: JournalRow, queue_key: QueueKey, hour: dict[str, int]) -> None:
        id, held, leased = row.message_id, self.held[queue_key], self.leased[queue_key]
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
            if life["outcome"] != "dead":  # the move to the dead letters is journaled before its cause
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
