"""A checker for one queue under faults: the replies its clients got, and everything that contradicts them.

Every confirmed message must be delivered and acked in the end. None may return after its ack was confirmed, none may appear that
nobody added, and while a consumer holds a lease no other may get the message. Times are the checker's own, in seconds.
"""

from __future__ import annotations

from collections import Counter


class TotalQueue:
    """Accounts for every message of one queue. Bodies are unique."""

    def __init__(self) -> None:
        self.tried: set[str] = set()  # bodies that may have been added
        self.added: dict[str, str] = {}  # body: id, confirmed
        self.acked: set[str] = set()  # bodies whose ack was confirmed
        self.uncertain: dict[str, str] = {}  # body: id; an ack without a clear reply may have been executed
        self.leases: dict[str, float] = {}  # body: the earliest time at which its last lease can end
        self.delivered: set[str] = set()
        self.returned: set[str] = set()  # bodies that a consumer has nacked
        self.counts: Counter[str] = Counter()
        self.wrongs: list[str] = []

    def wrong(self, kind: str, text: str) -> None:
        """Note a contradiction."""
        self.counts[kind] += 1
        self.wrongs.append(f"{kind}: {text}")

    def trying(self, body: str) -> None:
        """Note that an add was sent."""
        self.tried.add(body)

    def confirmed(self, body: str, id: str) -> None:
        """Note that an add was confirmed."""
        if self.added.setdefault(body, id) != id:
            self.wrong("doubled", f"{body} was added as {self.added[body]} and as {id}")

    def leased(self, body: str, id: str, asked_at: float, now: float, lease_s: float) -> None:
        """Note a delivery by a poll that was sent at ``asked_at``."""
        if body not in self.tried:
            self.wrong("unexpected", f"{body} was delivered, but never added")
        elif body in self.acked:
            self.wrong("resurrected", f"{body} ({id}) was delivered after its ack was confirmed")
        elif self.added.get(body, id) != id:
            self.wrong("doubled", f"{body} was added as {self.added[body]} and delivered as {id}")
        if now < self.leases.get(body, 0.0):
            left_ms = (self.leases[body] - now) * 1_000
            self.wrong("duplicates not by lease rules", f"{body} ({id}), {left_ms:.0f} ms before its lease could end")
        elif body in self.delivered and body not in self.returned:
            self.counts["duplicates by lease rules"] += 1
        self.delivered.add(body)
        self.returned.discard(body)
        self.leases[body] = asked_at + lease_s

    def settling(self, body: str, *, returns: bool) -> None:
        """Note that an ack or nack was sent: from now on its lease may have ended."""
        self.leases.pop(body, None)
        if returns:
            self.returned.add(body)

    def settled(self, body: str, id: str, *, ok: bool) -> None:
        """Note the reply to an ack. Without ``ok`` it failed, or an earlier attempt may have been executed."""
        if ok:
            self.acked.add(body)
            self.uncertain.pop(body, None)
        elif body not in self.acked:
            self.uncertain[body] = id

    def judge(self) -> None:
        """Note what is missing, once the queue is empty."""
        for body in self.added.keys() - self.acked - self.uncertain.keys():
            self.wrong("lost", f"{body} ({self.added[body]}) was confirmed, and never acked")
