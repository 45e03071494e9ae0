"""The target of a migration: suspended while it is filled, then opened, or emptied again."""

from typing import Final

from tenantq.domain.access import can_be_granted_to
from tenantq.errors import Conflict, NotFound, Unavailable
from tenantq.migration.endpoint import Endpoint
from tenantq.migration.move_note import IncomingMove, parse_incoming
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantReply

_CHECKS_MAX: Final = 1_000
_ABORTED: Final = "the move to this server was given up"


class MigrationTarget:
    """The tenant, or some of its queues, at the target."""

    def __init__(self, source: Endpoint, target: Endpoint, *, whole_tenant: bool) -> None:
        self._source = source
        self._target = target
        self._whole_tenant = whole_tenant

    def begin(self, facts: TenantReply) -> None:
        """Create the tenant like the source's unless it exists, and suspend it while it is filled."""
        with self._target.naming_errors():
            there = self._target.find_tenant()
            if there is None:
                self._target.tenant.configure(**_config(facts))
                if not self._whole_tenant:
                    return
                self._target.tenant.suspend(self._note(made=True).text(), "fill")
            elif self._whole_tenant and not self._is_ours(parse_incoming(there.suspension)):
                self._target.tenant.suspend(self._note(made=False).text(), "fill")

    def make_queue(self, queue: QueueReply) -> None:
        """Create a queue like the source's. A queue that moves alone is suspended until it is opened."""
        with self._target.naming_errors():
            there = self._target.queues().get(queue.name)
            if there is None:
                self._target.queue(queue.name).configure(**queue.config)
            if not self._whole_tenant and (there is None or not self._is_ours(parse_incoming(there.suspension))):
                self._target.queue(queue.name).suspend(self._note(made=there is None).text(), "fill")
            if queue.status == "paused" and (there is None or there.status != "paused"):
                self._target.queue(queue.name).pause()

    def open(self) -> None:
        """End the suspensions at the target."""
        with self._target.naming_errors():
            there = self._target.find_tenant()
            if there is None:
                raise Conflict(f"tenant {self._target.name} no longer exists at the target")
            if self._is_ours(parse_incoming(there.suspension)):
                self._target.tenant.resume()
            for name, queue in self._target.queues().items():
                if self._is_ours(parse_incoming(queue.suspension)):
                    self._target.queue(name).reopen()

    def empty(self) -> list[str]:
        """Delete what this migration wrote, and nothing else. Returns what was deleted."""
        deleted = []
        with self._target.naming_errors():
            there = self._target.find_tenant()
            if there is None:
                return []
            note = parse_incoming(there.suspension)
            if note is not None and self._is_ours(note):
                if note.made:
                    self._target.tenant.delete(confirm=self._target.name, reason=_ABORTED)
                    return [f"tenant {self._target.name}"]
                for name in self._target.queues():
                    deleted += self._purge(name)
                self._target.tenant.resume()
                return deleted
            for name, queue in self._target.queues().items():
                left = parse_incoming(queue.suspension)
                if left is not None and self._is_ours(left):
                    deleted += self._delete(name) if left.made else self._purge(name)
                    if not left.made:
                        self._target.queue(name).reopen()
        return deleted

    def _purge(self, name: str) -> list[str]:
        """Purge a queue that existed, empty, before the migration."""
        purged = self._target.queue(name).purge(confirm=name, reason=_ABORTED)
        return [f"{purged} messages of queue {name}"] if purged else []

    def _delete(self, name: str) -> list[str]:
        """Delete a queue that the migration created, and wait until it is gone."""
        self._target.queue(name).delete(confirm=name, reason=_ABORTED, force=True)
        for _ in range(_CHECKS_MAX):
            if name not in self._target.queues():
                return [f"queue {name}"]
        raise Unavailable(f"queue {name} is not gone yet")

    def is_begun(self) -> bool:
        """Return whether this migration, or an aborted one, has started to fill the target."""
        with self._target.naming_errors():
            there = self._target.find_tenant()
            if there is None:
                return False
            if self._is_ours(parse_incoming(there.suspension)):
                return True
            return any(self._is_ours(parse_incoming(one.suspension)) for one in self._target.queues().values())

    def copy_grants(self) -> int:
        """Copy the source's grants that have not expired. Returns how many."""
        with self._source.naming_errors():
            now = self._source.now()
            grants = [
                one
                for one in self._source.tenant.grants()
                if can_be_granted_to(one.principal) and (one.expires_at is None or one.expires_at > now)
            ]
        with self._target.naming_errors():
            for one in grants:
                self._target.tenant.grant(
                    one.principal, role=one.role, actions=one.actions, queues=one.queues, expires_at=one.expires_at
                )
        return len(grants)

    def copy_hold(self, facts: TenantReply) -> None:
        """Copy the source's legal hold."""
        if facts.hold is None:
            return
        with self._target.naming_errors():
            there = self._target.find_tenant()
            if there is None:
                raise NotFound(f"tenant {self._target.name} no longer exists at the target")
            if there.hold is None:
                self._target.tenant.hold(facts.hold.reason)

    def _note(self, *, made: bool) -> IncomingMove:
        source = self._source
        return IncomingMove(server=source.topology.server, tenant=source.name, url=source.url, made=made)

    def _is_ours(self, note: IncomingMove | None) -> bool:
        return note is not None and note.is_about(self._source.topology.server, self._source.name)


def _config(facts: TenantReply) -> dict[str, object]:
    """Return a tenant's settings for the target: all but key and plan, because the target has its own."""
    config = {**facts.config, "plan": None}
    encryption = config.pop("encryption", None)
    if encryption and encryption.get("enabled"):
        config["encryption"] = {name: value for name, value in encryption.items() if name != "key"}
    return config


def empty_target(source: Endpoint, target: Endpoint) -> list[str]:
    """Delete what a migration from the source wrote at the target, and nothing else. Returns what was deleted."""
    return MigrationTarget(source, target, whole_tenant=True).empty()
