"""Offsets of a stream over a journal: the last record read of each shard. They only grow, and always mean the same rows.

As JSON: ``{"from": {shard: seq}, "to": {shard: seq}}``. ``to`` is the last record read. ``from`` is where the query began, and
never changes in a checkpoint. Every offset has it because Spark does not store where the first batch began: after a crash in
that batch it asks again, and "latest" would have moved on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenantq.errors import Invalid


class Offset(msgspec.Struct, frozen=True):
    """Where reading of each shard began, and how far it is. A shard without an entry was not read yet."""

    start: dict[str, int] = msgspec.field(name="from", default_factory=dict)
    end: dict[str, int] = msgspec.field(name="to", default_factory=dict)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Offset:
        """Return an offset from what Spark stored or a user gave."""
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"the offset in the checkpoint is not a journal offset: {error}. Use another checkpoint."
            ) from error

    @classmethod
    def beginning(cls, places: dict[str, int]) -> Offset:
        """Return the offset of a query that begins after these records."""
        return cls(places, places)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def reached(self, end: dict[str, int]) -> Offset:
        """Return the offset of the same query, further on."""
        return Offset(self.start, {**self.end, **end})

    def before(self, end: Offset) -> dict[str, int]:
        """Return where the batch that ends at ``end`` began, if Spark takes this offset for its start."""
        return self.end if self.start == end.start else end.start


def parse_starting(text: str) -> dict[str, int]:
    """Return the records after which to begin, from JSON: an object of shards and records, or a whole offset."""
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
        raise Invalid("option startingOffsets: record numbers must be at least 0")
    return found
