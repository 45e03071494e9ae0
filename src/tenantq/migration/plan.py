"""The plan of a move: what there is, and what stands in the way. Nothing is changed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenantq.domain.names import DEFAULT_TENANT, dead_letter_name
from tenantq.errors import Forbidden, Invalid, NotFound, Unauthenticated
from tenantq.migration.notes import incoming, outgoing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.migration.sides import Side
    from tenantq.wire import QueueReply, TenantReply

State = Literal["new", "under way", "cut over"]


class PlannedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that moves."""

    name: str
    messages: int
    bytes: int
    in_flight: int
    dead: int  # in its dead-letter queue
    results: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would move, and why it cannot."""

    tenant: str
    to_tenant: str
    from_url: str
    to_url: str
    state: State
    whole: bool  # the tenant as a whole, not some queues of it
    queues: list[PlannedQueue]
    grants: int
    keys: list[str]  # names; their secrets are nowhere, so they do not move
    encrypted: bool
    hold: str = ""  # the reason of the legal hold, which moves along
    notes: list[str] = []  # what does not move, or is worth knowing
    obstacles: list[str] = []  # why it cannot be moved

    @property
    def messages(self) -> int:
        """All messages."""
        return sum(one.messages for one in self.queues)

    @property
    def bytes(self) -> int:
        """Bytes of all messages."""
        return sum(one.bytes for one in self.queues)

    @property
    def in_flight(self) -> int:
        """All messages that are leased."""
        return sum(one.in_flight for one in self.queues)

    def summary(self) -> dict[str, Any]:
        """Return it for scripts."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "messages": self.messages, "bytes": self.bytes, "in_flight": self.in_flight}


def make_plan(source: Side, target: Side, only: Sequence[str] = (), *, delete_source: bool = False) -> Plan:
    """Return the plan; what stands in the way is in it. Raises where a side does not answer or the tenant is not there."""
    with source.calling():
        source.known  # noqa: B018  # who does not answer is told by name
    with target.calling():
        target.known  # noqa: B018  # the same
    obstacles = _rights(source) + _rights(target)
    if source.known.server and source.known.server == target.known.server:
        obstacles.append(f"source and target are the same server, {source.known.server}")
    if obstacles:
        return _bare(source, target, whole=not only, obstacles=obstacles)
    with source.calling():
        facts = source.tenant.get()
        there = source.queues()
        names, notes = moving_queues(there, only)
        queues = [_planned(source, there[name]) for name in names]
        grants, keys = (source.tenant.grants(), source.tenant.keys()) if not only else ([], [])
    with target.calling():
        state = _state(source, target, facts, [there[name] for name in names], whole=not only)
        if state == "new":
            obstacles += _source_obstacles(facts, [there[name] for name in names])
            obstacles += _target_obstacles(source, target, facts, queues, whole=not only)
    if delete_source and facts.hold is not None:
        obstacles.append(f"the tenant is under legal hold ({facts.hold.reason}): its source cannot be deleted")
    if delete_source and not only and source.name == DEFAULT_TENANT:
        obstacles.append("the tenant 'default' cannot be deleted: leave --delete-source away")
    if only:
        notes.append("grants and API keys are the tenant's and stay; make those that are needed at the target")
    return Plan(
        tenant=source.name, to_tenant=target.name, from_url=source.url, to_url=target.url, state=state, whole=not only,
        queues=queues, grants=len(grants), keys=[one.name for one in keys if one.revoked_at is None],
        encrypted=_is_encrypted(facts), hold=facts.hold.reason if facts.hold is not None else "", notes=notes,
        obstacles=obstacles,
    )  # fmt: skip


def moving_queues(there: dict[str, QueueReply], only: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the queues that move, and remarks: dead letters go with their queue unless another one that stays has them too."""
    if not only:
        return list(there), []
    for name in only:
        if name not in there:
            raise NotFound(f"there is no queue {name[:80]!r}", queue=name)
    names, notes = list(dict.fromkeys(only)), []
    for name in list(names):
        letters = letters_of(there[name])
        others = [one.name for one in there.values() if one.name not in names and letters_of(one) == letters]
        if letters in there and letters not in names:
            if others:
                notes.append(f"{letters} stays: {', '.join(others)} has its dead letters there too")
            else:
                names.append(letters)
    return names, notes


def letters_of(queue: QueueReply) -> str:
    """Return the name of a queue's dead-letter queue."""
    return str(queue.config.get("dead_letter") or dead_letter_name(queue.name))


def _rights(side: Side) -> list[str]:
    try:
        side.client.tenants()
    except (Forbidden, Unauthenticated) as error:
        return [f"{side.label} {side.url}: the token is not that of an administrator of the platform [{error.code}]"]
    return []


def _bare(source: Side, target: Side, *, whole: bool, obstacles: list[str]) -> Plan:
    return Plan(
        tenant=source.name, to_tenant=target.name, from_url=source.url, to_url=target.url, state="new", whole=whole,
        queues=[], grants=0, keys=[], encrypted=False, obstacles=obstacles,
    )  # fmt: skip


def _planned(source: Side, queue: QueueReply) -> PlannedQueue:
    held = source.queue(queue.name).digest()
    return PlannedQueue(
        name=queue.name, messages=held.messages, bytes=held.bytes, in_flight=queue.in_flight, dead=queue.dead,
        results=held.results,
    )  # fmt: skip


def _state(source: Side, target: Side, facts: TenantReply, queues: list[QueueReply], *, whole: bool) -> State:
    """Return how far an earlier run has come, as the source remembers it; Invalid where it went elsewhere."""
    states: set[State] = set()
    for suspension in [facts.suspension] if whole else [one.suspension for one in queues]:
        note = outgoing(suspension)
        if note is None:
            states.add("new")
        elif note.leads_to(target.known.server, target.name):
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
        found.append(
            f"the tenant is suspended{f' ({why})' if why else ''}: resume it first, or it would work at the target"
        )
    found += [f"queue {one.name} is being deleted: wait until it is gone" for one in queues if one.status == "draining"]
    found += [f"queue {one.name} is suspended: reopen it first" for one in queues if one.suspension is not None]
    return found


def _target_obstacles(
    source: Side, target: Side, facts: TenantReply, queues: list[PlannedQueue], *, whole: bool
) -> list[str]:
    found = []
    regions = facts.config.get("regions") or ()
    here = {one.region for one in target.known.shards}
    if regions and not here & set(regions):
        where = ", ".join(sorted(one or "no region" for one in here))
        found.append(f"the target is in {where}, and the tenant may only be in {', '.join(regions)}")
    there = target.found()
    encrypted = _is_encrypted(facts)
    if encrypted and not target.known.encryption:
        found.append("the tenant is encrypted, and the target has no key management")
    if there is None:
        return found + _quota_obstacles(facts.config.get("quotas") or {}, {}, queues)
    if encrypted and not _is_encrypted(there):
        found.append(f"the tenant is encrypted, and {target.name} at the target is not: switch that on first")
    return found + _content_obstacles(source, target, there, [one.name for one in queues], whole=whole) + _quota_obstacles(
        there.config.get("quotas") or {}, {name: one.used for name, one in target.tenant.usage().quotas.items()}, queues
    )  # fmt: skip


def _content_obstacles(source: Side, target: Side, there: TenantReply, names: list[str], *, whole: bool) -> list[str]:
    """Return why what is at the target under this name is in the way; what an undone move left there is not."""
    key = (source.known.server, source.name)
    note = incoming(there.suspension)
    if note is not None and note.comes_from(*key):
        return []
    if there.status == "suspended":
        return [f"tenant {target.name} at the target is suspended: resume it first"]
    found = []
    for one in target.queues().values():
        left = incoming(one.suspension)
        if (left is not None and left.comes_from(*key)) or not (whole or one.name in names):
            continue
        if one.ready + one.delayed + one.in_flight:
            found.append(f"queue {one.name} of tenant {target.name} at the target has messages: name another with --as")
        elif one.status == "draining" or one.suspension is not None:
            found.append(f"queue {one.name} of tenant {target.name} at the target takes no messages")
    return found


def _quota_obstacles(quotas: dict[str, Any], used: dict[str, int], queues: list[PlannedQueue]) -> list[str]:
    messages = sum(one.messages for one in queues)
    wanted = {
        "messages_per_hour": messages, "messages_per_day": messages, "backlog": messages,
        "stored_bytes": sum(one.bytes for one in queues), "queues": len(queues),
    }  # fmt: skip
    return [
        f"quota {name} at the target: {quotas[name]}, in use {used.get(name, 0)}, needed {need} more"
        for name, need in wanted.items()
        if quotas.get(name) is not None and used.get(name, 0) + need > quotas[name]
    ]


def _is_encrypted(facts: TenantReply) -> bool:
    return bool((facts.config.get("encryption") or {}).get("enabled"))
