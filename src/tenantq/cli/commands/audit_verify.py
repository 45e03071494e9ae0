"""``tenantq audit verify``: verify the journal and its archive."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.offline_store import files_to_examine, redis_shards, store_options
from tenantq.cli.options import DIRECTORY, FILE
from tenantq.cli.output import json_option, print_json_line
from tenantq.cluster.layout import numbered_dirs
from tenantq.domain.formatting import plural
from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_target import open_target
from tenantq.journal.signing import PublicKey, PublicKeys
from tenantq.store.interface import Store

if TYPE_CHECKING:
    from tenantq.doctor.live_journal_check import LiveJournalCheck, LiveReport
    from tenantq.journal.verify import AuditReport

_KNOWN: Final = re.compile("([0-9]{1,19}):([0-9a-f]{64})")


@click.command(cls=Command)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    metavar="DIR",
    help="Data directory of a stopped server. Verifies its journal and segments, and compares them.",
)
@click.option("--segments", metavar="URL", help="Segments to verify: a directory or URL, such as a copied archive.")
@click.option(
    "--public-key",
    "public_keys",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Trusted copy of the server's public key (audit_key.pub); repeat it for earlier keys.  [default: the data directory's]",
)
@click.option(
    "--known",
    multiple=True,
    metavar="SEQ:HASH",
    help="Record and hash that must exist, from an earlier verification or an erasure certificate.",
)
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
    are verified as well, and compared with the segments.

    An attacker with full write access could restore an earlier state or sign everything again. To detect that, store the
    end hash of each verification elsewhere (--known), and the public key (--public-key).

    \b
    Exit codes:
      0  no tampering found
      1  tampering found
      2  wrong usage
      6  cannot be verified: no public key, the store is in use or missing, or files cannot be read
    """
    if data_dir is None and segments is None:
        raise click.UsageError("Give --data-dir, --segments, or both.")
    wanted = dict(_known(text) for text in known)
    with files_to_examine():
        keys = _keys(data_dir, public_keys)
        shards: Sequence[tuple[str, Path, Callable[[Path], Store] | None]] = ()
        if data_dir is not None and store is not None:
            shards = redis_shards(store, store_name, shard, data_dir)
        elif data_dir is not None:
            shards = [(str(number), path, None) for number, path in numbered_dirs(data_dir)]
        if data_dir is not None and (len(shards) > 1 or shard):
            shown, findings, found = _verify_shards(data_dir, shards, segments, keys, wanted)
        else:
            open_store = shards[0][2] if shards else None
            shown, findings, found = _verify_one(data_dir, segments, keys, wanted, open_store)
    findings += _compare_known(wanted, found)
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
        "cannot be verified: no public key was found, so the signatures were not checked and the whole journal may be forged."
        " Name the server's public key with --public-key",
        err=True,
    )
    return exit_codes.UNAVAILABLE


Found = dict[int, set[str]]  # hashes of records by number
Verified = tuple[dict[str, Any], list[dict[str, Any]], Found]


def _verify_one(
    data_dir: Path | None,
    segments: str | None,
    keys: PublicKeys | None,
    wanted: dict[int, str],
    open_store: Callable[[Path], Store] | None = None,
    shard: str | None = None,
) -> Verified:
    """Verify one journal, live and archived. Returns its figures, findings, and the hashes of the wanted records."""
    shown: dict[str, Any] = {}
    findings: list[dict[str, Any]] = []
    exam = None
    try:
        exam = _open_exam(data_dir, keys, findings, open_store) if data_dir is not None else None
        archive = _verify_archive(data_dir, segments, keys, exam, wanted, shard)
        live = _verify_live(exam, archive, wanted, shown, findings) if exam is not None else None
    finally:
        if exam is not None:
            exam.close()
    if archive is not None:
        shown |= {
            "segments": archive.segments, "records": archive.records, "rows": archive.rows,
            "last_seq": archive.last_seq,
        }  # fmt: skip
        findings += [
            {"where": f"shard {one.shard}", "seq": one.seq, "file": one.file, "text": one.text}
            for one in archive.findings
        ]
    if live is not None:
        shown["end"] = f"{live.last_seq}:{live.last_link}"
    elif archive is not None and len(archive.last_seq) == 1:
        ((name, last),) = archive.last_seq.items()
        shown["end"] = f"{last}:{archive.last_link[name]}"
    found: Found = {}
    for known in (one.known for one in (archive, live) if one is not None):
        for seq, links in known.items():
            found.setdefault(seq, set()).update(links)
    return shown, findings, found


def _verify_shards(
    data_dir: Path,
    shards: Sequence[tuple[str, Path, Callable[[Path], Store] | None]],
    segments: str | None,
    keys: PublicKeys | None,
    wanted: dict[int, str],
) -> Verified:
    """Verify the journal of every shard against its part of the shared archive."""
    shown: dict[str, Any] = {"shards": []}
    findings: list[dict[str, Any]] = []
    found: Found = {}
    if segments is None and (data_dir / "journal").is_dir():
        segments = str(data_dir / "journal")
    for number, path, open_store in shards:
        part, wrong, known = _verify_one(path, segments, keys, wanted, open_store, shard=number)
        shown["shards"].append({"shard": number, **part})
        for name in ("live_records", "checkpoints", "segments", "records", "rows"):
            if name in part:
                shown[name] = shown.get(name, 0) + part[name]
        shown["last_seq"] = shown.get("last_seq", {}) | part.get("last_seq", {})
        findings += [one | {"where": f"shard {number}"} for one in wrong]
        for seq, links in known.items():
            found.setdefault(seq, set()).update(links)
    return shown, findings, found


def _known(text: str) -> tuple[int, str]:
    """Return the number and hash of a record. Raises Invalid."""
    found = _KNOWN.fullmatch(text)
    if found is None:
        raise Invalid("known: must be SEQ:HASH, a record number and 64 hexadecimal digits")
    return int(found[1]), found[2]


def _compare_known(wanted: dict[int, str], found: Found) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = []
    for seq, link in wanted.items():
        there = found.get(seq, set())
        if link not in there:
            text = f"Record {seq} differs from the known hash." if there else f"Record {seq} is known but missing."
            findings.append({"where": "known", "seq": seq, "file": "", "text": text})
    return findings


def _keys(data_dir: Path | None, public_keys: tuple[Path, ...]) -> PublicKeys | None:
    """Return the given keys, by default all of the data directory, or None if there are none."""
    if public_keys:
        return PublicKeys([PublicKey.load(file) for file in public_keys])
    found = PublicKeys.of(data_dir) if data_dir is not None else None
    return found if found is not None and found.keys else None


def _open_exam(
    data_dir: Path,
    keys: PublicKeys | None,
    findings: list[dict[str, Any]],
    open_store: Callable[[Path], Store] | None,
) -> LiveJournalCheck | None:
    from tenantq.doctor.live_journal_check import LiveJournalCheck  # noqa: PLC0415  # loads the engine

    try:
        return LiveJournalCheck(data_dir, keys, open_store)
    except StoreDamaged as error:
        findings.append({"where": "store", "seq": None, "file": "", "text": error.message})
        return None


def _verify_live(
    exam: LiveJournalCheck,
    archive: AuditReport | None,
    known: dict[int, str],
    shown: dict[str, Any],
    findings: list[dict[str, Any]],
) -> LiveReport:
    links = archive.links if archive is not None else None
    report = exam.run(links, max(archive.last_seq.values(), default=0) if archive is not None else None, known)
    if archive is None and exam.first_seq > 1:
        text = f"Records 1 to {exam.first_seq - 1} were trimmed and no segments were found. Name their location with --segments."
        findings.append({"where": "store", "seq": 1, "file": "", "text": text})
    shown |= {"live_records": report.records, "live_first_seq": report.first_seq, "checkpoints": report.checkpoints}
    findings += [{"where": "store", "seq": one.seq, "file": "", "text": one.text} for one in report.findings]
    return report


def _verify_archive(
    data_dir: Path | None,
    segments: str | None,
    keys: PublicKeys | None,
    exam: LiveJournalCheck | None,
    known: dict[int, str],
    shard: str | None,
) -> AuditReport | None:
    if segments is None:
        assert data_dir is not None
        if not (data_dir / "journal").is_dir():
            return None  # nothing was exported yet
        segments = str(data_dir / "journal")
    if not segments.count("://") and not Path(segments).is_dir():
        raise Invalid(f"segments: no such directory: {segments}")
    try:
        from tenantq.journal.verify import AuditFinding, verify_segments  # noqa: PLC0415  # needs pyarrow, which is an extra
    except ImportError as error:
        raise Invalid("segments: reading them requires tenantq[parquet]") from error
    first = exam.first_seq - 1 if exam is not None else None
    report = verify_segments(open_target(segments), keys, links_from=first, known=known, shard=shard)
    if exam is None and not report.segments and not report.findings:  # an empty archive must not look clean
        report.findings.append(AuditFinding("", 1, segments, "No segments found."))
    return report


def _print(shown: dict[str, Any]) -> None:
    if "live_records" in shown:
        click.echo(f"store: {shown['live_records']:,} journal records, {shown['checkpoints']:,} checkpoints")
    if "segments" in shown:
        click.echo(f"archive: {shown['segments']:,} segments, {shown['records']:,} records, {shown['rows']:,} rows")
    for finding in shown["findings"]:
        at = f" record {finding['seq']}" if finding["seq"] is not None else ""
        file = f" ({finding['file']})" if finding["file"] else ""
        click.echo(f"{finding['where']}{at}: {finding['text']}{file}")
    if shown["keys"]:
        whose = (
            "" if shown["keys_given"] else ", stored with the data it signed; keep a copy elsewhere for --public-key"
        )
        click.echo(f"signatures: of key {' or '.join(shown['keys'])}{whose}")
    if "end" in shown and shown["clean"]:
        click.echo(f"end: {shown['end']}")
    for one in shown.get("shards", ()) if shown["clean"] else ():
        click.echo(f"end of shard {one['shard']}: {one['end']}")
    if shown["findings"]:
        click.echo(plural(len(shown["findings"]), "finding"))
    elif shown["clean"]:
        click.echo("no tampering found")
