"""``tenantq audit verify``: verify the journal and its archive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.offline_store import examined_shards, files_to_examine, segments_option, store_options
from tenantq.cli.options import DIRECTORY, FILE
from tenantq.cli.output import json_option, print_json_line
from tenantq.domain.formatting import plural
from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_target import open_target
from tenantq.journal.signing import PublicKey, PublicKeys
from tenantq.store.interface import StoreOpener

if TYPE_CHECKING:
    from tenantq.doctor.live_journal_check import LiveJournalCheck, LiveReport
    from tenantq.journal.verify import AuditReport

_KNOWN: Final = re.compile("([0-9]{1,19}):([0-9a-f]{64})")


@click.command(cls=Command)
@click.option("--data-dir", type=DIRECTORY, metavar="DIR", help="Data directory of a server. Verifies its journal and segments, and compares them.")  # fmt: skip
@segments_option("Segments to verify: a directory or URL, such as a copied archive.")
@click.option("--public-key", "public_keys", multiple=True, type=FILE, help="Trusted copy of the server's public key (audit_key.pub); repeat it for earlier keys.  [default: the data directory's]")  # fmt: skip
@click.option("--known", multiple=True, metavar="SEQ:HASH", help="Record and hash that must exist, from an earlier verification or an erasure certificate.")  # fmt: skip
@store_options
@json_option
def verify(
    data_dir: Path | None,
    segments: str | None,
    public_keys: tuple[Path, ...],
    known: tuple[str, ...],
    *,
    store: str | None,
    store_name: str,
    shard: int | None,
    as_json: bool,
) -> int:
    """Verify the hash chain, signatures and rows of the journal, offline. Names the first untrusted record.

    Detects edits, deletions, insertions, reordering and truncation. With --data-dir, the live journal and its checkpoints
    are verified as well, and compared with the segments. If the server is running, a temporary checkpoint is verified,
    a temporary copy of the journal in Redis, or one transaction in PostgreSQL.

    An attacker with full write access could restore an earlier state or sign everything again. To detect that, store the
    end hash of each verification elsewhere (--known), and the public key (--public-key).

    \b
    Exit codes:
      0  no tampering found
      1  tampering found
      2  wrong usage
      6  cannot be verified: no public key, the store is missing, or files cannot be read
    """
    if data_dir is None and segments is None:
        raise click.UsageError("Give --data-dir, --segments, or both.")
    with files_to_examine():
        if segments is None and data_dir is not None and (data_dir / "journal").is_dir():  # something was exported
            segments = str(data_dir / "journal")
        keys = _keys(data_dir, public_keys)
        check = _JournalCheck(segments, keys, dict(_known(text) for text in known))
        if data_dir is None:
            shown = check.verify_one(None, None)
        else:
            shards = examined_shards(store, store_name, shard, data_dir, None)
            several = len(shards) > 1 or bool(shard)
            shown = check.verify_shards(shards) if several else check.verify_one(*shards[0][1:])
    check.compare_known()
    findings = check.findings
    shown["keys"] = [key.id for key in keys.keys] if keys is not None else []
    shown["keys_given"] = bool(public_keys)
    shown |= {"clean": not findings and keys is not None, "findings": findings}
    if as_json:
        print_json_line(shown)
    else:
        _print(shown)
    if findings:
        return exit_codes.ERROR
    if keys is not None:
        return exit_codes.OK
    click.echo(
        "cannot be verified: no public key was found, so the signatures were not checked and the journal may be forged."
        " Give the server's public key with --public-key",
        err=True,
    )
    return exit_codes.UNAVAILABLE


class _JournalCheck:
    """Verifies journals, live and archived, and collects findings and the hashes of the known records."""

    def __init__(self, segments: str | None, keys: PublicKeys | None, known: dict[int, str]) -> None:
        self.findings: list[dict[str, Any]] = []
        self._segments = segments
        self._keys = keys
        self._known = known
        self._hashes: dict[int, set[str]] = {}  # of known records, by number

    def verify_shards(self, shards: Sequence[tuple[str, Path, StoreOpener | None]]) -> dict[str, Any]:
        """Verify the journal of every shard against its part of the shared archive. Returns the figures."""
        shown: dict[str, Any] = {"shards": []}
        for number, path, open_store in shards:
            before = len(self.findings)
            part = self.verify_one(path, open_store, shard=number)
            shown["shards"].append({"shard": number, **part})
            for name in ("live_records", "checkpoints", "segments", "records", "rows"):
                if name in part:
                    shown[name] = shown.get(name, 0) + part[name]
            for name in ("last_seq", "removed"):
                shown[name] = shown.get(name, {}) | part.get(name, {})
            for one in self.findings[before:]:
                one["where"] = f"shard {number}"
        return shown

    def verify_one(
        self, data_dir: Path | None, open_store: StoreOpener | None, shard: str | None = None
    ) -> dict[str, Any]:
        """Verify one journal. Returns its figures."""
        shown: dict[str, Any] = {}
        exam = self._open_exam(data_dir, open_store) if data_dir is not None else None
        with closing(exam) if exam is not None else nullcontext():
            archive = self._verify_archive(exam, shard)
            live = self._verify_live(exam, archive, shown) if exam is not None else None
        if archive is not None:
            shown |= {name: getattr(archive, name) for name in ("segments", "records", "rows", "last_seq", "removed")}
            for one in archive.findings:
                self._find(f"shard {one.shard}", one.seq, one.text, one.file)
        if live is not None:
            shown["end"] = f"{live.last_seq}:{live.last_link}"
        elif archive is not None and len(archive.last_seq) == 1:
            ((name, last),) = archive.last_seq.items()
            shown["end"] = f"{last}:{archive.last_link[name]}"
        for report in (archive, live):
            for seq, links in report.known.items() if report is not None else ():
                self._hashes.setdefault(seq, set()).update(links)
        return shown

    def compare_known(self) -> None:
        """Compare the known records with those that were found."""
        for seq, link in self._known.items():
            found = self._hashes.get(seq, set())
            if link not in found:
                text = "differs from the known hash." if found else "has a known hash but is missing."
                self._find("known", seq, f"Record {seq} {text}")

    def _find(self, where: str, seq: int | None, text: str, file: str = "") -> None:
        self.findings.append({"where": where, "seq": seq, "file": file, "text": text})

    def _open_exam(self, data_dir: Path, open_store: StoreOpener | None) -> LiveJournalCheck | None:
        from tenantq.doctor.live_journal_check import LiveJournalCheck  # noqa: PLC0415  # loads the engine

        try:
            return LiveJournalCheck(data_dir, self._keys, open_store)
        except StoreDamaged as error:
            self._find("store", None, error.message)
            return None

    def _verify_live(self, exam: LiveJournalCheck, archive: AuditReport | None, shown: dict[str, Any]) -> LiveReport:
        links = archive.links if archive is not None else None
        last = max(archive.last_seq.values(), default=0) if archive is not None else None
        report = exam.run(links, last, self._known)
        if archive is None and exam.first_seq > 1:
            trimmed = f"Records 1 to {exam.first_seq - 1} were trimmed and no segments were found."
            self._find("store", 1, f"{trimmed} Give their location with --segments.")
        shown |= {"live_records": report.records, "live_first_seq": report.first_seq, "checkpoints": report.checkpoints}
        for one in report.findings:
            self._find("store", one.seq, one.text)
        return report

    def _verify_archive(self, exam: LiveJournalCheck | None, shard: str | None) -> AuditReport | None:
        if self._segments is None:
            return None
        try:
            from tenantq.journal.verify import AuditFinding, verify_segments  # noqa: PLC0415  # needs pyarrow, an extra
        except ImportError as error:
            raise Invalid("segments: pyarrow is missing; run pip install '.[parquet]' in the checkout") from error
        first = exam.first_seq - 1 if exam is not None else None
        report = verify_segments(
            open_target(self._segments),
            self._keys,
            links_from=first,
            known=self._known,
            shard=shard,
            running=exam is not None and exam.is_running,
        )
        if exam is None and not report.segments and not report.findings:  # an empty archive must not look clean
            report.findings.append(AuditFinding("", 1, self._segments, "No segments found."))
        return report


def _known(text: str) -> tuple[int, str]:
    """Return the number and hash of a record. Raises Invalid."""
    found = _KNOWN.fullmatch(text)
    if found is None:
        raise Invalid("known: must be SEQ:HASH, a record number and 64 hexadecimal digits")
    return int(found[1]), found[2]


def _keys(data_dir: Path | None, public_keys: tuple[Path, ...]) -> PublicKeys | None:
    """Return the given keys, by default all of the data directory, or None if there are none."""
    if public_keys:
        return PublicKeys([PublicKey.load(file) for file in public_keys])
    found = PublicKeys.of(data_dir) if data_dir is not None else None
    return found if found is not None and found.keys else None


def _print(shown: dict[str, Any]) -> None:
    if "live_records" in shown:
        click.echo(f"store: {shown['live_records']:,} journal records, {shown['checkpoints']:,} checkpoints")
    if "segments" in shown:
        click.echo(f"archive: {shown['segments']:,} segments, {shown['records']:,} records, {shown['rows']:,} rows")
    for shard, last in shown.get("removed", {}).items():
        click.echo(f"retention: shard {shard} removed records 1 to {last:,}, as the server has signed")
    for finding in shown["findings"]:
        at = f" record {finding['seq']}" if finding["seq"] is not None else ""
        file = f" ({finding['file']})" if finding["file"] else ""
        click.echo(f"{finding['where']}{at}: {finding['text']}{file}")
    if shown["keys"]:
        whose = (
            "" if shown["keys_given"] else ", stored with the data it signed; keep a copy elsewhere for --public-key"
        )
        click.echo(f"signed by key {' or '.join(shown['keys'])}{whose}")
    if "end" in shown and shown["clean"]:
        click.echo(f"end: {shown['end']}")
    for one in shown.get("shards", ()) if shown["clean"] else ():
        click.echo(f"end of shard {one['shard']}: {one['end']}")
    if shown["findings"]:
        click.echo(plural(len(shown["findings"]), "finding"))
    elif shown["clean"]:
        click.echo("no tampering found")
