"""Where a shard's journal begins and ends."""

from tenantq.journal.record import ANCHOR_KEY, GENESIS, decode_record
from tenantq.store.interface import Store
from tenantq.store.keys import from_be64


class JournalState:
    """The first and last record of the journal. It is read from the store at the start and advanced by every round."""

    def __init__(self, store: Store) -> None:
        anchor = store.get(store.meta, ANCHOR_KEY)
        newest = store.last_item(store.jn, b"", b"\xff" * 9)
        self.first = from_be64(anchor) + 1 if anchor else 1  # the first record that is kept
        self.seq, self.link = 0, GENESIS  # the last record that was written, and its hash
        self.engine_ms, self.last_id = 0, b""  # the time and the newest message id of the last record at the start
        if newest is not None:
            self.link, record = decode_record(newest[1])
            self.seq, self.engine_ms, self.last_id = record.seq, record.engine_ms, record.last_id
        elif anchor:  # all of it was trimmed
            self.seq, self.link = from_be64(anchor), anchor[8:40]
            self.engine_ms, self.last_id = from_be64(anchor[40:]), anchor[48:]
        self.synced_seq = self.seq  # the last durable record
        self.bytes = 0  # of the records written since the start
