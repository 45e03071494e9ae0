"""What a shard finds in its store when it is opened: where its journal ends, and the parts that are rebuilt from rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq.engine.access_store import AccessStore
from tenantq.engine.catalog import Catalog
from tenantq.engine.data_key_rows import DataKeyRows
from tenantq.engine.shard_clock import ShardClock
from tenantq.engine.state import ShardState
from tenantq.journal.record import ANCHOR_KEY, GENESIS, decode_record
from tenantq.runtime.randomness import MessageIds
from tenantq.store.keys import from_be64

if TYPE_CHECKING:
    from tenantq.domain.config import ShardSettings
    from tenantq.runtime.clock import Clock
    from tenantq.runtime.randomness import Randomness
    from tenantq.store.interface import Store


class JournalEnd(msgspec.Struct, frozen=True):
    """The journal's first record that is kept, and what its last one says, which the next goes on from."""

    first: int
    seq: int
    link: bytes
    engine_ms: int
    last_id: bytes


def journal_end(store: Store) -> JournalEnd:
    """Return where the journal ends; where all of it was trimmed, what trimming left of it."""
    anchor = store.get(store.meta, ANCHOR_KEY)
    first = from_be64(anchor) + 1 if anchor else 1
    newest = store.last_item(store.jn, b"", b"\xff" * 9)
    if newest is not None:
        link, record = decode_record(newest[1])
        return JournalEnd(first, record.seq, link, record.engine_ms, record.last_id)
    if anchor:
        return JournalEnd(first, from_be64(anchor), anchor[8:40], from_be64(anchor[40:]), anchor[48:])
    return JournalEnd(first, 0, GENESIS, 0, b"")


def rebuild(
    store: Store,
    end: JournalEnd,
    *,
    shard: str,
    first_tenant_id: int,
    clock: Clock,
    randomness: Randomness,
    settings: ShardSettings,
) -> ShardState:
    """Return the parts of a shard, in time that depends on its queues, not on its messages."""
    assert store.heart is not None
    shard_clock = ShardClock(clock, store.heart.last, end.engine_ms)
    catalog = Catalog(store, first_tenant_id)
    catalog.load()
    access = AccessStore(store)
    access.load(catalog)
    data_keys = DataKeyRows(store)
    data_keys.load()
    return ShardState(
        shard=shard,
        store=store,
        catalog=catalog,
        access=access,
        data_keys=data_keys,
        clock=clock,
        shard_clock=shard_clock,
        randomness=randomness,
        ids=MessageIds(randomness, end.last_id),
        settings=settings,
    )
