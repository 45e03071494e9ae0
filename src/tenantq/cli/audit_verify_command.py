"""``tenantq audit verify``: whether the journal and its archive are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tenantq.cli import exit_codes
from tenantq.cli.output import print_json_line
from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.signing import PublicKey, PublicKeys
from tenantq.journal.target import open_target

if TYPE_CHECKING:
    from tenantq.doctor.audit_exam import LiveExam
    from tenantq.journal.verify import AuditReport


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The data directory of a server that does not run: its journal, its segments, and both together.",
)
@click.option("--segments", metavar="URL", help="Only these segments: a directory or URL, such as a copied archive.")
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The server's public key (audit_key.pub).  [default: the data directory's]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(data_dir: Path | None, segments: str | None, public_key: Path | None, *, as_json: bool) -> int:
    """Verify the hash chain, the signatures and every row, offline; name the first record that cannot be trusted.

    An edit, a deletion, an insertion, a reordering and a truncation are each found where they begin. With --data-dir the live
    journal and its checkpoints are verified as well, and compared with the segments.

    \b
    Exit codes:
      0  everything is as it was written
      1  there are findings
      2  wrong usage
      6  the store cannot be examined: in use, or no store there
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    if data_dir is None and segments is None:
        raise click.UsageError("give --data-dir, --segments, or both")
    keys = _keys(data_dir, public_key)
    shown: dict[str, Any] = {}
    findings: list[dict[str, Any]] = []
    exam = None
    try:
        exam = _open_exam(data_dir, keys, findings) if data_dir is not None else None
        archive = _verify_archive(data_dir, segments, keys, exam)
        if keys is None:
            click.echo("no public key: the chain is verified, the signatures are not", err=True)
        if exam is not None:
            _verify_live(exam, archive, shown, findings)
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
    shown |= {"clean": not findings, "findings": findings}
    if as_json:
        print_json_line(shown)
    else:
        _print(shown)
    return exit_codes.ERROR if findings else exit_codes.OK


def _keys(data_dir: Path | None, public_key: Path | None) -> PublicKeys | None:
    """Return the key that was named, else all that the data directory has; None: there is none."""
    if public_key is not None:
        return PublicKeys([PublicKey.load(public_key)])
    found = PublicKeys.of(data_dir) if data_dir is not None else None
    return found if found is not None and found.keys else None


def _open_exam(data_dir: Path, keys: PublicKeys | None, findings: list[dict[str, Any]]) -> LiveExam | None:
    from tenantq.doctor.audit_exam import LiveExam  # noqa: PLC0415  # loads the engine

    try:
        return LiveExam(data_dir, keys)
    except StoreDamaged as error:
        findings.append({"where": "store", "seq": None, "file": "", "text": error.message})
        return None


def _verify_live(
    exam: LiveExam, archive: AuditReport | None, shown: dict[str, Any], findings: list[dict[str, Any]]
) -> None:
    links = archive.links if archive is not None else None
    report = exam.run(links, max(archive.last_seq.values(), default=0) if archive is not None else None)
    if archive is None and exam.first_seq > 1:
        click.echo(f"records before {exam.first_seq} are in segments, which were not given: not verified", err=True)
    shown |= {"live_records": report.records, "live_first_seq": report.first_seq, "checkpoints": report.checkpoints}
    findings += [{"where": "store", "seq": one.seq, "file": "", "text": one.text} for one in report.findings]


def _verify_archive(
    data_dir: Path | None, segments: str | None, keys: PublicKeys | None, exam: LiveExam | None
) -> AuditReport | None:
    if segments is None:
        assert data_dir is not None
        if not (data_dir / "journal").is_dir():
            return None  # nothing was exported yet
        segments = str(data_dir / "journal")
    if not segments.count("://") and not Path(segments).is_dir():
        raise Invalid(f"segments: there is no directory {segments}")
    try:
        from tenantq.journal.verify import verify_segments  # noqa: PLC0415  # needs pyarrow, which is an extra
    except ImportError as error:
        raise Invalid("segments cannot be read: install tenantq[parquet]") from error
    return verify_segments(open_target(segments), keys, links_from=exam.first_seq - 1 if exam is not None else None)


def _print(shown: dict[str, Any]) -> None:
    if "live_records" in shown:
        click.echo(f"store: {shown['live_records']:,} journal records, {shown['checkpoints']:,} checkpoints")
    if "segments" in shown:
        click.echo(f"archive: {shown['segments']:,} segments, {shown['records']:,} records, {shown['rows']:,} rows")
    for finding in shown["findings"]:
        at = f" record {finding['seq']}" if finding["seq"] is not None else ""
        file = f" ({finding['file']})" if finding["file"] else ""
        click.echo(f"{finding['where']}{at}: {finding['text']}{file}")
    click.echo("everything is as it was written" if shown["clean"] else f"{len(shown['findings'])} findings")
