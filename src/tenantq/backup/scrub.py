"""Removes rows from a checkpoint for good: their keys and their bytes."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from rocksdict import BottommostLevelCompaction, CompactOptions

from tenantq.journal.record import ANCHOR_KEY, GENESIS, HASH_BYTES, parse_anchor
from tenantq.store.database import last_item, name_failure, open_rocks
from tenantq.store.keys import after, be64, from_be64

_MEMORY_BYTES = 8 << 20


class JournalEnds(msgspec.Struct, frozen=True):
    """The part of the journal in a checkpoint."""

    first_seq: int  # 0: none
    last_seq: int
    last_link: bytes
    links: dict[int, bytes] = {}  # hashes of the requested records that it holds, or whose successor is the first


def scrub(directory: Path, prefix: bytes, seqs: Iterable[int] = ()) -> JournalEnds:
    """Remove all rows of meta under ``prefix`` from a checkpoint. Returns its part of the journal, with the hashes of ``seqs``.

    Opening the checkpoint turns its log into tables, and the compaction rewrites them without the rows.
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
        trimmed_seq, trimmed_link = parse_anchor(meta.get(ANCHOR_KEY))
        links = {trimmed_seq: trimmed_link}
        for seq in seqs:
            if (record := journal.get(be64(seq))) is not None:
                links[seq] = record[:HASH_BYTES]
    except Exception as error:
        raise name_failure(error, directory) from error
    finally:
        meta.close()
        journal.close()
        db.close()
    if newest is None:
        return JournalEnds(0, 0, GENESIS)
    return JournalEnds(first_seq, from_be64(newest[0]), newest[1][:HASH_BYTES], links)
