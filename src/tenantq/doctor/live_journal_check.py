"""Verifies the live journal of a data directory: its chain, its checkpoints and its archive."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tenantq.doctor.store_check import open_embedded
from tenantq.errors import StoreFailed
from tenantq.journal.chain import ChainWalk
from tenantq.journal.checkpoint import CHECKPOINT_ROW
from tenantq.journal.record import ANCHOR_KEY, parse_anchor
from tenantq.journal.signing import PublicKey, PublicKeys
from tenantq.store.interface import StoreReader
from tenantq.store.keys import from_be64
from tenantq.store.row_pages import VALUES_PER_PAGE, rows_under

FINDINGS_MAX: Final = 100


class LiveFinding(msgspec.Struct, frozen=True):
    """One deviation from what was written."""

    seq: int  # the first record that cannot be trusted
    text: str


class LiveReport(msgspec.Struct):
    """The result of a verification of the live journal."""

    first_seq: int = 1
    last_seq: int = 0
    records: int = 0
    last_link: str = ""  # hex
    checkpoints: int = 0
    findings: list[LiveFinding] = []
    known: dict[int, set[str]] = {}  # hashes, hex, of the records in ``known``


class LiveJournalCheck:
    """One verification. ``first_seq`` is the first record of the live journal."""

    def __init__(
        self,
        data_dir: Path,
        key: PublicKey | PublicKeys | None,
        open_store: Callable[[Path], StoreReader] | None = None,
    ) -> None:
        """Open the store, with ``open_store`` if it is not the embedded one. Raises StoreFormat."""
        self._key = key
        self._store: StoreReader = (
            open_store(data_dir) if open_store is not None else open_embedded(data_dir, even_if_cut=True)
        )
        self.is_running = self._store.path != data_dir  # a checkpoint of a store that a server is writing to
        self._anchor = parse_anchor(self._store.get(self._store.meta, ANCHOR_KEY))
        self.first_seq = self._anchor[0] + 1

    def close(self) -> None:
        self._store.close()

    def run(
        self, archive: Mapping[int, bytes] | None = None, archived_seq: int | None = None, known: Collection[int] = ()
    ) -> LiveReport:
        """Verify the journal. ``archive`` has the hashes of exported records from ``first_seq`` - 1 on.

        ``archived_seq`` is the last record of the archive; None: there is no archive to compare with.
        """
        report = LiveReport(first_seq=self.first_seq, known={seq: set() for seq in known})

        def found(seq: int, text: str) -> None:
            if len(report.findings) < FINDINGS_MAX:
                report.findings.append(LiveFinding(seq, text))

        seq, link = self._anchor
        walk = ChainWalk(seq, link, found, key=self._key, archive=archive)
        try:
            self._compare_anchor(archive or {}, archived_seq, found)
            self._take_rows(walk, report)
            beat = self._store.last_beat()
            ends = [(beat.seq, "the sync marker")] if beat is not None else []
            if archived_seq is not None and self.is_running:
                archived_seq = min(archived_seq, walk.seq)  # the server has exported more since the checkpoint
            walk.end(*ends, *([(archived_seq, "the archive")] if archived_seq is not None else []))
        except StoreFailed as error:
            found(walk.seq + 1, f"The journal cannot be read further: {error.message}.")
        report.last_seq, report.last_link, report.records = walk.seq, walk.link.hex(), walk.records
        report.findings.sort(key=lambda finding: finding.seq)
        return report

    def _compare_anchor(
        self, archive: Mapping[int, bytes], archived_seq: int | None, found: Callable[[int, str], None]
    ) -> None:
        """Compare the anchor with the archive, which must cover everything trimmed."""
        seq, link = self._anchor
        if archived_seq is None or seq == 0:
            return
        if archived_seq < seq:
            found(archived_seq + 1, f"Records {archived_seq + 1} to {seq} were trimmed, but no segment contains them.")
        elif archive.get(seq, link) != link:
            found(seq, f"The live journal does not continue from record {seq} of the archive.")

    def _take_rows(self, walk: ChainWalk, report: LiveReport) -> None:
        store = self._store
        for key, value in rows_under(store, store.meta, CHECKPOINT_ROW):
            walk.expect_checkpoint(from_be64(key[len(CHECKPOINT_ROW) :]), value)
            report.checkpoints += 1
        for key, value in rows_under(store, store.jn, b"", VALUES_PER_PAGE):
            walk.record(key, value)
            if walk.seq in report.known:
                report.known[walk.seq].add(walk.link.hex())
