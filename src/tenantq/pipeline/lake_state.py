"""What a lake remembers beside its tables: with what they were computed, which tenants were erased, what was archived.

It is one JSON file, ``_state/state.json``, which changes in the same commit as the tables that it is about.
"""

from __future__ import annotations

import msgspec


class Removal(msgspec.Struct, frozen=True):
    """A partition that lost a tenant's rows."""

    partition: str
    rows_before: int
    rows_removed: int
    sha256_before: str  # over its files, by name
    sha256_after: str  # empty: nothing was left of it
    archive: str = ""  # where it lies, if not in the lake


class Erasure(msgspec.Struct, frozen=True):
    """A tombstone: rows of the tenant up to the moment never come back, whoever runs over the journal again."""

    tenant: str
    until_ms: int
    reason: str
    removals: list[Removal] = []
    months: dict[str, dict[str, str]] = {}  # what it used, without its name: others' shares of a cost stay as billed
    certificate: str = ""  # its file; empty: the erasure is not finished


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file in cold storage."""

    name: str
    size: int
    sha256: str
    rows: int


class ArchivedDay(msgspec.Struct, frozen=True):
    """A day of a table that lies in cold storage; without files: its time there was over, and it was deleted."""

    table: str
    date: str
    url: str
    files: list[ArchivedFile]
    partitions: int
    deleted: bool = False
    restored: bool = False  # it is in the lake too


class LakeState(msgspec.Struct, frozen=True):
    """Everything that is remembered."""

    prices: dict[str, str] = {}  # period -> digest of what the price book says about it
    objective: str = ""  # digest of the service level objective
    erased: list[Erasure] = []
    archived: list[ArchivedDay] = []
