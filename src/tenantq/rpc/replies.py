"""Writes results of the service into replies. Functions return about how many bytes they wrote if there can be many."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tenantq.domain.message import AddResult, Delivery, Facts, MessagePage, Outcome, Result
from tenantq.domain.validation import all_fields
from tenantq.errors import TenantqError
from tenantq.journal.record import JournalRow
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.schema import camel_case
from tenantq.runtime.loop_slices import next_slice, slices_of
from tenantq.service.call import QueueInfo
from tenantq.service.problems import item_error, refusal_of_all
from tenantq.wire.base_types import Problem

_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")


_FACTS: Final = (
    "id", "tenant", "queue", "state", "size", "priority", "attempts", "group", "max_attempts", "added_at", "visible_at",
    "expires_at", "lease_until",
)  # fmt: skip
_NAMES: Final[dict[str, str]] = {}  # of fields in the schema


def _copy(value: Any, into: Any, fields: Sequence[str] | None = None) -> None:
    """Copy fields that have the same names, except None; by default all of a struct."""
    for field in fields if fields is not None else value.__struct_fields__:
        found = getattr(value, field)
        if found is not None:
            name = _NAMES.get(field) or _NAMES.setdefault(field, camel_case(field))
            setattr(into, name, found)


def write_error(results: Any, problem: Problem) -> None:
    """Write the error of a refused call."""
    into = results.init("error")
    into.message = problem.detail
    _copy(problem, into, ("code", "request_id", "retry_after_ms", "limit", "current", "tenant", "queue"))


def _write_item_error(item: Any, error: TenantqError) -> None:
    problem, into = item_error(error), item.init("error")
    into.code = problem.code
    into.message = problem.detail


def _write_attributes(into: Any, attributes: dict[str, str]) -> None:
    if attributes:
        pairs = into.init("attributes", len(attributes))
        for pair, (name, value) in zip(pairs, attributes.items(), strict=True):
            pair.name = name
            pair.value = value


# ---- messages ----


async def _items(into: Any, values: Sequence[_T], size_of: Callable[[_T], int]) -> AsyncIterator[tuple[Any, _T]]:
    """Yield each item of a reply's list with its value. Other tasks run after every slice."""
    at = 0
    for part in slices_of(values, size_of):
        if at:
            await next_slice()
        for value in part:
            yield into[at], value
            at += 1


def _no_bytes(_: object) -> int:
    return 0


def _body_bytes(one: Delivery | Facts) -> int:
    return len(one.body)


def added(results: Any, answers: list[AddResult], _: RpcConnection) -> None:
    """Write the result of each message. Raises if all were refused for one reason."""
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


async def delivered(results: Any, deliveries: list[Delivery], connection: RpcConnection) -> int:
    """Write leased messages, in slices."""
    size = 0
    async for item, one in _items(results.init("messages", len(deliveries)), deliveries, _body_bytes):
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
    results.nowAt = connection.context.clock.wall_ms()
    return size


async def settled(results: Any, answers: tuple[list[str], list[Outcome]], _: RpcConnection) -> None:
    """Write the outcome of each receipt."""
    await _write_outcomes(results, "receipt", *answers)


async def removed(results: Any, answers: tuple[list[str], list[Outcome]], _: RpcConnection) -> None:
    """Write whether each message was deleted."""
    await _write_outcomes(results, "id", *answers)


async def _write_outcomes(results: Any, name: str, subjects: list[str], outcomes: list[Outcome]) -> None:
    pairs = list(zip(subjects, outcomes, strict=True))
    async for item, (subject, one) in _items(results.init("results", len(outcomes)), pairs, _no_bytes):
        setattr(item, name, subject)
        item.ok = one.ok
        if one.error is not None:
            _write_item_error(item, one.error)
        if one.lease_until is not None:
            item.leaseUntil = one.lease_until


async def page(results: Any, found: MessagePage, _: RpcConnection) -> int:
    """Write a page of messages, in slices."""
    async for item, facts in _items(results.init("messages", len(found.messages)), found.messages, _body_bytes):
        _write_facts(item, facts)
    if found.cursor is not None:
        results.cursor = found.cursor
    return sum(len(facts.body) for facts in found.messages)


def message(results: Any, facts: Facts, _: RpcConnection) -> int:
    """Write one message."""
    _write_facts(results.init("message"), facts)
    return len(facts.body)


def _write_facts(into: Any, facts: Facts) -> None:
    _copy(facts, into, _FACTS)
    into.bodyHidden = facts.hidden
    into.bodyError = facts.body_error
    into.encrypted = facts.encrypted
    if not facts.hidden and not facts.body_error:
        into.body = facts.body
    _write_attributes(into, facts.attributes)
    for item, one in zip(into.init("history", len(facts.history)), facts.history, strict=True):
        _copy(one, item)
    if facts.dead is not None:
        _copy(facts.dead, into.init("dead"))


def result(results: Any, answer: tuple[Result, bool], _: RpcConnection) -> int | None:
    """Write a message's result."""
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
    return None


def rows(results: Any, found: list[JournalRow], _: RpcConnection) -> None:
    """Write a message's history."""
    for item, row in zip(results.init("rows", len(found)), found, strict=True):
        _copy(row, item)


# ---- queues ----


def queue(results: Any, info: QueueInfo, _: RpcConnection) -> None:
    """Write a queue's settings and figures."""
    _write_queue(results.init("queue"), info)


def put(results: Any, answer: tuple[bool, QueueInfo], connection: RpcConnection) -> None:
    """Write a queue, and whether it is new."""
    results.created, info = answer
    queue(results, info, connection)


def _write_queue(into: Any, info: QueueInfo) -> None:
    _copy(info, into, ("tenant", "name", "id"))
    into.config = _encode(all_fields(info.config)).decode()
    _copy(info.stats, into.init("stats"))
    if info.suspension is not None:
        _copy(info.suspension, into.init("suspension"), ("mode", "reason", "by", "at"))


def queues(results: Any, answer: tuple[int, list[QueueInfo]], _: RpcConnection) -> None:
    """Write a page of queues, and the cursor of the next page if this one is full."""
    limit, found = answer
    for item, info in zip(results.init("queues", len(found)), found, strict=True):
        _write_queue(item, info)
    if len(found) == limit:
        results.cursor = found[-1].name


def stats(results: Any, info: QueueInfo, _: RpcConnection) -> None:
    """Write a queue's figures."""
    _copy(info.stats, results.init("stats"))


def done(results: Any, _: None, __: RpcConnection) -> None:
    """Write that the call is done."""
    results.done = None


def purged(results: Any, count: int, _: RpcConnection) -> None:
    """Write how many messages were deleted."""
    results.purged = count


def redrive(results: Any, task: Any, _: RpcConnection) -> None:
    """Write the progress of a redrive."""
    into = results.init("redrive")
    into.task = task.id
    _copy(task, into, ("state", "moved", "skipped", "dry_run"))
