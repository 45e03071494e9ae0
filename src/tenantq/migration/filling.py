"""The target of a move: made ready to be filled, which means that it serves nobody; opened; or emptied again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.domain.access import can_be_granted_to
from tenantq.errors import Conflict, NotFound, Unavailable
from tenantq.migration.notes import Incoming, incoming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.migration.sides import Side
    from tenantq.wire import QueueReply, TenantReply

_LOOKS_MAX: Final = 1_000
_ABORTED: Final = "the move to this server was given up"


class Filling:
    """What is filled at the target: a tenant, or some queues of one."""

    def __init__(self, source: Side, target: Side, queues: Sequence[str], *, whole: bool) -> None:
        self._source = source
        self._target = target
        self._queues = queues
        self._whole = whole

    def begin(self, facts: TenantReply) -> None:
        """Make the tenant if there is none, as the source's is, and have it serve nobody while it is filled."""
        with self._target.calling():
            there = self._target.found()
            if there is None:
                self._target.tenant.configure(**_config(facts))
                if not self._whole:
                    return
                self._target.tenant.suspend(self._note(made=True).text(), "fill")
            elif self._whole and not self._is_ours(incoming(there.suspension)):
                self._target.tenant.suspend(self._note(made=False).text(), "fill")

    def make_queue(self, queue: QueueReply) -> None:
        """Make a queue as the source's is. One that moves alone serves nobody until it is opened."""
        with self._target.calling():
            there = self._target.queues().get(queue.name)
            if there is None:
                self._target.queue(queue.name).configure(**queue.config)
            if not self._whole and (there is None or not self._is_ours(incoming(there.suspension))):
                self._target.queue(queue.name).suspend(self._note(made=there is None).text(), "fill")
            if queue.status == "paused" and (there is None or there.status != "paused"):
                self._target.queue(queue.name).pause()

    def open(self) -> None:
        """Let the target work."""
        with self._target.calling():
            there = self._target.found()
            if there is None:
                raise Conflict(f"tenant {self._target.name} is not there any more")
            if self._is_ours(incoming(there.suspension)):
                self._target.tenant.resume()
            for name, queue in self._target.queues().items():
                if self._is_ours(incoming(queue.suspension)):
                    self._target.queue(name).reopen()

    def empty(self) -> list[str]:
        """Take back what this move has filled, and nothing else; return what was deleted."""
        deleted = []
        with self._target.calling():
            there = self._target.found()
            if there is None:
                return []
            note = incoming(there.suspension)
            if note is not None and self._is_ours(note):
                if note.made:
                    self._target.tenant.delete(confirm=self._target.name, reason=_ABORTED)
                    return [f"tenant {self._target.name}"]
                for name in self._target.queues():
                    deleted += self._purge(name)
                self._target.tenant.resume()
                return deleted
            for name, queue in self._target.queues().items():
                left = incoming(queue.suspension)
                if left is not None and self._is_ours(left):
                    deleted += self._delete(name) if left.made else self._purge(name)
                    if not left.made:
                        self._target.queue(name).reopen()
        return deleted

    def _purge(self, name: str) -> list[str]:
        """Empty a queue that was there, empty, before the move."""
        purged = self._target.queue(name).purge(confirm=name, reason=_ABORTED)
        return [f"{purged} messages of queue {name}"] if purged else []

    def _delete(self, name: str) -> list[str]:
        """Delete a queue that the move made; return when it is gone, which is in the next round or soon after."""
        self._target.queue(name).delete(confirm=name, reason=_ABORTED, force=True)
        for _ in range(_LOOKS_MAX):
            if name not in self._target.queues():
                return [f"queue {name}"]
        raise Unavailable(f"queue {name} is not gone yet")

    def is_begun(self) -> bool:
        """Tell whether the target holds anything that this move, or one that was given up, has begun to fill."""
        with self._target.calling():
            there = self._target.found()
            if there is None:
                return False
            if self._is_ours(incoming(there.suspension)):
                return True
            return any(self._is_ours(incoming(one.suspension)) for one in self._target.queues().values())

    def copy_grants(self) -> int:
        """Store the source's grants at the target, but those that are over; return how many."""
        with self._source.calling():
            now = self._source.now()
            grants = [
                one
                for one in self._source.tenant.grants()
                if can_be_granted_to(one.principal) and (one.expires_at is None or one.expires_at > now)
            ]
        with self._target.calling():
            for one in grants:
                self._target.tenant.grant(
                    one.principal, role=one.role, actions=one.actions, queues=one.queues, expires_at=one.expires_at
                )
        return len(grants)

    def copy_hold(self, facts: TenantReply) -> None:
        """Put the target under the legal hold that the source is under."""
        if facts.hold is None:
            return
        with self._target.calling():
            there = self._target.found()
            if there is None:
                raise NotFound(f"tenant {self._target.name} is not there any more")
            if there.hold is None:
                self._target.tenant.hold(facts.hold.reason)

    def _note(self, *, made: bool) -> Incoming:
        return Incoming(self._source.known.server, self._source.name, self._source.url, made)

    def _is_ours(self, note: Incoming | None) -> bool:
        return note is not None and note.comes_from(self._source.known.server, self._source.name)


def _config(facts: TenantReply) -> dict[str, object]:
    """Return a tenant's settings as they are taken over: all, but the other server wraps data keys with a key of its own."""
    config = dict(facts.config)
    encryption = config.pop("encryption", None)
    if encryption and encryption.get("enabled"):
        config["encryption"] = {name: value for name, value in encryption.items() if name != "key"}
    return config
