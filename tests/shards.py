"""Helpers for tests of a shard."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.doctor.store_check import examine
from tenantq.domain.message import NewMessage
from tenantq.engine.committer import PROBATION
from tenantq.journal.audit_query import END_OF_RECORD, AuditReader
from tenantq.journal.record import JournalRow
from tenantq.journal.row_filter import JournalFilter
from tenantq.kms.interface import KeyRef
from tenantq.store.rocks import RocksStore
from tenantq.vault.wrapped_key import WrappedKey
from tests.postgres_servers import OnPostgres
from tests.redis_servers import OnRedis

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tenantq.doctor.report import DoctorReport
    from tenantq.engine.shard import Shard
    from tenantq.runtime.clock import ManualClock
    from tenantq.store.interface import Beat

T, Q = "default", "work"


def data_key_row(number: int) -> bytes:
    """Return a data key as the vault stores it. It never encrypted anything."""
    return msgspec.msgpack.encode(WrappedKey(number, KeyRef("local", "k"), b"wrapped", 0))


def message(body: bytes | str = b"body", **fields: object) -> NewMessage:
    """Return a new message."""
    return NewMessage(body=body.encode() if isinstance(body, str) else body, **fields)  # type: ignore[arg-type]


async def wait_until_idle(shard: Shard) -> None:
    """Wait until the shard has nothing left to do at this clock time."""
    while True:
        await asyncio.sleep(0)
        await shard.loop._idle.wait()
        await asyncio.sleep(0)  # the last caller has seen its reply
        if not shard.loop._step_scheduled and not shard.state.lines:
            return


async def journal_rows(shard: Shard, after: int = 0, op: str | None = None, **wanted: Any) -> list[JournalRow]:
    """Return all matching rows after a record; for a tenant, only those since its creation."""
    await wait_until_idle(shard)
    owner = shard.state.catalog.tenants.get(wanted.get("tenant", ""))
    first = owner.since if owner is not None else 1
    reader, found = AuditReader(shard.journal, None), list[JournalRow]()
    place: tuple[int, int] | None = (after, END_OF_RECORD)
    matching = JournalFilter(ops=frozenset((op,)) if op is not None else None, **wanted)
    while place is not None:
        page = reader.page(matching, limit=1_000, place=place, first_seq=first)
        found += page.rows
        place = page.more
    return found


def count_slices(monkeypatch: pytest.MonkeyPatch, module: str) -> list[None]:
    """Return a list that grows whenever a module yields to other tasks between two slices of work."""
    slices: list[None] = []

    async def next_slice() -> None:
        slices.append(None)
        await asyncio.sleep(0)

    monkeypatch.setattr(f"{module}.next_slice", next_slice)
    return slices


async def pass_time(shard: Shard, clock: ManualClock, ms: int) -> None:
    """Advance the clock, and wait until everything due by then has happened."""
    await wait_until_idle(shard)
    clock.advance(ms)
    await wait_until_idle(shard)


def sizes(directory: Path) -> dict[Path, int]:
    """Return the size of every file, skipping files that disappear meanwhile."""
    found: dict[Path, int] = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_size
    return found


def freeze(live: Path, copy: Path) -> None:
    """Copy the files of an open store as a crash at one moment would leave them."""
    while True:
        before = sizes(live)
        try:
            shutil.copytree(live, copy)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(copy, ignore_errors=True)  # a compaction deleted a file in the meantime
            continue
        if before == sizes(live):
            return
        shutil.rmtree(copy)


def examined(shard: Shard) -> DoctorReport:
    """Return the doctor's report on the store of a closed shard."""
    opener = shard._open_store
    return (
        examine(shard.path, open_store=opener.to_read)
        if isinstance(opener, (OnRedis, OnPostgres))
        else examine(shard.path)
    )


def stored_beat(shard: Shard) -> Beat | None:
    """Return the last beat of a closed shard."""
    opener = shard._open_store
    store = (
        opener.to_read(shard.path)
        if isinstance(opener, (OnRedis, OnPostgres))
        else RocksStore(shard.path, read_only=True)
    )
    try:
        return store.last_beat()
    finally:
        store.close()


def sync_on_thread(shard: Shard) -> None:
    """Sync on the thread, as with a slow disk, so that tests can block syncs without blocking the event loop."""
    assert shard.loop._committer is not None
    shard.loop._committer._probation = PROBATION
