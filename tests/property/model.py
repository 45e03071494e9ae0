"""What a shard must do, as simply as possible: dictionaries, no storage, no rounds, no indexes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Held:
    """A message as the model sees it."""

    id: bytes
    body: bytes
    priority: int
    visible_at: int
    expires_at: int | None
    max_attempts: int  # 0: unlimited
    group: str | None
    size: int
    attempts: int = 0
    token: str | None = None  # the receipt, while leased
    deadline: int = 0
    dead_source: str | None = None
    taken_from: int = 0


@dataclass
class ModelQueue:
    """A queue: messages by ID, and what is remembered about them."""

    name: str
    ttl_ms: int | None = None
    messages: dict[bytes, Held] = field(default_factory=dict)
    keys: dict[str, tuple[bytes, bytes, int]] = field(default_factory=dict)  # key -> id, body, expiry
    results: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    heads: dict[str, bytes] = field(default_factory=dict)  # group -> the one message that may be delivered
    paused: bool = False

    def group_of(self, message: Held) -> str | None:
        """Return the group a message belongs to, if any."""
        return message.group if message.group is not None else ("" if self.name.endswith(".fifo") else None)

    def enter(self, message: Held) -> None:
        """Add a message."""
        self.messages[message.id] = message
        group = self.group_of(message)
        if group is not None:
            self.heads.setdefault(group, message.id)

    def leave(self, message: Held) -> None:
        """Remove a message; the next one of its group may then be delivered."""
        del self.messages[message.id]
        group = self.group_of(message)
        if group is not None and self.heads[group] == message.id:
            rest = sorted(other.id for other in self.messages.values() if self.group_of(other) == group)
            if rest:
                self.heads[group] = rest[0]
            else:
                del self.heads[group]

    def blocked(self, message: Held) -> bool:
        """Return whether an earlier message of its group must be delivered first."""
        group = self.group_of(message)
        return group is not None and self.heads[group] != message.id

    def deliverable(self, now: int) -> list[Held]:
        """Return what a poll may deliver, in order."""
        if self.paused:
            return []
        ready = [
            message
            for message in self.messages.values()
            if message.token is None and message.visible_at <= now and not self.blocked(message)
        ]
        return sorted(ready, key=lambda one: (-one.priority, one.visible_at, one.id))

    def figures(self, now: int) -> dict[str, int]:
        """Return what the statistics must show."""
        free = [message for message in self.messages.values() if message.token is None]
        delayed = [message for message in free if message.visible_at > now and not self.blocked(message)]
        return {
            "ready": len(free) - len(delayed),
            "delayed": len(delayed),
            "in_flight": len(self.messages) - len(free),
            "bytes": sum(message.size for message in self.messages.values()),
        }


class Model:
    """A shard: queues by (tenant, name), and the time."""

    max_attempts = 3
    dedup_ms = 5_000
    result_ttl_ms = 4_000

    def __init__(self) -> None:
        self.now = 0
        self.queues: dict[tuple[str, str], ModelQueue] = {}

    def queue(self, tenant: str, name: str) -> ModelQueue:
        """Return a queue, creating it on first use."""
        return self.queues.setdefault((tenant, name), ModelQueue(name))

    def give_back(self, tenant: str, queue: ModelQueue, message: Held, visible_at: int) -> None:
        """End a failed delivery."""
        message.token = None
        bound = message.max_attempts if message.dead_source is None else 0
        if bound and message.attempts >= bound:
            self.bury(tenant, queue, message)
        elif message.expires_at is not None and message.expires_at <= self.now:
            queue.leave(message)
        else:
            message.visible_at = visible_at

    def bury(self, tenant: str, queue: ModelQueue, message: Held) -> None:
        """Move a message to the dead letters."""
        queue.leave(message)
        stem = queue.name.removesuffix(".fifo")
        letters = self.queue(tenant, stem + "-dlq" + queue.name[len(stem) :])
        message.dead_source = queue.name
        message.attempts = 0
        message.visible_at = self.now
        message.expires_at = None
        letters.enter(message)

    def advance(self, ms: int) -> None:
        """Advance the time: leases and TTLs end."""
        self.now += ms
        for (tenant, _), queue in list(self.queues.items()):
            for message in sorted(queue.messages.values(), key=lambda one: one.id):
                if message.token is not None and message.deadline <= self.now:
                    self.give_back(tenant, queue, message, self.now)
            for message in list(queue.messages.values()):
                if message.token is None and message.expires_at is not None and message.expires_at <= self.now:
                    queue.leave(message)
            queue.keys = {key: row for key, row in queue.keys.items() if row[2] > self.now}
            queue.results = {id: row for id, row in queue.results.items() if row[1] > self.now}

    def redrive(self, tenant: str, letters: ModelQueue) -> int:
        """Move dead letters that are not in flight back to their source queue."""
        moved = 0
        for message in sorted(letters.messages.values(), key=lambda one: one.id):
            if message.token is None and message.dead_source is not None:
                moved += 1
                target = self.queue(tenant, message.dead_source)
                letters.leave(message)
                message.dead_source = None
                message.attempts = 0
                message.visible_at = self.now
                message.expires_at = self.now + target.ttl_ms if target.ttl_ms else None
                target.enter(message)
        return moved
