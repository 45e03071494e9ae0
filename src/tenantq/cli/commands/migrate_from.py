"""``tenantq migrate-from``: take over the messages of another queue system."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import FILE
from tenantq.cli.output import Output, Table
from tenantq.cli.progress import BAR, DESCRIPTION, progress_bar
from tenantq.domain.formatting import plural
from tenantq.runtime.clock import SystemClock
from tenantq.sources.mapping import Mapping, load_mapping
from tenantq.sources.open_source import SOURCES, SourceOptions, open_source
from tenantq.sources.source import InProgress, Mode, Source
from tenantq.sources.transfer import Transfer, TransferReport


@server_command(name="migrate-from")
@click.argument("kind", metavar="SOURCE", type=click.Choice(SOURCES))
@click.argument("location", metavar="LOCATION")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--queue", metavar="QUEUE", help="Put all messages into this queue.  [default: named as at the source]")
@click.option("--mapping", "mapping_file", type=FILE, help="TOML file that maps source queues to tenants and queues.")
@click.option(
    "--mode",
    type=click.Choice(("snapshot", "drain")),
    help="Leave the source as it is, or delete what was migrated.  [default: snapshot where possible]",
)
@click.option(
    "--in-progress",
    type=click.Choice(("ready", "keep-lease")),
    default="ready",
    show_default=True,
    help="Deliver messages that a worker of the old system holds at once, or after its lease ends.",
)
@click.option(
    "--first",
    type=click.Choice(("head", "tail")),
    default="head",
    show_default=True,
    help="End of a plain Redis list that is delivered next.",
)
@click.option("--prefix", default="bull", show_default=True, help="Prefix of BullMQ's keys.")
@click.option("--dry-run", is_flag=True, help="Show what would be migrated, without changes.")
def migrate_from(
    connection: ServerConnection, *, kind: str, location: str, names: tuple[str, ...], queue: str | None,
    mapping_file: Path | None, mode: Mode | None, in_progress: InProgress, first: Literal["head", "tail"], prefix: str,
    dry_run: bool,
) -> Output:  # fmt: skip
    """Migrate the messages of another queue system.

    LOCATION is a directory (queueber), a Redis, PostgreSQL or AMQP URL, or an AWS region or endpoint (sqs). NAME limits
    the migration to some queues or keys; redis, sqs and rabbitmq require it. Interrupted or repeated, the command adds no
    message twice. Requires the actions import, get_queue and put_queue in the target tenant.

    \b
    tenantq migrate-from queueber /var/lib/queueber --tenant default --queue default
    tenantq migrate-from celery redis://localhost/0 --tenant acme --dry-run
    tenantq migrate-from sqs eu-west-1 orders --mode drain

    \b
    Exit codes:
      0    migrated; with --dry-run: can be migrated
      2    wrong usage, or the source is not what it should be
      4    the token was refused
      5    a quota of the tenant refused messages; raise it and run the command again
      6    the source or the server does not answer; run the command again
      7    migrated, but some messages were skipped, as the report says
      130  interrupted by Ctrl-C; run the command again
    """
    options = SourceOptions(location=location, names=names, first=first, prefix=prefix)
    with closing(open_source(kind, options)) as source:
        if mode is None:
            mode = source.modes[0]
        if mode not in source.modes:
            raise click.UsageError(f"--mode {mode}: {kind} supports only {' and '.join(source.modes)}.")
        entries = load_mapping(mapping_file)
        tenant = connection.target.tenant
        own = tenant or connection.client.own_tenant().name
        mapping = Mapping(entries, tenant, queue, own)
        if dry_run:
            return _plan(source, mapping, mode)
        total = sum(one.total for one in source.queues())
        with progress_bar(
            BAR, "{task.completed:,} of {task.total:,} messages", DESCRIPTION, total=max(1, total)
        ) as bar:
            transfer = Transfer(source, connection.client, mapping, SystemClock(), lambda read: bar(completed=read))
            report = transfer.run(mode, in_progress)
        left = sum(one.total for one in source.queues()) if mode == "drain" else None
    return _result(report, left)


def _plan(source: Source, mapping: Mapping, mode: Mode) -> Output:
    queues: list[dict[str, Any]] = []
    for one in source.queues():
        destination = mapping.of_queue(one.tenant, one.name)
        to = f"{destination.tenant}/{destination.queue}" if destination is not None else "left out"
        queues.append({**msgspec.to_builtins(one), "to": to})
    headings = ("name", "ready", "delayed", "in_progress", "dead", "to")
    rows = [[one[heading] for heading in headings] for one in queues]
    total = sum(one["ready"] + one["delayed"] + one["in_progress"] + one["dead"] for one in queues)
    return Output(
        {"source": source.kind, "mode": mode, "queues": queues, "messages": total},
        Table(("queue", *headings[1:]), rows, "nothing to migrate"),
        f"{plural(total, 'message')} can be migrated; nothing was changed",
    )


def _result(report: TransferReport, left: int | None) -> Output:
    rows = [(one.tenant, one.queue, one.read, one.added, one.known, one.bytes) for one in report.queues]
    lost = {text: count for text, count in report.skipped.items() if "migrated" not in text}
    state = "verified" if report.verified else "NOT VERIFIED"
    return Output(
        {**msgspec.to_builtins(report), "read": report.read, "added": report.added, "left": left},
        Table(("tenant", "queue", "read", "added", "already there", "bytes"), rows, "no messages"),
        f"migrated {plural(report.added, 'new message')} of {report.read:,} read from {report.source}; {state}",
        notes=[
            *(f"{count:,} {text}" for text, count in report.skipped.items()),
            *([f"{plural(left, 'message')} remain at the source"] if left else []),
        ],
        code=exit_codes.CONFLICT if lost or not report.verified else exit_codes.OK,
    )
