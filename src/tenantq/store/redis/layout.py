"""The Redis keys of a shard's rows. All have one hash tag, so they are in one slot.

With ``t:{name:shard}:`` before each, P the queue's prefix (see store/keys.py), and Q ``TENANT:QUEUE:ID``:

    s                     hash: epoch, holder, until_ms, commit, batch, beat, beat_ms, id, format
    meta, meta:i          hash of rows; sorted set of their keys
    qc, qc:i              the same
    Q:m, Q:m:i            the same for every queue, without P in the keys; also le, gr, ik, re
    Q:vi                  sorted set of keys, each with its value behind it; also li, ex, whose values are empty
    jn                    stream: one entry per record, with the record's number as its id
    p                     sorted set of the prefixes that may have rows, each with Q behind it
    kept:EPOCH:N, kept    keys of deleted queues that a snapshot still reads; set of their names

Deleting a queue deletes a few keys, however many rows it has, and each queue has its own keys. Names of tenants
and queues have no ``:`` and no character that is special in patterns, so ``SCAN MATCH t:{*}:acme:*`` finds a tenant. ID, which
is P, keeps rows of a deleted queue apart from those of a new one of the same name.
"""

from typing import Final

from tenantq.store.keys import FAMILIES, PREFIX_BYTES, QUEUE_FAMILIES

GROUPED: Final = tuple(name for name in QUEUE_FAMILIES if name != "qc")
"""The families with separate keys for each queue."""
PLACE_BYTES: Final = {"vi": 25, "li": 24, "ex": 25}
"""Families that only keep an order: the length of their keys after P."""
JOURNAL: Final = "jn"
_LAST: Final = b"\xff"
_FAMILY_NAMES: Final = {name: name.encode() for name in FAMILIES}


class Layout:
    """The names of one shard's keys."""

    def __init__(self, name: str, shard: str) -> None:
        self.root = b"t:{%s:%s}:" % (name.encode(), shard.encode())
        self.state = self.root + b"s"
        self.journal = self.root + b"jn"
        self.prefixes = self.root + b"p"
        self.kept = self.root + b"kept"
        self._queues: dict[bytes, bytes] = {}  # Q by P, of queues that may have rows
        self._names: dict[bytes, bytes] = {}  # Q by P, of others

    def queue(self, group: bytes) -> bytes:
        """Return Q. Rows of a queue with an unknown name are under their prefix alone."""
        return self._queues.get(group) or self._names.get(group) or b"::" + _id(group)

    def name_queue(self, group: bytes, name: str | None) -> None:
        """Note the name of a queue, for when it gets its first rows; None: it is deleted."""
        if name is None:
            self._names.pop(group, None)
        else:
            self._names[group] = f"{name}:".encode() + _id(group)

    def register(self, group: bytes, queue: bytes) -> None:
        """Note Q of a queue that may have rows. It does not change as long as the queue has any."""
        self._queues[group] = queue

    def forget(self, group: bytes) -> None:
        """Note that a queue has no rows."""
        self._queues.pop(group, None)

    def rows(self, family: str, group: bytes) -> bytes:
        """Return the key of the hash, or of the sorted set if the family only keeps an order."""
        name = _FAMILY_NAMES[family]
        return self.root + self.queue(group) + b":" + name if family in GROUPED else self.root + name

    def index(self, family: str, group: bytes) -> bytes:
        """Return the key of the sorted set."""
        return self.rows(family, group) if family in PLACE_BYTES else self.rows(family, group) + b":i"


def _id(group: bytes) -> bytes:
    return b"%x.%x" % (int.from_bytes(group[:4]), int.from_bytes(group[4:]))


def group_of(family: str, key: bytes) -> bytes:
    """Return the prefix whose Redis keys hold a row."""
    return key[:PREFIX_BYTES] if family in GROUPED else b""


def lex_bounds(family: str, group: bytes, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
    """Return the bounds of [lower, upper) inside a group in the syntax of Redis; None if the range does not touch the group."""
    first, last = lower[: len(group)], upper[: len(group)]
    if first > group or last < group or upper <= group:
        return None
    low = b"-" if lower <= group else b"[" + _inside(family, lower[len(group) :])
    high = b"+" if last > group else b"(" + _inside(family, upper[len(group) :])
    return low, high


def _inside(family: str, bound: bytes) -> bytes:
    """Return a bound that treats a key and its value as one, in families that only keep an order."""
    length = PLACE_BYTES.get(family)
    return bound if length is None or len(bound) <= length else bound[:length] + _LAST


def covers(lower: bytes, upper: bytes, group: bytes) -> bool:
    """Return whether a whole group is in [lower, upper)."""
    return lower <= group and upper[: len(group)] > group


def entry_bounds(lower: bytes, upper: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of [lower, upper) in the syntax of streams. Keys of the journal have eight bytes."""
    return _entry(lower, b"(" if len(lower) > 8 else b""), _entry(upper, b"" if len(upper) > 8 else b"(")


def _entry(key: bytes, exclusive: bytes) -> bytes:
    return exclusive + b"%d-0" % int.from_bytes(key[:8].ljust(8, b"\0"))


def entry_id(key: bytes) -> bytes:
    """Return the id of a record in the stream."""
    assert len(key) == 8
    return b"%d-0" % int.from_bytes(key)


def entry_key(id: bytes) -> bytes:
    """Return the journal's key of an entry."""
    return int(id.partition(b"-")[0]).to_bytes(8)
