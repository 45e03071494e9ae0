"""Index rows that no message accounts for, named one by one. Run only where the counts differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.doctor.pages import VALUES_PER_PAGE, pages_of_items, pages_of_keys
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_TTL,
    ID_BYTES,
    PREFIX_BYTES,
    SUFFIX_BYTES,
    after,
    split_deadline_key,
    split_expiry_key,
    split_waiting_key,
)
from tenantq.store.rows import unpack_key, unpack_lease, unpack_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenantq.doctor.queue_exam import QueueExam
    from tenantq.store.interface import Family

_HEAD_KEY = PREFIX_BYTES + ID_BYTES
_MEMBER_KEY = PREFIX_BYTES + 2 * ID_BYTES


def in_delivery_order(exam: QueueExam) -> None:
    """Name rows of vi whose message is gone, leased, or stands elsewhere."""
    store, prefix = exam.store, exam.queue.prefix
    for page in _keys(exam, store.vi):
        keys = [key for key in page if len(key) == PREFIX_BYTES + 1 + SUFFIX_BYTES]
        message_keys = [prefix + key[-ID_BYTES:] for key in keys]
        bodies, leases = store.get_many(store.m, message_keys), store.get_many(store.le, message_keys)
        for key, body, raw in zip(keys, bodies, leases, strict=True):
            _, priority, visible_at, id = split_waiting_key(key)
            if body is None:
                exam.found("orphan", "A row of the delivery order has no message.", id)
                continue
            message = unpack_message(body)
            lease = unpack_lease(raw) if raw is not None else None
            at = lease.visible_at if lease is not None else message.visible_at
            if (priority, visible_at) != (message.priority, at):
                exam.found("index", "The message stands in the delivery order at a place that is not its own.", id)


def in_leases(exam: QueueExam) -> None:
    """Name rows of le whose message is gone."""
    store = exam.store
    for page in _keys(exam, store.le):
        for key, body in zip(page, store.get_many(store.m, page), strict=True):
            if body is None:
                exam.found("orphan", "A lease row has no message.", key[PREFIX_BYTES:])


def in_deadlines(exam: QueueExam) -> None:
    """Name rows of li that are not the deadline of a current lease."""
    store, prefix = exam.store, exam.queue.prefix
    for page in _keys(exam, store.li):
        parsed = [split_deadline_key(key.ljust(PREFIX_BYTES + 8, b"\0")) for key in page]
        leases = store.get_many(store.le, [prefix + id for _, _, id in parsed])
        for (_, deadline, id), raw in zip(parsed, leases, strict=True):
            lease = unpack_lease(raw) if raw is not None else None
            if lease is None:
                exam.found("orphan", "A deadline row has no lease.", id)
            elif not lease.token or lease.deadline != deadline:
                exam.found("lease", "A deadline row is not the deadline of the message's lease.", id)


def examine_groups(exam: QueueExam) -> int:
    """Check that every group has a head which is one of its members; return the number of members."""
    store, prefix = exam.store, exam.queue.prefix
    members = 0
    group, head, head_seen = b"", b"", True
    for page in pages_of_items(store, store.gr, prefix, after(prefix), 1_000):
        for key, value in page:
            if key[:_HEAD_KEY] != group:
                _end_of_group(exam, head, head_seen=head_seen)
                group, head, head_seen = key[:_HEAD_KEY], b"", False
            if len(key) == _HEAD_KEY:
                head = value
            elif len(key) == _MEMBER_KEY:
                members += 1
                id = key[_HEAD_KEY:]
                head_seen = head_seen or id == head
                if not head:
                    exam.found("group", "The group has members and no head, so none is ever delivered.", id)
                    head_seen, head = True, id
            else:
                exam.found("orphan", f"A group row has a malformed key {key.hex()}.")
        exam.recount.rows += len(page)
    _end_of_group(exam, head, head_seen=head_seen)
    return members


def _end_of_group(exam: QueueExam, head: bytes, *, head_seen: bool) -> None:
    if not head_seen:
        exam.found("group", "The head of a group is not one of its members, so the group stands still.", head)


def in_groups(exam: QueueExam) -> None:
    """Name members whose message is gone or of another group."""
    store, prefix = exam.store, exam.queue.prefix
    for page in _keys(exam, store.gr):
        members = [key for key in page if len(key) == _MEMBER_KEY]
        bodies = store.get_many(store.m, [prefix + key[_HEAD_KEY:] for key in members]) if members else []
        for key, body in zip(members, bodies, strict=True):
            id = key[_HEAD_KEY:]
            if body is None:
                exam.found("orphan", "A member of a group has no message.", id)
            elif exam.queue.group_digest(unpack_message(body).group) != key[PREFIX_BYTES:_HEAD_KEY]:
                exam.found("group", "The message is a member of a group that is not its own.", id)


def in_lifetimes(exam: QueueExam) -> None:
    """Name TTL rows of messages that are gone or have another TTL."""
    store, prefix = exam.store, exam.queue.prefix
    for page in _keys(exam, store.ex):
        parsed = [(at, ref) for _, at, kind, ref in map(split_expiry_key, page) if kind == EXPIRES_TTL]
        bodies = store.get_many(store.m, [prefix + ref for _, ref in parsed]) if parsed else []
        for (at, id), body in zip(parsed, bodies, strict=True):
            if body is None:
                exam.found("orphan", "A TTL row has no message.", id)
            elif unpack_message(body).expires_at != at:
                exam.found("expiry", "A TTL row is not of the message's TTL.", id)


def in_keys(exam: QueueExam) -> None:
    """Name expiry rows of idempotency keys that are gone or were written anew."""
    store, prefix = exam.store, exam.queue.prefix
    for page in _keys(exam, store.ex):
        parsed = [(at, ref) for _, at, kind, ref in map(split_expiry_key, page) if kind == EXPIRES_KEY]
        values = store.get_many(store.ik, [prefix + ref for _, ref in parsed]) if parsed else []
        for (at, ref), value in zip(parsed, values, strict=True):
            if value is None or unpack_key(value).expires_at != at:
                exam.found("orphan", f"An expiry row has no idempotency key (digest {ref.hex()}).")


def _keys(exam: QueueExam, family: Family) -> Iterator[list[bytes]]:
    prefix = exam.queue.prefix
    return pages_of_keys(exam.store, family, prefix, after(prefix), VALUES_PER_PAGE)
