"""Reports index rows that no message accounts for. Runs only if the counts differ."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from tenantq.doctor.checked_queue import CheckedQueue
from tenantq.store.interface import Family
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
from tenantq.store.row_pages import VALUES_PER_PAGE, pages_of_items, pages_of_keys
from tenantq.store.rows import unpack_key, unpack_lease, unpack_message

T = TypeVar("T")

_HEAD_KEY = PREFIX_BYTES + ID_BYTES
_MEMBER_KEY = PREFIX_BYTES + 2 * ID_BYTES


def in_delivery_order(checked: CheckedQueue) -> None:
    """Report rows of vi whose message is gone, leased or at another position."""
    store, prefix = checked.store, checked.queue.prefix
    for page in pages_of_keys(store, store.vi, prefix, after(prefix), VALUES_PER_PAGE):
        keys = [key for key in page if len(key) == PREFIX_BYTES + 1 + SUFFIX_BYTES]
        message_keys = [prefix + key[-ID_BYTES:] for key in keys]
        bodies, leases = store.get_many(store.m, message_keys), store.get_many(store.le, message_keys)
        for key, body, raw in zip(keys, bodies, leases, strict=True):
            _, priority, visible_at, id = split_waiting_key(key)
            if body is None:
                checked.found("orphan", "A row of the delivery order has no message.", id)
                continue
            message = unpack_message(body)
            lease = unpack_lease(raw) if raw is not None else None
            at = lease.visible_at if lease is not None else message.visible_at
            if (priority, visible_at) != (message.priority, at):
                checked.found("index", "The message is at the wrong position in the delivery order.", id)


def in_leases(checked: CheckedQueue) -> None:
    """Report rows of le without a message."""
    for key, _, body in _rows(checked, checked.store.le, checked.store.m, lambda key: (key[PREFIX_BYTES:], None)):
        if body is None:
            checked.found("orphan", "A lease row has no message.", key)


def in_deadlines(checked: CheckedQueue) -> None:
    """Report rows of li that are not the deadline of a current lease."""

    def parse(key: bytes) -> tuple[bytes, int]:
        _, deadline, id = split_deadline_key(key.ljust(PREFIX_BYTES + 8, b"\0"))
        return id, deadline

    for id, deadline, raw in _rows(checked, checked.store.li, checked.store.le, parse):
        lease = unpack_lease(raw) if raw is not None else None
        if lease is None:
            checked.found("orphan", "A deadline row has no lease.", id)
        elif not lease.token or lease.deadline != deadline:
            checked.found("lease", "A deadline row does not match the message's lease.", id)


def examine_groups(checked: CheckedQueue) -> tuple[int, int]:
    """Check that every group has a head that is one of its members. Returns the number of rows, and of members."""
    store, prefix = checked.store, checked.queue.prefix
    rows = members = 0
    group, head, head_seen = b"", b"", True
    for page in pages_of_items(store, store.gr, prefix, after(prefix), 1_000):
        for key, value in page:
            if key[:_HEAD_KEY] != group:
                _end_of_group(checked, head, head_seen=head_seen)
                group, head, head_seen = key[:_HEAD_KEY], b"", False
            if len(key) == _HEAD_KEY:
                head = value
            elif len(key) == _MEMBER_KEY:
                members += 1
                id = key[_HEAD_KEY:]
                head_seen = head_seen or id == head
                if not head:
                    checked.found("group", "The group has members but no head, so none is delivered.", id)
                    head_seen, head = True, id
            else:
                checked.found("orphan", f"A group row has a malformed key {key.hex()}.")
        rows += len(page)
    _end_of_group(checked, head, head_seen=head_seen)
    return rows, members


def _end_of_group(checked: CheckedQueue, head: bytes, *, head_seen: bool) -> None:
    if not head_seen:
        checked.found("group", "The head of a group is not one of its members, so the group is blocked.", head)


def in_groups(checked: CheckedQueue) -> None:
    """Report members whose message is gone or of another group."""

    def parse(key: bytes) -> tuple[bytes, bytes] | None:
        return (key[_HEAD_KEY:], key[PREFIX_BYTES:_HEAD_KEY]) if len(key) == _MEMBER_KEY else None

    for id, group, body in _rows(checked, checked.store.gr, checked.store.m, parse):
        if body is None:
            checked.found("orphan", "A member of a group has no message.", id)
        elif checked.queue.group_digest(unpack_message(body).group) != group:
            checked.found("group", "The message is a member of the wrong group.", id)


def in_lifetimes(checked: CheckedQueue) -> None:
    """Report TTL rows of messages that are gone or have another TTL."""
    for id, at, body in _rows(checked, checked.store.ex, checked.store.m, _expiry_parser(EXPIRES_TTL)):
        if body is None:
            checked.found("orphan", "A TTL row has no message.", id)
        elif unpack_message(body).expires_at != at:
            checked.found("expiry", "A TTL row does not match the message's TTL.", id)


def in_keys(checked: CheckedQueue) -> None:
    """Report expiry rows of idempotency keys that are gone or were rewritten."""
    for ref, at, value in _rows(checked, checked.store.ex, checked.store.ik, _expiry_parser(EXPIRES_KEY)):
        if value is None or unpack_key(value).expires_at != at:
            checked.found("orphan", f"An expiry row has no idempotency key (digest {ref.hex()}).")


def _expiry_parser(wanted: bytes) -> Callable[[bytes], tuple[bytes, int] | None]:
    def parse(key: bytes) -> tuple[bytes, int] | None:
        _, at, kind, ref = split_expiry_key(key)
        return (ref, at) if kind == wanted else None

    return parse


def _rows(
    checked: CheckedQueue, family: Family, target: Family, parse: Callable[[bytes], tuple[bytes, T] | None]
) -> Iterator[tuple[bytes, T, bytes | None]]:
    """Yield the reference and the detail that ``parse`` finds in each key of an index, and the row it refers to in ``target``."""
    prefix = checked.queue.prefix
    for page in pages_of_keys(checked.store, family, prefix, after(prefix), VALUES_PER_PAGE):
        parsed = [found for key in page if (found := parse(key)) is not None]
        rows = checked.store.get_many(target, [prefix + ref for ref, _ in parsed]) if parsed else []
        for (ref, detail), row in zip(parsed, rows, strict=True):
            yield ref, detail, row
