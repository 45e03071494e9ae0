"""Verifies segments: each against its manifest, each record against the chain, each row against its record."""

import hashlib
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import msgspec

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import ExportHead, Manifest, manifest_names, read_head, read_manifest
from tenantq.journal.record import GENESIS, decode_record, rows
from tenantq.journal.segment import decode
from tenantq.journal.segment_retention import RemovedSegments, read_removed
from tenantq.journal.signing import PublicKey, PublicKeys, SignedDocument

FINDINGS_MAX: Final = 100
LINKS_MAX: Final = 1_000_000


class AuditFinding(msgspec.Struct, frozen=True):
    """One deviation from what was written."""

    shard: str
    seq: int  # the first record that cannot be trusted
    file: str
    text: str


class AuditReport(msgspec.Struct):
    """The result of a verification. Clean: nothing was changed, removed, inserted, reordered or truncated."""

    segments: int = 0
    records: int = 0
    rows: int = 0
    last_seq: dict[str, int] = {}
    last_link: dict[str, str] = {}
    findings: list[AuditFinding] = []
    links: dict[int, bytes] = {}  # hashes of the requested records
    known: dict[int, set[str]] = {}  # hashes, hex, of the records in ``known``
    removed: dict[str, int] = {}  # last record that retention removed, by shard

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def verify_segments(
    target: ExportTarget,
    key: PublicKey | PublicKeys | None,
    *,
    links_from: int | None = None,
    known: Collection[int] = (),
    shard: str | None = None,
    running: bool = False,
) -> AuditReport:
    """Verify all segments at a target, or those of one ``shard``. Without ``key``, signatures are not checked.

    With ``links_from`` the report has up to LINKS_MAX hashes from that record on, to compare with a live journal. It also has the
    hashes of the records in ``known``. ``running``: a server may be exporting to the target.
    """
    report = AuditReport(known={seq: set() for seq in known})
    for one in sorted({_shard_of(name) for name in manifest_names(target, shard)}):
        verification = _ShardVerification(target, key, report, one, links_from)
        for name in manifest_names(target, one):  # after the head was read, because the export may continue
            verification.segment(name)
        verification.end()
    _find_unlisted(target, report, shard, running=running)
    return report


def _shard_of(name: str) -> str:
    """Return the shard in the name of a segment or manifest."""
    return name.rpartition("/")[0].rpartition("shard=")[2]


class _ShardVerification:
    """Verifies the segments of one shard in order."""

    def __init__(
        self,
        target: ExportTarget,
        key: PublicKey | PublicKeys | None,
        report: AuditReport,
        shard: str,
        links_from: int | None,
    ) -> None:
        self._links_from = links_from
        self._target = target
        self._key = key
        self._report = report
        self._shard = shard
        self._seq = 0
        self._link = GENESIS
        self._head: ExportHead | Invalid | None
        try:
            self._head = read_head(target, shard)
        except Invalid as error:
            self._head = error
        self._removed = self._read_removed()
        self._journaled: set[str] = set()  # removals that the journal has
        self._last_min_ts = 0  # of the last segment

    def _read_removed(self) -> RemovedSegments | None:
        """Return the statement of removed segments, if it is signed."""
        try:
            statement = read_removed(self._target, self._shard)
        except Invalid as error:
            self._found(1, "", error.message)
            return None
        if statement is not None and (statement.shard != self._shard or not self._is_signed(statement)):
            self._found(1, statement.name, "The statement of removed segments has no valid signature of the server.")
            return None
        return statement

    def _is_signed(self, document: SignedDocument) -> bool:
        return self._key is None or document.is_signed_by(self._key)

    def _is_removed(self, name: str) -> bool:
        """Return whether a segment was removed while this verification runs."""
        self._removed = self._read_removed()
        return self._removed is not None and int(name.rpartition("-")[2][:20]) <= self._removed.upto_seq

    def segment(self, name: str) -> None:
        """Verify one segment. The next one continues after it, even if this one has findings."""
        try:
            manifest = read_manifest(self._target, name)
        except Invalid as error:
            self._found(self._seq + 1, name, error.message)
            return
        except FileNotFoundError:
            if not self._is_removed(name):
                self._found(self._seq + 1, name, "The manifest is missing.")
            return
        if not self._seq and self._removed is not None and 1 < manifest.first_seq <= self._removed.upto_seq + 1:
            # The archive starts late. Its first segments may be about to be deleted.
            is_next = manifest.first_seq == self._removed.upto_seq + 1
            self._seq = manifest.first_seq - 1
            self._link = bytes.fromhex(self._removed.link if is_next else manifest.previous_link)
            self._report.removed[self._shard] = self._seq
        if manifest.name != name or manifest.shard != self._shard:
            self._found(manifest.first_seq, name, "The manifest has the wrong file name.")
        if not self._is_signed(manifest):
            self._found(manifest.first_seq, name, "The manifest has no valid signature of the server.")
        if manifest.first_seq != self._seq + 1:
            what = "are missing" if manifest.first_seq > self._seq + 1 else "occur twice"
            low, high = sorted((self._seq + 1, manifest.first_seq))
            self._found(low, name, f"Records {low} to {high - 1} {what}.")
        elif manifest.previous_link != self._link.hex():
            self._found(manifest.first_seq, name, "The segment does not continue the previous one.")
        removed = self._removed
        if removed is not None and manifest.last_seq == removed.upto_seq and manifest.last_link != removed.link:
            self._found(manifest.last_seq, name, "The statement of removed segments is of another journal.")
        self._records(manifest)
        self._last_min_ts = manifest.min_ts
        self._seq, self._link = manifest.last_seq, bytes.fromhex(manifest.last_link)
        self._report.segments += 1

    def _records(self, manifest: Manifest) -> None:
        try:
            data = self._target.read(manifest.file)
        except FileNotFoundError:
            if not self._is_removed(manifest.name):
                self._found(manifest.first_seq, manifest.file, "The segment is missing.")
            return
        except OSError as error:
            self._found(manifest.first_seq, manifest.file, f"The segment cannot be read: {error.strerror or error}.")
            return
        is_intact = hashlib.sha256(data).hexdigest() == manifest.sha256
        seq, link, count = manifest.first_seq - 1, bytes.fromhex(manifest.previous_link), 0
        try:
            for stored_link, payload, stored in decode(data):
                wrong = _compare(stored_link, payload, stored, seq + 1, link)
                if wrong:
                    self._found(seq + 1, manifest.file, wrong)
                    return
                seq, link, count = seq + 1, stored_link, count + len(stored)
                for row in stored:
                    if row["op"] == "remove_segments":
                        self._journaled.add(str(row["details"]).rpartition(": ")[0])
                if seq in self._report.known:
                    self._report.known[seq].add(link.hex())
                if self._links_from is not None and seq >= self._links_from and len(self._report.links) < LINKS_MAX:
                    self._report.links[seq] = stored_link
        except ValueError as error:
            self._found(seq + 1, manifest.file, f"The segment cannot be read: {error}.")
            return
        self._report.records += seq - manifest.first_seq + 1
        self._report.rows += count
        if seq != manifest.last_seq or link.hex() != manifest.last_link or count != manifest.rows:
            self._found(
                seq + 1, manifest.file, f"The segment ends at record {seq}, but its manifest says {manifest.last_seq}."
            )
        elif not is_intact:
            self._found(
                manifest.first_seq,
                manifest.file,
                "The file differs from the one that was written, although its rows are the same.",
            )

    def end(self) -> None:
        """Compare the last segment with the head, and the statement of removed segments with the journal."""
        removed = self._removed
        if (
            removed is not None
            and self._shard in self._report.removed
            and self._last_min_ts > removed.at  # else its row may not be exported yet
            and removed.journaled not in self._journaled
        ):
            self._found(
                1, removed.name, f"The journal does not say that records up to {removed.upto_seq} were removed."
            )
        self._report.last_seq[self._shard] = self._seq
        self._report.last_link[self._shard] = self._link.hex()
        head = self._head
        if isinstance(head, Invalid):
            self._found(self._seq + 1, "head.json", head.message)
        elif head is None:
            self._found(self._seq + 1, "head.json", "The head is missing, so the end of the archive is unknown.")
        elif not self._is_signed(head):
            self._found(self._seq + 1, head.name, "The head has no valid signature of the server.")
        elif head.last_seq > self._seq:
            self._found(self._seq + 1, head.name, f"Records {self._seq + 1} to {head.last_seq} are missing at the end.")

    def _found(self, seq: int, file: str, text: str) -> None:
        if len(self._report.findings) < FINDINGS_MAX:
            self._report.findings.append(AuditFinding(self._shard, seq, file, text))


def _compare(stored_link: bytes, payload: bytes, stored: list[dict[str, object]], seq: int, link: bytes) -> str:
    """Return what is wrong with one record, or an empty text."""
    try:
        _, record = decode_record(stored_link + payload, link)
    except StoreDamaged:
        return f"Record {seq} was changed, or the record before it was removed."
    if record.seq != seq:
        return f"Record {record.seq} is in the place of record {seq}."
    expected = [msgspec.structs.asdict(row) for row in rows(record)]
    if expected != stored:
        return f"The rows of record {seq} differ from the journaled record."
    return ""


def _find_unlisted(target: ExportTarget, report: AuditReport, shard: str | None, *, running: bool) -> None:
    """Report segments without a manifest: inserted by someone, or left by a crash. A running server may be changing both ends."""
    files = [name for name in target.names("") if name.endswith(".parquet") and shard in {None, _shard_of(name)}]
    known = set()
    for name in manifest_names(target, shard):
        with suppress(Invalid):
            known.add(read_manifest(target, name).file)
    for name in files:
        first, last = report.removed.get(_shard_of(name), 0), report.last_seq.get(_shard_of(name), 0)
        is_changing = running and not first < int(name.rpartition("/")[2][:20]) <= last
        if name not in known and not is_changing and len(report.findings) < FINDINGS_MAX:
            report.findings.append(AuditFinding("", 0, name, "No manifest names this segment."))
