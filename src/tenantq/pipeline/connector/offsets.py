"""Offsets of a stream over a journal: how far each shard was read. They only grow, and always stand for the same rows.

As JSON: ``{"from": {shard: seq}, "to": {shard: seq}}``. ``to`` is the last record read. ``from`` is where the query began; it stays the same
for the whole life of a checkpoint. It is in every offset because Spark does not keep where the first batch began: after a crash in that
batch it asks for the beginning anew, and by then "latest" would be further on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenantq.errors import Invalid


class Offset(msgspec.Struct, frozen=True):
    """How far each shard was read, and from where on. A shard that is not named was not read yet."""

    start: dict[str, int] = msgspec.field(name="from", default_factory=dict)
    end: dict[str, int] = msgspec.field(name="to", default_factory=dict)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Offset:
        """Read an offset that Spark kept, or that a user gave."""
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"the checkpoint's offset is not one of a journal: {error}; use another checkpoint"
            ) from error

    @classmethod
    def beginning(cls, places: dict[str, int]) -> Offset:
        """Return the offset of a query that begins behind these records."""
        return cls(places, places)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def reached(self, end: dict[str, int]) -> Offset:
        """Return the offset of the same query, further on."""
        return Offset(self.start, {**self.end, **end})

    def before(self, end: Offset) -> dict[str, int]:
        """Return where the batch that ends at ``end`` began, if this offset is what Spark took for its start."""
        return self.end if self.start == end.start else end.start


def parse_starting(text: str) -> dict[str, int]:
    """Return the records behind which to begin, from JSON: an object of shards and their last record, or a whole offset."""
    try:
        given = msgspec.json.decode(text)
        places = given["to"] if isinstance(given, dict) and "to" in given else given
        found = msgspec.convert(places, dict[str, int])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Invalid(
            'option startingOffsets: must be "earliest", "latest", or JSON like {"0": 120}, the last record of each shard'
            " that is not wanted"
        ) from error
    if any(seq < 0 for seq in found.values()):
        raise Invalid("option startingOffsets: a record's number is 0 or more")
    return found
