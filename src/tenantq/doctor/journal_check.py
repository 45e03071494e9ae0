"""Checks the journal: no gap from the anchor to the end, every record chained to the previous one."""

from tenantq.doctor.report import FindingLog
from tenantq.doctor.usage_check import UsageRecount
from tenantq.errors import StoreDamaged
from tenantq.journal.record import ANCHOR_KEY, HASH_BYTES, decode_record, parse_anchor
from tenantq.store.interface import StoreReader
from tenantq.store.keys import be64, from_be64
from tenantq.store.row_pages import pages_of_items

_END = b"\xff" * 9


def last_time_ms(store: StoreReader) -> int:
    """Return the latest shard time in the store, from the sync marker or the newest record."""
    beat = store.last_beat()
    newest = store.last_item(store.jn, b"", _END)
    journaled = decode_record(newest[1])[1].engine_ms if newest is not None else 0
    return max(journaled, beat.engine_ms if beat is not None else 0)


def examine_journal(store: StoreReader, log: FindingLog) -> None:
    """Check the chain from the anchor, or from the first record if nothing was trimmed."""
    anchor = store.get(store.meta, ANCHOR_KEY)
    seq, link = parse_anchor(anchor)
    early = store.scan(store.jn, b"", be64(seq + 1), 1)
    if early:
        log.found("journal", f"Records up to {seq} were trimmed, but record {_shown(early[0])} still exists.")
    usage = UsageRecount(complete=anchor is None)
    for page in pages_of_items(store, store.jn, be64(seq + 1), _END):
        for key, value in page:
            log.figures.journal_records += 1
            log.figures.journal_bytes += len(value)
            at = from_be64(key)
            follows = at == seq + 1
            if not follows:
                log.found("journal", f"Records {seq + 1} to {at - 1} are missing.")
            link, seq = _check(log, usage, at, value, link if follows else None), at
        log.progress("journal", len(page))
    beat = store.last_beat()
    if beat is not None and seq < beat.seq:
        log.found("journal", f"The journal ends at record {seq}, but record {beat.seq} was synced.")
    usage.compare(store, log)


def _check(log: FindingLog, usage: UsageRecount, seq: int, value: bytes, previous: bytes | None) -> bytes:
    """Check one record and return its hash, from which the check continues in any case."""
    try:
        _, record = decode_record(value, previous)
        usage.count(record)
        if record.seq != seq:
            log.found("journal", f"Record {seq} contains the number {record.seq}.")
    except StoreDamaged as error:
        log.found("journal", f"Record {seq}: {error.message}.")
    return value[:HASH_BYTES]


def _shown(key: bytes) -> str:
    return str(from_be64(key)) if len(key) == 8 else key.hex()
