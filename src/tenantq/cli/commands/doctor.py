"""``tenantq doctor``: examine a store."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.progress import SpinnerColumn, TimeElapsedColumn
from rich.text import Text

from tenantq.cli import exit_codes
from tenantq.cli.offline_store import examined_shards, files_to_examine, store_options
from tenantq.cli.options import data_dir as data_dir_option
from tenantq.cli.output import Output, Table, output_command
from tenantq.cli.progress import BAR, DESCRIPTION, progress_bar
from tenantq.doctor.report import DoctorReport, Finding
from tenantq.doctor.store_check import ReadDirectory, examine, examine_shards, open_embedded
from tenantq.domain.formatting import plural
from tenantq.store.address import parse_store
from tenantq.store.interface import StoreOpener
from tenantq.store.placement_file import read_placements


@output_command(None, data_dir_option, store_options)
def doctor(data_dir: Path, *, store: str | None, store_name: str, shard: int | None) -> Output:
    """Check the consistency of a store, also of a running server.

    Changes nothing. For a running server, it checks a temporary checkpoint in the data directory. In Redis, it
    reads each queue in one step, which blocks that primary, and skips queues above 128 MiB while servers run. In
    PostgreSQL, it reads each shard in one transaction.

    Checks that each message is in exactly one state, each index row belongs to a message, each counter equals a recount, and
    the journal's hash chain is intact.

    \b
    Exit codes:
      0  consistent
      1  problems found
      2  wrong usage
      6  the store, or a queue of it, cannot be examined
    """
    with files_to_examine():
        shards = examined_shards(store, store_name, shard, data_dir, open_embedded)
        report = _examine(shards, lambda: read_placements(data_dir) if store is None else None)
    where = str(parse_store(store)) if store is not None else str(data_dir)
    verdict = "clean" if report.clean else plural(report.findings_total, "finding")
    hidden = report.findings_total - len(report.findings)
    rows = [(finding.kind, _place(finding), finding.text) for finding in report.findings]
    fields = ("clean", "findings_total", "findings", "unchecked", "figures")
    return Output(
        {"data_dir": where, **{name: getattr(report, name) for name in fields}},
        msgspec.structs.asdict(report.figures),
        *([Table(("kind", "where", "finding"), rows, "")] if rows else []),
        *([f"{hidden} more findings not listed"] if hidden else []),
        *(f"not checked: {one}" for one in report.unchecked),
        Text(f"{where}: {verdict}", style="bold green" if report.clean else "bold red"),
        code=exit_codes.ERROR if not report.clean else exit_codes.UNAVAILABLE if report.unchecked else exit_codes.OK,
    )


def _examine(shards: Sequence[tuple[str, Path, StoreOpener]], read_directory: ReadDirectory) -> DoctorReport:
    columns = (SpinnerColumn(), BAR, "{task.fields[rows]:,} rows", TimeElapsedColumn(), DESCRIPTION)
    with progress_bar(*columns, total=None, rows=0) as update:

        def progress(where: str, rows: int) -> None:
            update(description=where, rows=rows)

        if len(shards) > 1:
            return examine_shards(shards, progress, read_directory)
        ((_, path, open_store),) = shards
        return examine(path, progress, open_store)


def _place(finding: Finding) -> str:
    queue = f"{finding.tenant}/{finding.queue}" if finding.queue else finding.tenant
    shard = f"shard {finding.shard}" if finding.shard else ""
    return " ".join(part for part in (shard, queue, finding.id) if part) or "store"
