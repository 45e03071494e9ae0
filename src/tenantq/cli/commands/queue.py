"""``tenantq queue``: create, change, inspect, pause, empty and delete queues."""

from functools import partial
from typing import Any

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import duration, name_argument, setting_options
from tenantq.cli.output import (
    Columns,
    Output,
    changes_output,
    create_once,
    list_output,
    message_fields,
    settings_facts,
    table,
)
from tenantq.client import StoredMessage
from tenantq.domain.formatting import plural, preview, printable, show_age
from tenantq.runtime.clock import SystemClock
from tenantq.wire.queues import QueueReply

_setting_options = setting_options(
    "limits.write.ops_per_sec=100",
    lease_ms=click.option("--lease", "lease_ms", type=duration, help="Default lease time of polls."),
    max_attempts=click.option("--max-attempts", type=int, metavar="N", help="Deliveries before a message is dead-lettered; 0: unlimited."),
    ttl_ms=click.option("--ttl", "ttl_ms", type=duration, help="Default time to live of messages."),
    dead_letter=click.option("--dead-letter", metavar="QUEUE", help="Queue for messages that used up their attempts."),
)  # fmt: skip


@click.group(cls=CommandGroup)
def queue() -> None:
    """Manage queues."""


@server_command(queue, name_argument, _setting_options)
def create(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Create a queue. Adding a message also creates its queue, unless the tenant forbids it."""
    found = connection.queue(name)
    return create_once("queue", name, found.stats, partial(found.configure, **changes))


@server_command(queue, name_argument, _setting_options)
def configure(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Change settings of a queue. Other settings stay unchanged."""
    if not changes:
        raise click.UsageError("Give at least one setting to change.")
    found = connection.queue(name)
    return changes_output(f"queue {name}", found.stats(), found.configure(**changes))


@server_command(queue, name="list")
def list_queues(connection: ServerConnection) -> Output:
    """List a tenant's queues with their counts."""
    tenant = connection.target.tenant
    queues = connection.client.queues() if tenant is None else connection.client.tenant(tenant).queues()
    oldest = ("oldest", lambda one: show_age(one.oldest_age_ms) if one.oldest_age_ms else None)
    columns: Columns = ["name", "status", "ready", "delayed", "in flight", "dead", "bytes", oldest]
    return list_output("queues", queues, columns)


@server_command(queue, name_argument)
def show(connection: ServerConnection, *, name: str) -> Output:
    """Show the counts and settings of a queue."""
    found = connection.queue(name).stats()
    return Output(found, settings_facts(found))


@server_command(queue, name_argument)
def pause(connection: ServerConnection, *, name: str) -> Output:
    """Pause deliveries. Messages can still be added; polls wait."""
    return Output(connection.queue(name).pause(), f"paused queue {name}")


@server_command(queue, name_argument)
def resume(connection: ServerConnection, *, name: str) -> Output:
    """Resume deliveries."""
    return Output(connection.queue(name).resume(), f"resumed queue {name}")


@server_command(queue)
@name_argument
@click.option("--force", is_flag=True, help="Delete immediately, without waiting for leases to settle.")
@destroys
def delete(connection: ServerConnection, *, name: str, force: bool, yes: bool, reason: str | None) -> Output:
    """Delete a queue and its messages after its leases have settled."""
    found = connection.queue(name)
    figures = found.stats()
    what = f"This deletes queue {name} with {plural(_count(figures), 'message')}"
    found.delete(confirm=name, reason=confirmed_reason(what, name, yes=yes, reason=reason), force=force)
    waits = f" when {figures.in_flight} leases have settled" if figures.in_flight and not force else ""
    return Output({"name": name, "deleting": True}, f"deleting queue {name}{waits}")


@server_command(queue, name_argument, destroys)
def purge(connection: ServerConnection, *, name: str, yes: bool, reason: str | None) -> Output:
    """Delete all messages of a queue, but not the queue."""
    found = connection.queue(name)
    what = f"This deletes {plural(_count(found.stats()), 'message')} of queue {name}"
    purged = found.purge(confirm=name, reason=confirmed_reason(what, name, yes=yes, reason=reason))
    return Output({"name": name, "purged": purged}, f"purged {plural(purged, 'message')} of queue {name}")


@server_command(queue)
@name_argument
@click.option("--max", "limit", type=int, default=10, metavar="N", help="Maximum number of messages.")
@click.option("--cursor", metavar="TEXT", help="Continue after the previous page.")
def peek(connection: ServerConnection, *, name: str, limit: int, cursor: str | None) -> Output:
    """Show waiting messages in delivery order, without leasing them."""
    page = connection.queue(name).peek(limit, cursor=cursor)
    now_ms = SystemClock().wall_ms()
    age = ("age", lambda one: show_age(max(0, now_ms - one.added_at)))
    reason = [("reason", _dead_reason)] if any(one.dead is not None for one in page.messages) else []
    columns: Columns = ["id", "state", "priority", "attempts", age, ("bytes", "size"), *reason, ("body", _shown_body)]
    document = {"messages": [message_fields(one) for one in page.messages], "cursor": page.cursor}
    more = [f"more: --cursor {page.cursor}"] if page.cursor is not None else []
    return Output(document, table(columns, page.messages, "no waiting messages"), notes=more)


def _dead_reason(message: StoredMessage) -> str:
    return printable(message.dead.reason) if message.dead is not None else "-"


def _shown_body(message: StoredMessage) -> str:
    if message.hidden:
        return "(hidden)"
    return f"({message.body_error})" if message.body_error else preview(message.body)


def _count(figures: QueueReply) -> int:
    return figures.ready + figures.delayed + figures.in_flight
