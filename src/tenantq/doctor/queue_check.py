"""Checks one queue: every message in exactly one state, every index row accounted for, the counters equal.

The walk over the messages looks up the index rows that each message should have, and counts them. If an index then has more rows than
were accounted for, a second walk over that index reports the extra ones. So memory stays small at any depth, and a clean queue is
read once.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from tenantq.doctor import index_check
from tenantq.doctor.catalog_check import KnownQueue
from tenantq.doctor.checked_queue import CheckedQueue
from tenantq.doctor.counters_check import Recount, compare
from tenantq.doctor.report import FindingLog
from tenantq.engine.data_key_rows import data_key_row
from tenantq.errors import DecryptionFailed
from tenantq.store.interface import Family, StoreReader
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_RESULT,
    EXPIRES_TTL,
    ID_BYTES,
    PREFIX_BYTES,
    SUFFIX_BYTES,
    after,
    deadline_key,
    expiry_key,
    from_be64,
    split_expiry_key,
    split_prefix,
    split_waiting_key,
    waiting_key,
)
from tenantq.store.row_pages import VALUES_PER_PAGE, pages_of_items, pages_of_keys
from tenantq.store.rows import (
    LeaseRow,
    MessageRow,
    unpack_counters,
    unpack_key,
    unpack_lease,
    unpack_message,
    unpack_result,
)
from tenantq.vault.envelope import key_number

_DELIVERED_BEFORE = b"\x01"


class CheckedMessage(msgspec.Struct):
    """A stored message and the state that its rows imply."""

    id: bytes
    message: MessageRow
    lease: LeaseRow | None
    group: bytes
    state: Literal["waiting", "blocked", "in_flight"] = "waiting"

    @property
    def visible_at(self) -> int:
        """Its position in the delivery order."""
        return self.lease.visible_at if self.lease is not None else self.message.visible_at


class QueueCheck:
    """The check of one queue."""

    def __init__(
        self, store: StoreReader, queue: KnownQueue, log: FindingLog, now: int, data_keys: Mapping[int, set[int]]
    ) -> None:
        self.store = store
        self.queue = queue
        self.log = log
        self._checked = CheckedQueue(store, queue, log)
        self._key_numbers = data_keys.get(split_prefix(queue.prefix)[0], set())
        value = store.get(store.qc, queue.prefix)
        self.counters = unpack_counters(value) if value is not None else None
        beat = store.last_beat()  # a queue of a running shard was read just now
        self.now = max(now, beat.engine_ms) if beat is not None else now
        self.recount = Recount(self.counters)
        self.accounted = Counter[str]()  # index rows by family; m and k: expiry rows by kind

    def run(self) -> None:
        store, prefix = self.store, self.queue.prefix
        for page in pages_of_items(store, store.m, prefix, after(prefix)):
            self._messages([(key[PREFIX_BYTES:], value) for key, value in page])
            self.log.progress(self._where, len(page))
        self._keys()
        self._results()
        self._waiting_rows()
        self._other_rows()
        compare(self.recount, self.counters, self._checked)

    @property
    def _where(self) -> str:
        return f"{self.queue.tenant}/{self.queue.name}"

    def read_lease(self, id: bytes, value: bytes | None) -> LeaseRow | None:
        """Return a lease row; None: missing or unreadable."""
        if value is None:
            return None
        try:
            lease = unpack_lease(value)
            lease.unpack_history()
        except Exception as error:  # noqa: BLE001  # damaged bytes may raise anything
            self._checked.found("damaged", f"The lease row cannot be read: {error}.", id)
            return None
        return lease

    # ---- messages ----

    def _messages(self, page: list[tuple[bytes, bytes]]) -> None:
        seen: list[CheckedMessage] = []
        leases = self._look_up(self.store.le, [id for id, _ in page])
        for (id, value), raw in zip(page, leases, strict=True):
            self.accounted["le"] += raw is not None
            lease = self.read_lease(id, raw)
            try:
                message = unpack_message(value)
            except Exception as error:  # noqa: BLE001  # damaged bytes may raise anything
                self._checked.found("damaged", f"The message cannot be read: {error}.", id)
                continue
            if message.encrypted:
                self._check_envelope(id, message)
            seen.append(CheckedMessage(id, message, lease, self.queue.group_digest(message.group)))
        self._groups([one for one in seen if one.group])
        for one in seen:
            if one.lease is not None:
                if one.lease.token:
                    one.state = "in_flight"  # the head of a group, or delivered with it
                self._compare_lease(one, one.lease)
        self._positions(seen)
        self._deadlines([one for one in seen if one.state == "in_flight"])
        self._lifetimes([one for one in seen if one.message.expires_at])
        recount, figures = self.recount, self.log.figures
        size = sum(one.message.size for one in seen)
        recount.bytes += size
        figures.bytes += size
        figures.messages += len(seen)
        for one in seen:
            recount.blocked += one.state == "blocked"
            recount.in_flight += one.state == "in_flight"

    def _check_envelope(self, id: bytes, message: MessageRow) -> None:
        """Check that the data key of an encrypted message exists. Decryption would need the key management system."""
        try:
            numbers = {key_number(message.body)}
            if message.encrypted_attributes:
                numbers.add(key_number(message.encrypted_attributes))
        except DecryptionFailed:
            self._checked.found("keys", "The message is marked as encrypted but is not.", id)
            return
        self.log.figures.encrypted += 1
        missing = [data_key_row(split_prefix(self.queue.prefix)[0], number) for number in numbers - self._key_numbers]
        if None in self.store.get_many(self.store.meta, missing) and not self.queue.erasing:
            self._checked.found("keys", "The data key that encrypted the message is missing.", id)

    def _look_up(self, family: Family, suffixes: list[bytes]) -> list[bytes | None]:
        prefix = self.queue.prefix
        return self.store.get_many(family, [prefix + suffix for suffix in suffixes]) if suffixes else []

    def _groups(self, grouped: list[CheckedMessage]) -> None:
        heads = self._look_up(self.store.gr, [one.group for one in grouped])
        members = self._look_up(self.store.gr, [one.group + one.id for one in grouped])
        for one, head, member in zip(grouped, heads, members, strict=True):
            if head != one.id:
                one.state = "blocked"
            self.accounted["gr"] += member is not None
            if member is None:
                self._checked.found("group", "The message is not a member of its group.", one.id)

    def _compare_lease(self, one: CheckedMessage, lease: LeaseRow) -> None:
        message = one.message
        stored = (lease.size, lease.priority, lease.expires_at, lease.group)
        if stored != (message.size, message.priority, message.expires_at, one.group):
            self._checked.found(
                "lease", "The size, priority, TTL or group in the lease row differs from the message.", one.id
            )

    def _positions(self, seen: list[CheckedMessage]) -> None:
        prefix = self.queue.prefix
        keys = [waiting_key(prefix, one.message.priority, one.visible_at, one.id)[PREFIX_BYTES:] for one in seen]
        for one, value in zip(seen, self._look_up(self.store.vi, keys), strict=True):
            self.accounted["vi"] += value is not None
            if one.state != "waiting":
                if value is not None:
                    self._checked.found(
                        "index", f"The message is {one.state} but is listed in the delivery order.", one.id
                    )
            elif value is None:
                self._checked.found("index", "The message is waiting but is missing from the delivery order.", one.id)
            elif (value == _DELIVERED_BEFORE) != (one.lease is not None):
                self._checked.found(
                    "index", "The row in the delivery order does not match the message's earlier deliveries.", one.id
                )

    def _deadlines(self, leased: list[CheckedMessage]) -> None:
        prefix = self.queue.prefix
        keys = [deadline_key(prefix, one.lease.deadline, one.id)[PREFIX_BYTES:] for one in leased if one.lease]
        for one, value in zip(leased, self._look_up(self.store.li, keys), strict=True):
            self.accounted["li"] += value is not None
            if value is None:
                self._checked.found(
                    "lease", "The message is leased but has no deadline row, so its lease never ends.", one.id
                )

    def _lifetimes(self, mortal: list[CheckedMessage]) -> None:
        prefix = self.queue.prefix
        keys = [expiry_key(prefix, one.message.expires_at, EXPIRES_TTL, one.id)[PREFIX_BYTES:] for one in mortal]
        for one, value in zip(mortal, self._look_up(self.store.ex, keys), strict=True):
            if value is not None:
                self.accounted["m"] += 1
            elif one.state != "in_flight" or one.message.expires_at > self.now:
                # The sweeper removes the row of a message in flight: the end of its lease checks the TTL.
                self._checked.found("expiry", "The message has a TTL but no expiry row.", one.id)

    # ---- keys and results ----

    def _keys(self) -> None:
        for _, value, row in self._expiring(
            self.store.ik, EXPIRES_KEY, lambda value: unpack_key(value).expires_at, 1_000
        ):
            self.log.figures.keys += 1
            self.accounted["k"] += row is not None
            if row is None:
                self._checked.found(
                    "expiry", "An idempotency key of the message has no expiry row.", unpack_key(value).id
                )

    def _results(self) -> None:
        for id, _, row in self._expiring(self.store.re, EXPIRES_RESULT, lambda value: unpack_result(value).expires_at):
            self.log.figures.results += 1
            if row is None:
                self._checked.found("expiry", "The result has no expiry row.", id)

    def _expiring(
        self, family: Family, kind: bytes, expires_at: Callable[[bytes], int], size: int = VALUES_PER_PAGE
    ) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        """Yield the reference, the value and the expiry row of each row of a family."""
        prefix = self.queue.prefix
        for page in pages_of_items(self.store, family, prefix, after(prefix), size):
            rows = [(key[PREFIX_BYTES:], value) for key, value in page]
            keys = [expiry_key(prefix, expires_at(value), kind, ref)[PREFIX_BYTES:] for ref, value in rows]
            for (ref, value), row in zip(rows, self._look_up(self.store.ex, keys), strict=True):
                yield ref, value, row
            self.log.progress(self._where, len(page))

    # ---- indexes ----

    def _waiting_rows(self) -> None:
        store, prefix, figures = self.store, self.queue.prefix, self.log.figures
        rows = 0
        for page in pages_of_keys(store, store.vi, prefix, after(prefix)):
            for key in page:
                if len(key) != PREFIX_BYTES + 1 + SUFFIX_BYTES or key[PREFIX_BYTES] > 9:
                    self._checked.found("orphan", f"A row of the delivery order has a malformed key {key.hex()}.")
                    continue
                _, priority, visible_at, _ = split_waiting_key(key)
                self.recount.waiting(priority, key[-SUFFIX_BYTES:])
                figures.ready += visible_at <= self.now
                figures.delayed += visible_at > self.now
            rows += len(page)
            self.log.progress(self._where, len(page))
        if rows != self.accounted["vi"]:
            index_check.in_delivery_order(self._checked)
        figures.blocked += self.recount.blocked
        figures.in_flight += self.recount.in_flight

    def _other_rows(self) -> None:
        store, prefix = self.store, self.queue.prefix
        recount = self.recount
        for family, look in ((store.le, index_check.in_leases), (store.li, index_check.in_deadlines)):
            rows = 0
            for page in pages_of_keys(store, family, prefix, after(prefix)):
                if family is store.li and not rows:
                    recount.first_deadline = from_be64(page[0][PREFIX_BYTES:].ljust(8, b"\0"))
                rows += len(page)
            recount.rows += rows
            if rows != self.accounted[family.name]:
                look(self._checked)
        rows, members = index_check.examine_groups(self._checked)
        recount.rows += rows
        if members != self.accounted["gr"]:
            index_check.in_groups(self._checked)
        self._expiry_rows()

    def _expiry_rows(self) -> None:
        store, prefix = self.store, self.queue.prefix
        counts = {EXPIRES_TTL: 0, EXPIRES_KEY: 0, EXPIRES_RESULT: 0}
        for page in pages_of_keys(store, store.ex, prefix, after(prefix)):
            for key in page:
                _, expires_at, kind, ref = split_expiry_key(key.ljust(PREFIX_BYTES + 9, b"\0"))
                if kind not in counts or len(ref) != ID_BYTES:
                    self._checked.found("orphan", f"An expiry row has a malformed key {key.hex()}.")
                    continue
                counts[kind] += 1
                self.recount.first_expiry = min(self.recount.first_expiry, expires_at)
            self.recount.rows += len(page)
            self.log.progress(self._where, len(page))
        # Rows of results are not counted: a redrive deletes the result and leaves its row to the sweeper.
        if counts[EXPIRES_TTL] != self.accounted["m"]:
            index_check.in_lifetimes(self._checked)
        if counts[EXPIRES_KEY] != self.accounted["k"]:
            index_check.in_keys(self._checked)
