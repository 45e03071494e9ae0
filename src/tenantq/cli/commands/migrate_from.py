"""``tenantq migrate-from``: migrate the messages of another queue system."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import FILE, Count, duration
from tenantq.cli.output import Output, Table
from tenantq.cli.progress import BAR, DESCRIPTION, progress_bar
from tenantq.client import Client
from tenantq.domain.formatting import plural
from tenantq.runtime.clock import SystemClock
from tenantq.sources.mapping import Mapping, load_mapping
from tenantq.sources.open_source import SOURCES, SourceOptions, open_source
from tenantq.sources.source import InProgress, Mode, Source
from tenantq.sources.spark_engine import SparkTransfer
from tenantq.sources.transfer import Transfer, TransferReport

_LOOK_AGAIN_S: Final = 1.0
_REMAINING: Final = "{} at the source are delayed, or held by workers or an interrupted run. Run the command again."
_LEASE_MS: Final = (1_000, 12 * 3_600_000)  # what SQS allows


@server_command(name="migrate-from")
@click.argument("kind", metavar="SOURCE", type=click.Choice(SOURCES))
@click.argument("location", metavar="LOCATION")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--queue", metavar="QUEUE", help="Put all messages into this queue.  [default: named as at the source]")
@click.option("--mapping", "mapping_file", type=FILE, help="TOML file that maps source queues to tenants and queues.")
@click.option("--mode", type=click.Choice(("snapshot", "drain")), help="Leave the source as it is, or delete what was migrated.  [default: snapshot where possible]")  # fmt: skip
@click.option("--in-progress", type=click.Choice(("ready", "keep-lease")), default="ready", help="Deliver messages that are leased in the old system immediately (ready), or after their leases end (keep-lease).")  # fmt: skip
@click.option("--first", type=click.Choice(("head", "tail")), default="head", help="End of a plain Redis list that is delivered next.")  # fmt: skip
@click.option("--prefix", default="bull", help="Prefix of BullMQ's keys.")
@click.option("--lease", "lease_ms", type=duration, default="5m", help="How long SQS hides messages while they are transferred, 1s to 12h.")  # fmt: skip
@click.option("--live", is_flag=True, help="Follow Queueber while it runs, and finish when it stops.")
@click.option("--engine", type=click.Choice(("local", "spark")), default="local", help="Transfer in this process, or in parts on Spark.")  # fmt: skip
@click.option("--parts", type=Count(1, 10_000), help="Spark: parts of each queue.  [default: two per core]")
@click.option("--master", metavar="URL", help="Spark master.  [default: local[*], all cores of this machine]")
@click.option("--dry-run", is_flag=True, help="Show what would be migrated, without changes.")
def migrate_from(
    connection: ServerConnection, *, kind: str, location: str, names: tuple[str, ...], queue: str | None,
    mapping_file: Path | None, mode: Mode | None, in_progress: InProgress, first: Literal["head", "tail"], prefix: str,
    lease_ms: int, live: bool, engine: Literal["local", "spark"], parts: int | None, master: str | None, dry_run: bool,
) -> Output:  # fmt: skip
    """Migrate the messages of another queue system.

    LOCATION depends on SOURCE:

    \b
      queueber                                        directory
      work-queue, rq, celery, bullmq, sidekiq, redis  Redis URL
      pgmq, river, procrastinate, good-job            PostgreSQL URL
      rabbitmq                                        AMQP URL
      sqs                                             AWS region or endpoint

    NAME limits the migration to some queues or keys; redis, sqs and rabbitmq require it. Interrupted or repeated, the command adds no
    message twice. Requires the actions import, get_queue and put_queue in the target tenant.

    --live pauses the target queue and copies what Queueber holds while it runs. Then stop Queueber: the command transfers
    the last changes, resumes the queue and ends. Requires the role tenant-admin.

    --engine spark is for large migrations from Redis, PostgreSQL and Queueber. Every worker of Spark must reach the source
    and the server, and have tenantq installed.

    \b
    tenantq migrate-from queueber /var/lib/queueber --tenant default --queue default
    tenantq migrate-from celery redis://localhost/0 --tenant acme --dry-run
    tenantq migrate-from sqs eu-west-1 orders --mode drain

    \b
    Exit codes:
      0    migrated; with --dry-run: can be migrated
      2    wrong usage, or the location holds another system
      4    the token was refused
      5    a quota of the tenant refused messages; raise it and run the command again
      6    the source or the server does not answer; run the command again
      7    migrated, but some messages were skipped, or remain at the source, as the report says
      130  interrupted by Ctrl-C; run the command again
    """
    if live and kind != "queueber":
        raise click.UsageError("--live: only for queueber. Other sources can be drained while they are in use.")
    if not _LEASE_MS[0] <= lease_ms <= _LEASE_MS[1]:
        raise click.UsageError("--lease: must be 1s to 12h.")
    options = SourceOptions(
        location=location, names=names, first=first, prefix=prefix, lease_s=lease_ms // 1_000, live=live
    )
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
        if engine == "spark":
            if live or mode != "snapshot":
                raise click.UsageError("--engine spark: supports only --mode snapshot, without --live.")
            return _on_spark(connection, kind, options, mapping, in_progress, total, parts, master)
        with progress_bar(
            BAR, "{task.completed:,} of {task.total:,} messages", DESCRIPTION, total=max(1, total)
        ) as bar:

            def transfer_from(source: Source) -> Transfer:
                return Transfer(
                    source, connection.client, mapping, SystemClock().wall_ms(), lambda read: bar(completed=read)
                )

            if live:
                report = _follow(source, mapping, connection.client, transfer_from, in_progress)
            else:
                report = transfer_from(source).run(mode, in_progress)
        left = sum(one.total for one in source.queues()) if mode == "drain" else None
    return _result(report, left)


def _on_spark(
    connection: ServerConnection, kind: str, options: SourceOptions, mapping: Mapping, in_progress: InProgress, total: int,
    parts: int | None, master: str | None,
) -> Output:  # fmt: skip
    """Migrate in parts on Spark."""
    connection.client.whoami()  # Spark takes long to start: find a wrong address or token before
    target = connection.target
    job = SparkTransfer(
        kind=kind, options=options, in_progress=in_progress, mapping=mapping, url=target.url, token=target.token,
        tls=target.tls, timeout_ms=connection.timeout_ms, now_ms=SystemClock().wall_ms(),
    )  # fmt: skip
    with spark_command(master, meaning="; run the command again to continue") as work:
        count = parts or 2 * work.spark.sparkContext.defaultParallelism
        report = job.run(work.spark, count, lambda read: work.progress.begin(f"{read:,} of {total:,} messages"))
    return _result(report, None)


def _follow(
    source: Source, mapping: Mapping, client: Client, transfer: Callable[[Source], Transfer], in_progress: InProgress
) -> TransferReport:
    """Migrate from a running Queueber."""
    from tenantq.sources.live import LiveMigration  # noqa: PLC0415  # needs an extra
    from tenantq.sources.queueber import Queueber  # noqa: PLC0415  # as above

    assert isinstance(source, Queueber), "already checked"
    (queue,) = source.queues()
    destination = mapping.of_queue(queue.tenant, queue.name)
    if destination is None:
        raise click.UsageError("--live: the mapping leaves out the queue of Queueber.")
    is_announced = False

    def wait(count: int) -> None:
        nonlocal is_announced
        if not is_announced:
            click.echo(f"{plural(count, 'message')} transferred; following Queueber. Stop it to finish.", err=True)
            is_announced = True
        time.sleep(_LOOK_AGAIN_S)

    target = client.tenant(destination.tenant).queue(destination.queue)
    return LiveMigration(source, target, transfer).run(in_progress, wait)


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
        Table(("tenant", "queue", "read", "added", "duplicates", "bytes"), rows, "no messages"),
        f"migrated {plural(report.added, 'new message')} of {report.read:,} read from {report.source}; {state}",
        notes=[
            *(f"{count:,} {text}" for text, count in report.skipped.items()),
            *([f"{plural(report.removed, 'message')} finished by Queueber meanwhile"] if report.removed else []),
            *([_REMAINING.format(plural(left, "message"))] if left else []),
        ],
        code=exit_codes.CONFLICT if lost or left or not report.verified else exit_codes.OK,
    )
