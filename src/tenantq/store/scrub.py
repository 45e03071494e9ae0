"""Taking rows out of a checkpoint for good: not only their keys, their bytes too."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rocksdict import BottommostLevelCompaction, CompactOptions

from tenantq.store.database import last_item, name_failure, open_rocks
from tenantq.store.keys import after, from_be64

_MEMORY_BYTES = 8 << 20
_HASH_BYTES = 32


class JournalEnds(msgspec.Struct, frozen=True):
    """Which part of the journal a checkpoint holds."""

    first_seq: int  # 0: none
    last_seq: int
    last_link: bytes


def scrub(directory: Path, prefix: bytes) -> JournalEnds:
    """Take all rows of meta under ``prefix`` out of a checkpoint; return which journal records it holds.

    Opening it turns its log into tables, and the compaction writes those anew without the rows.
    """
    db = open_rocks(directory, _MEMORY_BYTES, read_only=False)
    meta, journal = db.get_column_family("meta"), db.get_column_family("jn")
    try:
        meta.delete_range(prefix, after(prefix))
        meta.flush()
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        meta.compact_range(prefix, after(prefix), options)
        newest = last_item(journal, b"", b"\xff" * 9)
        place = journal.iter()
        place.seek_to_first()
        first_seq = from_be64(place.key()) if place.valid() else 0
        place.status()
        del place
    except Exception as error:
        raise name_failure(error, directory) from error
    finally:
        meta.close()
        journal.close()
        db.close()
    if newest is None:
        return JournalEnds(0, 0, bytes(_HASH_BYTES))
    return JournalEnds(first_seq, from_be64(newest[0]), newest[1][:_HASH_BYTES])
