"""Verifies segments: each against its manifest, each record against the chain, each row against its record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import Manifest, manifest_names, read_head, read_manifest
from tenantq.journal.record import GENESIS, decode_record, rows
from tenantq.journal.segment import decode
from tenantq.journal.signing import PublicKey, PublicKeys

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

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def verify_segments(
    target: ExportTarget,
    key: PublicKey | PublicKeys | None,
    progress: Callable[[int, int], None] | None = None,
    *,
    links_from: int | None = None,
    known: Collection[int] = (),
    shard: str | None = None,
) -> AuditReport:
    """Verify all segments at a target, or those of one ``shard``. Without ``key``, signatures are not checked.

    With ``links_from`` the report has up to LINKS_MAX hashes from that record on, to compare with a live journal. It also has the
    hashes of the records in ``known``.
    """
    report = AuditReport(last_seq={}, last_link={}, findings=[], links={}, known={seq: set() for seq in known})
    names = manifest_names(target, shard)

    by_shard: dict[str, list[str]] = {}
    for name in names:
        by_shard.setdefault(name.split("/")[1].removeprefix("shard="), []).append(name)
    done = 0
    for one, mine in by_shard.items():
        verification = _ShardVerification(target, key, report, one, links_from)
        for name in mine:
            verification.segment(name)
            done += 1
            if progress is not None:
                progress(done, len(names))
        verification.end()
    _find_unlisted(target, names, report, shard)
    return report


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

    def segment(self, name: str) -> None:
        """Verify one segment. The next one continues after it, even if this one has findings."""
        try:
            manifest = read_manifest(self._target, name)
        except Invalid as error:
            self._found(self._seq + 1, name, error.message)
            return
        if manifest.name != name or manifest.shard != self._shard:
            self._found(manifest.first_seq, name, "The manifest has the wrong file name.")
        if self._key is not None and not manifest.is_signed_by(self._key):
            self._found(manifest.first_seq, name, "The manifest has no valid signature of the server.")
        if manifest.first_seq != self._seq + 1:
            what = "are missing" if manifest.first_seq > self._seq + 1 else "occur twice"
            low, high = sorted((self._seq + 1, manifest.first_seq))
            self._found(low, name, f"Records {low} to {high - 1} {what}.")
        elif manifest.previous_link != self._link.hex():
            self._found(manifest.first_seq, name, "The segment does not continue the previous one.")
        self._records(manifest)
        self._seq, self._link = manifest.last_seq, bytes.fromhex(manifest.last_link)
        self._report.segments += 1

    def _records(self, manifest: Manifest) -> None:
        try:
            data = self._target.read(manifest.file)
        except FileNotFoundError:
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
        """Compare the last segment with the head."""
        self._report.last_seq[self._shard] = self._seq
        self._report.last_link[self._shard] = self._link.hex()
        try:
            head = read_head(self._target, self._shard)
        except Invalid as error:
            self._found(self._seq + 1, "head.json", error.message)
            return
        if head is None:
            self._found(self._seq + 1, "head.json", "The head is missing, so the end of the archive is unknown.")
        elif self._key is not None and not head.is_signed_by(self._key):
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


def _find_unlisted(target: ExportTarget, names: list[str], report: AuditReport, shard: str | None) -> None:
    """Report segments without a manifest: inserted by someone, or left by a crash."""
    known = set()
    for name in names:
        try:
            known.add(read_manifest(target, name).file)
        except Invalid:
            continue
    for name in target.names(""):
        if shard is not None and f"/shard={shard}/" not in name:
            continue
        if name.endswith(".parquet") and name not in known and len(report.findings) < FINDINGS_MAX:
            report.findings.append(AuditFinding("", 0, name, "No manifest names this segment."))
