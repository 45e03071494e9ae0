"""The plan of a migration: what moves, and what prevents it. Changes nothing."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tenantq.domain.names import DEFAULT_TENANT, dead_letter_name
from tenantq.errors import Forbidden, Invalid, NotFound, Unauthenticated
from tenantq.migration.endpoint import Endpoint
from tenantq.migration.move_note import parse_incoming, parse_outgoing
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantReply

MigrationState = Literal["new", "under way", "cut over"]


class PlannedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that moves."""

    name: str
    messages: int
    bytes: int
    in_flight: int
    dead: int  # in its dead-letter queue
    results: int


class MigrationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What moves, and what prevents it."""

    tenant: str
    to_tenant: str
    from_url: str
    to_url: str
    state: MigrationState
    whole_tenant: bool = msgspec.field(name="whole")  # not some of its queues
    queues: list[PlannedQueue]
    grants: int
    keys: list[str]  # names; their secrets are not stored, so they do not move
    encrypted: bool
    hold: str = ""  # the reason of the legal hold, which moves too
    notes: list[str] = []  # what does not move, and other remarks
    obstacles: list[str] = []  # why it cannot be moved

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.queues)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.queues)

    @property
    def in_flight(self) -> int:
        """All leased messages."""
        return sum(one.in_flight for one in self.queues)

    def summary(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "messages": self.messages, "bytes": self.bytes, "in_flight": self.in_flight}


def make_plan(
    source: Endpoint, target: Endpoint, only: Sequence[str] = (), *, delete_source: bool = False
) -> MigrationPlan:
    """Return the plan, with its obstacles. Raises if a side does not answer or the tenant does not exist."""
    with source.naming_errors():
        source.topology  # noqa: B018  # a server that does not answer is named in the error
    with target.naming_errors():
        target.topology  # noqa: B018  # the same
    obstacles = _rights(source) + _rights(target)
    if source.topology.server and source.topology.server == target.topology.server:
        obstacles.append(f"source and target are the same server, {source.topology.server}")
    if obstacles:
        return _bare(source, target, whole_tenant=not only, obstacles=obstacles)
    with source.naming_errors():
        facts = source.tenant.get()
        there = source.queues()
        names, notes = moving_queues(there, only)
        queues = [_planned(source, there[name]) for name in names]
        grants, keys = (source.tenant.grants(), source.tenant.keys()) if not only else ([], [])
    with target.naming_errors():
        state = _state(source, target, facts, [there[name] for name in names], whole_tenant=not only)
        if state == "new":
            obstacles += _source_obstacles(facts, [there[name] for name in names])
            obstacles += _target_obstacles(source, target, facts, queues, whole_tenant=not only)
    if delete_source and facts.hold is not None:
        obstacles.append(f"the tenant is under legal hold ({facts.hold.reason}), so the source cannot be deleted")
    if delete_source and not only and source.name == DEFAULT_TENANT:
        obstacles.append("the tenant 'default' cannot be deleted; omit --delete-source")
    if only:
        notes.append("grants and API keys belong to the tenant and are not moved; create those that the target needs")
    return MigrationPlan(
        tenant=source.name, to_tenant=target.name, from_url=source.url, to_url=target.url, state=state, whole_tenant=not only,
        queues=queues, grants=len(grants), keys=[one.name for one in keys if one.revoked_at is None],
        encrypted=_is_encrypted(facts), hold=facts.hold.reason if facts.hold is not None else "", notes=notes,
        obstacles=obstacles,
    )  # fmt: skip


def moving_queues(there: dict[str, QueueReply], only: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the queues that move, and remarks. A dead-letter queue moves too, unless a queue that stays uses it."""
    if not only:
        return list(there), []
    for name in only:
        if name not in there:
            raise NotFound(f"unknown queue {name[:80]!r}", queue=name)
    names, notes = list(dict.fromkeys(only)), []
    for name in list(names):
        letters = dead_letter_queue_of(there[name])
        others = [one.name for one in there.values() if one.name not in names and dead_letter_queue_of(one) == letters]
        if letters in there and letters not in names:
            if others:
                notes.append(f"{letters} is not moved, because it also has the dead letters of {', '.join(others)}")
            else:
                names.append(letters)
    return names, notes


def dead_letter_queue_of(queue: QueueReply) -> str:
    """Return the name of a queue's dead-letter queue."""
    return str(queue.config.get("dead_letter") or dead_letter_name(queue.name))


def _rights(side: Endpoint) -> list[str]:
    try:
        side.client.tenants()
    except (Forbidden, Unauthenticated) as error:
        return [f"{side.label} {side.url}: the token is not that of an administrator of the platform [{error.code}]"]
    return []


def _bare(source: Endpoint, target: Endpoint, *, whole_tenant: bool, obstacles: list[str]) -> MigrationPlan:
    return MigrationPlan(
        tenant=source.name, to_tenant=target.name, from_url=source.url, to_url=target.url, state="new", whole_tenant=whole_tenant,
        queues=[], grants=0, keys=[], encrypted=False, obstacles=obstacles,
    )  # fmt: skip


def _planned(source: Endpoint, queue: QueueReply) -> PlannedQueue:
    held = source.queue(queue.name).digest()
    return PlannedQueue(
        name=queue.name, messages=held.messages, bytes=held.bytes, in_flight=queue.in_flight, dead=queue.dead,
        results=held.results,
    )  # fmt: skip


def _state(
    source: Endpoint, target: Endpoint, facts: TenantReply, queues: list[QueueReply], *, whole_tenant: bool
) -> MigrationState:
    """Return the progress of an earlier run, from the source. Raises Invalid if it had another target."""
    states: set[MigrationState] = set()
    for suspension in [facts.suspension] if whole_tenant else [one.suspension for one in queues]:
        note = parse_outgoing(suspension)
        if note is None:
            states.add("new")
        elif note.is_about(target.topology.server, target.name):
            states.add("cut over" if note.state == "moved" else "under way")
        else:
            how = "was moved" if note.state == "moved" else "is being moved"
            raise Invalid(f"{source.name} {how} to {note.tenant} at {note.url}, not to {target.name} at {target.url}")
    if states == {"cut over"}:
        return "cut over"
    return "new" if states <= {"new"} else "under way"


def _source_obstacles(facts: TenantReply, queues: list[QueueReply]) -> list[str]:
    found = []
    if facts.status == "suspended":
        why = facts.suspension.reason if facts.suspension is not None else ""
        found.append(f"the tenant is suspended{f' ({why})' if why else ''}; resume it first")
    found += [f"queue {one.name} is being deleted; wait until it is gone" for one in queues if one.status == "draining"]
    found += [f"queue {one.name} is suspended; resume it first" for one in queues if one.suspension is not None]
    return found


def _target_obstacles(
    source: Endpoint, target: Endpoint, facts: TenantReply, queues: list[PlannedQueue], *, whole_tenant: bool
) -> list[str]:
    found = []
    regions = facts.config.get("regions") or ()
    here = {one.region for one in target.topology.shards}
    if regions and not here & set(regions):
        where = ", ".join(sorted(one or "no region" for one in here))
        found.append(f"the target is in {where}, but the tenant is restricted to {', '.join(regions)}")
    there = target.find_tenant()
    encrypted = _is_encrypted(facts)
    if encrypted and not target.topology.encryption:
        found.append("the tenant is encrypted, but the target has no key management")
    if there is None:
        return found + _quota_obstacles(facts.config.get("quotas") or {}, {}, queues)
    if encrypted and not _is_encrypted(there):
        found.append(f"the tenant is encrypted, but {target.name} at the target is not; enable encryption there first")
    return found + _content_obstacles(source, target, there, [one.name for one in queues], whole_tenant=whole_tenant) + _quota_obstacles(
        there.config.get("quotas") or {}, {name: one.used for name, one in target.tenant.usage().quotas.items()}, queues
    )  # fmt: skip


def _content_obstacles(
    source: Endpoint, target: Endpoint, there: TenantReply, names: list[str], *, whole_tenant: bool
) -> list[str]:
    """Return why the content of the target prevents the migration. Leftovers of an aborted run do not."""
    key = (source.topology.server, source.name)
    note = parse_incoming(there.suspension)
    if note is not None and note.is_about(*key):
        return []
    if there.status == "suspended":
        return [f"tenant {target.name} at the target is suspended; resume it first"]
    found = []
    for one in target.queues().values():
        left = parse_incoming(one.suspension)
        if (left is not None and left.is_about(*key)) or not (whole_tenant or one.name in names):
            continue
        if one.ready + one.delayed + one.in_flight:
            found.append(
                f"queue {one.name} of tenant {target.name} at the target has messages; choose another tenant name with --as"
            )
        elif one.status == "draining" or one.suspension is not None:
            found.append(f"queue {one.name} of tenant {target.name} at the target accepts no messages")
    return found


def _quota_obstacles(quotas: dict[str, Any], used: dict[str, int], queues: list[PlannedQueue]) -> list[str]:
    messages = sum(one.messages for one in queues)
    wanted = {
        "messages_per_hour": messages, "messages_per_day": messages, "backlog": messages,
        "stored_bytes": sum(one.bytes for one in queues), "queues": len(queues),
    }  # fmt: skip
    return [
        f"quota {name} at the target: limit {quotas[name]}, used {used.get(name, 0)}, {need} more needed"
        for name, need in wanted.items()
        if quotas.get(name) is not None and used.get(name, 0) + need > quotas[name]
    ]


def _is_encrypted(facts: TenantReply) -> bool:
    return bool((facts.config.get("encryption") or {}).get("enabled"))
