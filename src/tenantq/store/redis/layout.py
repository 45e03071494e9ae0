"""Which Redis keys hold a shard's rows. All of them carry one hash tag, so that all lie in one slot.

With ``t:{name:shard}:`` before each, and P the queue's prefix (see store/keys.py):

    s                     hash: epoch, holder, until_ms, commit, batch, beat, id, format
    meta, meta:i          hash of rows; sorted set of their keys
    qc, qc:i              the same
    m:P, m:i:P            the same for every queue, without P in the keys; also le, gr, ik, re
    vi:P                  sorted set of keys, each with its value behind it; also li, ex, whose values are empty
    jn                    stream: one entry per record, with the record's number as its id
    p                     sorted set of the prefixes that may have rows
    kept:EPOCH:N, kept    what a moment still reads after its queue was deleted; set of their names

A queue that goes takes a few keys with it, whatever it held, and no other queue's key gets longer by what it holds.
"""

from __future__ import annotations

from typing import Final

from tenantq.store.keys import FAMILIES, PREFIX_BYTES, QUEUE_FAMILIES

GROUPED: Final = tuple(name for name in QUEUE_FAMILIES if name != "qc")
"""The families that have keys of their own for every queue."""
PLACE_BYTES: Final = {"vi": 25, "li": 24, "ex": 25}
"""Families that are nothing but an order: how long their keys are behind P."""
JOURNAL: Final = "jn"
NUMBER: Final = {name: number for number, name in enumerate(FAMILIES)}
_LAST: Final = b"\xff"


class Layout:
    """The names of one shard's keys."""

    def __init__(self, name: str, shard: str) -> None:
        self.root = b"t:{%s:%s}:" % (name.encode(), shard.encode())
        self.state = self.root + b"s"
        self.journal = self.root + b"jn"
        self.prefixes = self.root + b"p"
        self.kept = self.root + b"kept"

    def rows(self, family: str, group: bytes) -> bytes:
        """Return the key of the hash, or of the sorted set where the family is nothing but an order."""
        return self.root + family.encode() + b":" + group if family in GROUPED else self.root + family.encode()

    def index(self, family: str, group: bytes) -> bytes:
        """Return the key of the sorted set."""
        if family in PLACE_BYTES:
            return self.rows(family, group)
        return (
            self.root + family.encode() + b":i:" + group if family in GROUPED else self.root + family.encode() + b":i"
        )


def group_of(family: str, key: bytes) -> bytes:
    """Return the prefix whose Redis keys hold a row."""
    return key[:PREFIX_BYTES] if family in GROUPED else b""


def lex_bounds(family: str, group: bytes, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
    """Return the bounds of [lower, upper) inside a group as Redis writes them; None: there is nothing of it in this group."""
    first, last = lower[: len(group)], upper[: len(group)]
    if first > group or last < group or upper <= group:
        return None
    low = b"-" if lower <= group else b"[" + _inside(family, lower[len(group) :])
    high = b"+" if last > group else b"(" + _inside(family, upper[len(group) :])
    return low, high


def _inside(family: str, bound: bytes) -> bytes:
    """Return a bound that counts a key and the value behind it as one, in families that are nothing but an order."""
    length = PLACE_BYTES.get(family)
    return bound if length is None or len(bound) <= length else bound[:length] + _LAST


def covers(lower: bytes, upper: bytes, group: bytes) -> bool:
    """Tell whether everything in a group is in [lower, upper)."""
    return lower <= group and upper[: len(group)] > group


def entry_bounds(lower: bytes, upper: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of [lower, upper) as a stream writes them; keys of the journal have eight bytes."""
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
