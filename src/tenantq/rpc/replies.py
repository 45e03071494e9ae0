"""From what the service answers to what a client reads. Each function returns about how many bytes it wrote where they can be many."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tenantq.domain.message import (
    AddResult,
    DeadLetter,
    Delivery,
    Facts,
    HistoryEntry,
    MessagePage,
    Outcome,
    QueueStats,
    Result,
)
from tenantq.domain.validation import all_fields
from tenantq.errors import TenantqError
from tenantq.journal.record import JournalRow
from tenantq.rpc.connection import RpcConnection
from tenantq.service import QueueInfo
from tenantq.service.problems import item_error, refusal_of_all
from tenantq.wire.kinds import Problem

_encode = msgspec.json.Encoder().encode


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


_FIELDS: Final[dict[type[msgspec.Struct], tuple[tuple[str, str], ...]]] = {
    kind: tuple((field, _camel(field)) for field in kind.__struct_fields__)
    for kind in (QueueStats, JournalRow, HistoryEntry, DeadLetter)
}


def _copy(value: msgspec.Struct, into: Any) -> None:
    """Copy a value whose fields are all there under the same names."""
    for field, name in _FIELDS[type(value)]:
        setattr(into, name, getattr(value, field))


def write_error(results: Any, problem: Problem) -> None:
    """Tell why a call was refused."""
    into = results.init("error")
    into.code = problem.code
    into.message = problem.detail
    into.requestId = problem.request_id
    for field in ("retry_after_ms", "limit", "current", "tenant", "queue"):
        value = getattr(problem, field)
        if value is not None:
            setattr(into, _camel(field), value)


def _write_item_error(item: Any, error: TenantqError) -> None:
    told = item_error(error)
    into = item.init("error")
    into.code = told.code
    into.message = told.detail


def _write_attributes(into: Any, attributes: dict[str, str]) -> None:
    if attributes:
        pairs = into.init("attributes", len(attributes))
        for pair, (name, value) in zip(pairs, attributes.items(), strict=True):
            pair.name = name
            pair.value = value


# ---- messages ----


def added(results: Any, answers: list[AddResult], _: RpcConnection) -> int:
    """Tell what became of each message; where all were refused for one reason, the call was."""
    refusal = refusal_of_all(answers)
    if refusal is not None:
        raise refusal
    items = results.init("messages", len(answers))
    for item, one in zip(items, answers, strict=True):
        if one.error is not None:
            _write_item_error(item, one.error)
        else:
            item.id = one.id
            if one.duplicate:
                item.duplicate = True
    return 0


def delivered(results: Any, deliveries: list[Delivery], connection: RpcConnection) -> int:
    """Hand messages out."""
    items = results.init("messages", len(deliveries))
    size = 0
    for item, one in zip(items, deliveries, strict=True):
        size += len(one.body)
        item.id = one.id
        item.receipt = one.receipt
        item.body = one.body
        item.attempt = one.attempt
        item.priority = one.priority
        _write_attributes(item, one.attributes)
        if one.group is not None:
            item.group = one.group
        item.addedAt = one.added_at
        item.leaseUntil = one.lease_until
        item.tenant = one.tenant
        item.queue = one.queue
    results.nowAt = connection.listener.clock.wall_ms()
    return size


def settled(results: Any, answers: tuple[list[str], list[Outcome]], _: RpcConnection) -> int:
    """Tell of each receipt whether it did what was asked."""
    receipts, outcomes = answers
    items = results.init("results", len(outcomes))
    for item, receipt, one in zip(items, receipts, outcomes, strict=True):
        item.receipt = receipt
        item.ok = one.ok
        if one.error is not None:
            _write_item_error(item, one.error)
        if one.lease_until is not None:
            item.leaseUntil = one.lease_until
    return 0


def removed(results: Any, answers: tuple[list[str], list[Outcome]], _: RpcConnection) -> int:
    """Tell of each id whether its message went."""
    ids, outcomes = answers
    items = results.init("results", len(outcomes))
    for item, id, one in zip(items, ids, outcomes, strict=True):
        item.id = id
        item.ok = one.ok
        if one.error is not None:
            _write_item_error(item, one.error)
    return 0


def page(results: Any, found: MessagePage, _: RpcConnection) -> int:
    """Show messages."""
    items = results.init("messages", len(found.messages))
    for item, facts in zip(items, found.messages, strict=True):
        _write_facts(item, facts)
    if found.cursor is not None:
        results.cursor = found.cursor
    return sum(len(facts.body) for facts in found.messages)


def message(results: Any, facts: Facts, _: RpcConnection) -> int:
    """Tell everything known of one message."""
    _write_facts(results.init("message"), facts)
    return len(facts.body)


def _write_facts(into: Any, facts: Facts) -> None:
    for field in ("id", "tenant", "queue", "state", "size", "priority", "attempts"):
        setattr(into, field, getattr(facts, field))
    for field in ("group", "max_attempts", "added_at", "visible_at", "expires_at", "lease_until"):
        value = getattr(facts, field)
        if value is not None:
            setattr(into, _camel(field), value)
    into.bodyHidden = facts.hidden
    into.bodyError = facts.body_error
    into.encrypted = facts.sealed
    if not facts.hidden and not facts.body_error:
        into.body = facts.body
    _write_attributes(into, facts.attributes)
    for item, one in zip(into.init("history", len(facts.history)), facts.history, strict=True):
        _copy(one, item)
    if facts.dead is not None:
        _copy(facts.dead, into.init("dead"))


def result(results: Any, answer: tuple[Result, bool], _: RpcConnection) -> int:
    """Tell a message's result."""
    found, is_hidden = answer
    if found.status == "pending":
        results.pending = None
    elif found.status == "failed":
        results.failed = found.error or ""
    elif is_hidden:
        results.hidden = None
    else:
        results.value = found.value or b""
        return len(results.value)
    return 0


def rows(results: Any, found: list[JournalRow], _: RpcConnection) -> int:
    """Tell a message's whole history."""
    for item, row in zip(results.init("rows", len(found)), found, strict=True):
        _copy(row, item)
    return 0


# ---- queues ----


def queue(results: Any, info: QueueInfo, _: RpcConnection) -> int:
    """Tell a queue's settings and figures."""
    _write_queue(results.init("queue"), info)
    return 0


def put(results: Any, answer: tuple[bool, QueueInfo], connection: RpcConnection) -> int:
    """Tell what a queue is now."""
    is_new, info = answer
    results.created = is_new
    return queue(results, info, connection)


def _write_queue(into: Any, info: QueueInfo) -> None:
    into.tenant = info.tenant
    into.name = info.name
    into.id = info.id
    into.config = _encode(all_fields(info.config)).decode()
    _copy(info.stats, into.init("stats"))
    if info.suspension is not None:
        told = into.init("suspension")
        for field in ("mode", "reason", "by", "at"):
            setattr(told, field, getattr(info.suspension, field))


def queues(results: Any, answer: tuple[int, list[QueueInfo]], _: RpcConnection) -> int:
    """Tell a page of queues, and where the next one starts if this one is full."""
    limit, found = answer
    for item, info in zip(results.init("queues", len(found)), found, strict=True):
        _write_queue(item, info)
    if len(found) == limit:
        results.cursor = found[-1].name
    return 0


def stats(results: Any, info: QueueInfo, _: RpcConnection) -> int:
    """Tell a queue's figures."""
    _copy(info.stats, results.init("stats"))
    return 0


def done(results: Any, _: None, __: RpcConnection) -> int:
    """Tell that it is done."""
    results.done = None
    return 0


def purged(results: Any, count: int, _: RpcConnection) -> int:
    """Tell how many messages went."""
    results.purged = count
    return 0


def redrive(results: Any, task: Any, _: RpcConnection) -> int:
    """Tell how a redrive stands."""
    into = results.init("redrive")
    into.task = task.id
    for field in ("state", "moved", "skipped"):
        setattr(into, field, getattr(task, field))
    into.dryRun = task.dry_run
    return 0
