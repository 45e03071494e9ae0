"""What must hold for a queue after a kill, judged only by the replies its users got.

The oracle reads the events of every worker. For each token (a message's body) it knows whether the add, ack and removal
were confirmed, did not happen, or were in progress when the worker was killed. After every kill it compares that with
the store: lost, unexpected, resurrected, doubled. Then what was uncertain is certain.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.crash import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.crash.recount import Recount, Stored

SLACK_MS = 4
"""Tolerance: shard time is converted to wall time and back in whole milliseconds on its way to the worker."""


class Lease:
    """The last delivery that a user received."""

    __slots__ = ("ends_at", "live", "queue", "receipt", "sure", "tenant")

    def __init__(self, receipt: str, tenant: str, queue: str, ends_at: int) -> None:
        self.receipt = receipt
        self.tenant = tenant
        self.queue = queue
        self.ends_at = ends_at  # not before this
        self.live = True  # not settled, as far as known
        self.sure = True  # no settlement is in progress


class Token:
    """One message as its users know it."""

    __slots__ = (
        "added", "adding", "ending", "id", "key", "lease", "max_attempts", "name", "queue", "tenant", "ttl_ms",
    )  # fmt: skip

    def __init__(self, name: str, fields: list[str]) -> None:
        self.name = name
        self.tenant, self.queue = fields[0], fields[1]
        self.key = None if fields[2] == "-" else fields[2]
        self.ttl_ms, self.max_attempts = int(fields[4]), int(fields[6])
        self.id: str | None = None
        self.added = False  # confirmed
        self.adding = 1  # adds in progress
        self.ending = 0  # acks and removals in progress
        self.lease: Lease | None = None


class Oracle:
    """Compares replies with what is stored. ``wrongs`` lists all violations."""

    def __init__(self) -> None:
        self.tokens: dict[str, Token] = {}  # those that have not ended
        self.over: dict[str, str] = {}  # token -> how it ended
        self.ids: dict[str, str] = {}  # token -> message id, including ended ones
        self.wrongs: list[str] = []
        self.figures: Counter[str] = Counter()
        self.carried: set[str] = set()  # receipts handed to the next worker
        self._time_offset: int | None = None  # shard time minus machine time
        self.crashed_at: str | None = None
        self.failure: tuple[str, str] | None = None
        self.closed = False
        self._groups: dict[tuple[str, str, str], tuple[str, str]] = {}  # -> id and token delivered last
        self.unanswered: list[tuple[str, str, str, str]] = []  # token, tenant, queue, key of adds that never happened
        self._confirmed: list[tuple[str, str]] = []  # token and verb, since the last comparison
        self._journaled: dict[str, set[str]] = {"add": set(), "ack": set(), "remove": set(), "expire": set()}

    def wrong(self, kind: str, text: str) -> None:
        self.figures[kind] += 1
        self.wrongs.append(f"{kind}: {text}")

    # ---- replies ----

    def read(self, lines: Iterable[str]) -> None:
        """Process one worker's events. An incomplete last line is not an event."""
        self.crashed_at, self.failure, self.closed = None, None, False
        for line in lines:
            if not line.endswith("\n"):
                break
            kind, *fields = line.split()
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(self, fields)

    def _on_opened(self, fields: list[str]) -> None:
        """Shard time runs like the machine's through every restart; otherwise leases would end early or late."""
        offset = int(fields[0]) - int(fields[1])
        if self._time_offset is not None and abs(offset - self._time_offset) > SLACK_MS:
            self.wrong("time jumped", f"shard time is off by {offset - self._time_offset} ms after a restart")
        self._time_offset = offset

    def _on_add(self, fields: list[str]) -> None:
        name = fields[1]
        if name in self.over:
            return  # a retry with the key of a message that has already ended
        token = self.tokens.get(name)
        if token is None:
            self.tokens[name] = Token(name, fields[2:])
        else:
            token.adding += 1

    def _on_added(self, fields: list[str]) -> None:
        _, name, id, duplicate = fields
        self.figures["adds confirmed"] += 1
        known = self.ids.setdefault(name, id)
        if known != id:
            self.wrong("doubled", f"{name} was added as {known} and again as {id}")
        if name in self.over:
            if duplicate == "0":
                self.wrong("doubled", f"{name} had ended ({self.over[name]}) and its key was accepted again")
            return
        token = self.tokens[name]
        if duplicate == "0" and token.added:
            self.wrong("doubled", f"{name} was added before, and its key was accepted again")
        self._confirmed.append((name, "add"))
        token.adding -= 1
        token.added, token.id = True, id

    def _on_refused(self, fields: list[str]) -> None:
        _, name, error = fields
        self.figures[f"adds refused: {error}"] += 1
        token = self.tokens.get(name)
        if token is not None and error not in {"StoreFailed", "DiskFull", "StoreDamaged"}:
            token.adding -= 1  # a failed store may still have written it

    def _on_delivered(self, fields: list[str]) -> None:
        at, name, id, receipt, attempt, tenant, queue, start, end, group = fields
        self.figures["delivered"] += 1
        if name in self.over:
            self.wrong("resurrected", f"{name} had been {self.over[name]} and was delivered at {at}")
            return
        token = self.tokens.get(name)
        if token is None:
            self.wrong("unexpected", f"{name} was delivered and nobody had added it")
            return
        if (tenant, queue) not in {(token.tenant, token.queue), (token.tenant, f"{token.queue}-dlq")}:
            self.wrong("unexpected", f"{name} of {token.tenant}/{token.queue} was delivered in {tenant}/{queue}")
        if self.ids.setdefault(name, id) != id:
            self.wrong("doubled", f"{name} is {self.ids[name]} and was delivered as {id}")
        if queue == token.queue and int(attempt) > token.max_attempts:
            self.wrong("duplicate", f"{name} was delivered {attempt} times, {token.max_attempts} are allowed")
        if token.lease is not None:
            self.figures["redelivered"] += 1
            self._check_lease_over(token.lease, name, int(start))
        if group != "-":
            self._check_group(tenant, queue, group, id, name, int(start))
        token.id = id
        token.lease = Lease(receipt, tenant, queue, int(end))

    def _check_lease_over(self, lease: Lease, name: str, start: int, other: str = "") -> None:
        if lease.live and start < lease.ends_at - SLACK_MS:
            self.wrong("duplicate", f"{name} was delivered at {start}, {other}a lease was live until {lease.ends_at}")

    def _check_group(self, tenant: str, queue: str, group: str, id: str, name: str, start: int) -> None:
        """At most one message of a group is in flight, and none overtakes another of its queue."""
        place = (tenant, queue, group)
        last = self._groups.get(place)
        self._groups[place] = (id, name)
        if last is None or last[1] == name:
            return
        if id < last[0] and not queue.endswith("-dlq"):
            self.wrong("reordered", f"{name} of group {group} came after a later one of it")
        other = self.tokens.get(last[1])
        if other is not None and other.lease is not None and (other.lease.tenant, other.lease.queue) == place[:2]:
            self._check_lease_over(other.lease, name, start, "of its group, ")

    def _on_settle(self, fields: list[str]) -> None:
        at, verb, name, receipt, argument = fields
        token = self.tokens.get(name)
        if token is None or token.lease is None:
            return
        lease = token.lease
        if verb == "ack":
            token.ending += 1
        if lease.receipt == receipt:
            lease.sure = False
            if verb == "extend":
                lease.ends_at = min(lease.ends_at, int(at) + int(argument))
            else:
                lease.live = False  # unknown until the reply whether the lease still holds

    def _on_settled(self, fields: list[str]) -> None:
        at, verb, name, receipt, outcome, until = fields
        token = self.tokens.get(name)
        if token is None or token.lease is None:
            if outcome == "ok":
                self.wrong("resurrected", f"{name} had ended and its {verb} was confirmed")
            return
        lease = token.lease
        if verb == "ack":
            token.ending -= 1
        if outcome == "ok":
            self.figures[f"{verb} confirmed"] += 1
            self.figures["carried leases acked"] += receipt in self.carried
            if lease.receipt != receipt:
                self.wrong("duplicate", f"{name}: {verb} was confirmed with a receipt that is not the last")
            lease.sure = True
            if verb == "ack":
                self._confirmed.append((name, "ack"))
                self._finish(token, "acked")
            elif verb == "extend":
                lease.live, lease.ends_at = True, int(until)
            else:
                lease.live = False
        elif lease.receipt == receipt:
            # Refused although nobody else can have ended it and its deadline has not passed: the lease was broken.
            if outcome == "LeaseLost" and int(at) < lease.ends_at - SLACK_MS and not token.ending:
                self.wrong("lease lost early", f"{name}: {verb} at {at}, the lease was until {lease.ends_at}")
            lease.live, lease.sure = False, True

    def _on_remove(self, fields: list[str]) -> None:
        token = self.tokens.get(fields[1])
        if token is not None:
            token.ending += 1

    def _on_removed(self, fields: list[str]) -> None:
        _, name, _, outcome = fields
        token = self.tokens.get(name)
        if token is None:
            if outcome == "ok":
                self.wrong("resurrected", f"{name} had ended and its removal was confirmed")
            return
        if outcome == "ok":
            self.figures["removed"] += 1
            self._confirmed.append((name, "remove"))
            self._finish(token, "removed")
        else:
            token.ending -= 1

    def _on_crash(self, fields: list[str]) -> None:
        self.crashed_at = fields[0]

    def _on_failed(self, fields: list[str]) -> None:
        self.failure = (fields[0], " ".join(fields[1:]))

    def _on_torn(self, fields: list[str]) -> None:
        self.wrong("unexpected", f"a torn body was delivered, message {fields[1]}: {fields[2]}")

    def _on_done(self, _: list[str]) -> None:
        self.closed = True

    _handlers = {  # noqa: RUF012  # written once
        events.OPENED: _on_opened, events.ADD: _on_add, events.ADDED: _on_added, events.REFUSED: _on_refused, events.DELIVERED: _on_delivered,
        events.SETTLE: _on_settle, events.SETTLED: _on_settled, events.REMOVE: _on_remove, events.REMOVED: _on_removed,
        events.CRASH: _on_crash, events.FAILED: _on_failed, events.TORN: _on_torn, events.DONE: _on_done,
    }  # fmt: skip

    def _finish(self, token: Token, how: str) -> None:
        self.over[token.name] = how
        del self.tokens[token.name]

    # ---- what is stored ----

    def compare(self, found: Recount, *, lost_allowed: bool = False) -> set[str]:
        """Compare a store at rest with the replies; return the tokens that were lost.

        With ``lost_allowed``, losses are returned but are not violations: replies were sent before the sync on purpose.
        """
        for drift in found.drift:
            self.wrong("drift", drift)
        for row in found.journal:
            if row.op in self._journaled and row.outcome in {"ok", "expired"}:
                self._journaled[row.op].add(row.message_id.replace("-", ""))
        stored: dict[str, list[Stored]] = {}
        for message in found.messages:
            name = events.token_of(message.body)
            if name is None:
                self.wrong("unexpected", f"a torn body is stored: {message.body[:80]!r}")
            else:
                stored.setdefault(name, []).append(message)
        lost: set[str] = set()
        for name, places in stored.items():
            self._judge_stored(name, places)
        for token in list(self.tokens.values()):
            if token.name not in stored and not self._judge_missing(token):
                lost.add(token.name)
                self._finish(token, "lost")
        if not lost_allowed:
            for name in sorted(lost):
                self.wrong("lost", f"{name} ({self.ids.get(name, 'id unknown')}) was confirmed and is gone")
            for name, verb in self._confirmed:
                if self.ids[name] not in self._journaled[verb]:
                    self.wrong("drift", f"journal: the {verb} of {name} was confirmed and is not in it")
        self._confirmed.clear()
        return lost

    def _judge_stored(self, name: str, places: list[Stored]) -> None:
        if len(places) > 1:
            self.wrong("doubled", f"{name} is stored {len(places)} times: {[place.id.hex() for place in places]}")
        if name in self.over:
            self.wrong("resurrected", f"{name} had been {self.over[name]} and is stored again")
            return
        token = self.tokens.get(name)
        if token is None:
            self.wrong("unexpected", f"{name} is stored and nobody had added it")
            return
        id = places[0].id.hex()
        if self.ids.setdefault(name, id) != id:
            self.wrong("doubled", f"{name} is {self.ids[name]} and is stored as {id}")
        if id not in self._journaled["add"]:
            self.wrong("drift", f"journal: {name} is stored and its add is not in it")
        token.id, token.added = id, True
        token.adding = token.ending = 0
        if token.lease is not None and not token.lease.sure:
            token.lease.live = False  # how it ended is unknown

    def _judge_missing(self, token: Token) -> bool:
        """Account for a token that is not stored; return False if it was confirmed and nothing explains its absence."""
        id = self.ids.get(token.name)
        if id is not None and id in self._journaled["expire"] and token.ttl_ms:
            self.figures["expired"] += 1
            self._finish(token, "expired")
            return True
        if id is not None and token.ending:
            for verb, how in (("ack", "acked"), ("remove", "removed")):
                if id in self._journaled[verb]:
                    self.figures[f"{how} without reply"] += 1
                    self._finish(token, how)
                    return True
        if token.added or token.lease is not None:
            return False
        self.figures["adds that never were"] += 1
        self._finish(token, "never added")
        if token.key is not None:
            del self.over[token.name]  # a retry with its key may still add it
            self.unanswered.append((token.name, token.tenant, token.queue, token.key))
        return True

    # ---- final drain ----

    def drained(self, name: str, id: str) -> None:
        """Process a message that the final drain delivered and acked."""
        token = self.tokens.get(name)
        if token is None:
            self.wrong("unexpected", f"{name} ({id}) was drained, it was {self.over.get(name, 'never added')}")
            return
        self.figures["drained"] += 1
        self._finish(token, "drained")
