"""``tenantq queue``: make, change, look at, pause, empty and delete queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import Connection, connected
from tenantq.cli.durations import duration
from tenantq.cli.given_settings import parse_settings, set_option
from tenantq.cli.output import json_option, print_facts, print_json, print_table
from tenantq.cli.stored_message import stored_fields
from tenantq.domain.formatting import plural, preview, show_age
from tenantq.errors import Conflict, NotFound
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.wire import QueueReply

name_argument = click.argument("name")


def _queue_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        set_option,
        click.option("--dead-letter", metavar="QUEUE", help="Where messages go that used up their attempts."),
        click.option("--ttl", "ttl_ms", type=duration, help="How long messages live that name no time."),
        click.option("--max-attempts", type=int, metavar="N", help="Deliveries before a message is a dead letter; 0: no bound."),
        click.option("--lease", "lease_ms", type=duration, help="How long a lease is where a poll names none."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(cls=CommandGroup)
def queue() -> None:
    """Make, change, look at, pause, empty and delete queues."""


@queue.command()
@name_argument
@_queue_options
@json_option
@connected
def create(connection: Connection, *, name: str, settings: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Make a queue. Queues also come into being on their first message, unless the tenant forbids it."""
    there = connection.queue(name)
    changes = _changes(given, settings)
    try:
        there.stats()
    except NotFound:
        _show(there.configure(**changes), f"made queue {name}", as_json=as_json)
        return
    raise Conflict(f"there is a queue {name} already; change it with 'tenantq queue configure'", queue=name)


@queue.command()
@name_argument
@_queue_options
@json_option
@connected
def configure(connection: Connection, *, name: str, settings: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Change a queue; what is not given stays as it is."""
    there = connection.queue(name)
    changes = _changes(given, settings)
    if not changes:
        raise click.UsageError("Nothing to change was given.")
    there.stats()
    _show(there.configure(**changes), f"changed queue {name}", as_json=as_json)


@queue.command("list")
@json_option
@connected
def list_queues(connection: Connection, *, as_json: bool) -> None:
    """List a tenant's queues with their figures."""
    tenant = connection.target.tenant
    queues = connection.client.queues() if tenant is None else connection.client.tenant(tenant).queues()
    if as_json:
        print_json({"queues": queues})
        return
    rows = [
        (one.name, one.status, one.ready, one.delayed, one.in_flight, one.dead, one.bytes, show_age(one.oldest_age_ms))
        for one in queues
    ]
    headings = ("name", "status", "ready", "delayed", "in flight", "dead", "bytes", "oldest")
    print_table(headings, rows, empty="no queues")


@queue.command()
@name_argument
@json_option
@connected
def show(connection: Connection, *, name: str, as_json: bool) -> None:
    """Show a queue's figures and configuration."""
    _show(connection.queue(name).stats(), "", as_json=as_json)


@queue.command()
@name_argument
@json_option
@connected
def pause(connection: Connection, *, name: str, as_json: bool) -> None:
    """Stop deliveries; adding goes on, and polls wait."""
    _show(connection.queue(name).pause(), f"paused queue {name}", as_json=as_json)


@queue.command()
@name_argument
@json_option
@connected
def resume(connection: Connection, *, name: str, as_json: bool) -> None:
    """Deliver again."""
    _show(connection.queue(name).resume(), f"resumed queue {name}", as_json=as_json)


@queue.command()
@name_argument
@click.option("--force", is_flag=True, help="Do not wait for leases to settle.")
@destroys
@json_option
@connected
def delete(connection: Connection, *, name: str, force: bool, yes: bool, reason: str | None, as_json: bool) -> None:
    """Delete a queue and its messages, once its leases have settled."""
    there = connection.queue(name)
    figures = there.stats()
    what = f"This deletes queue {name} with {plural(_count(figures), 'message')}"
    why = confirmed_reason(what, name, yes=yes, reason=reason)
    there.delete(confirm=name, reason=why, force=force)
    if as_json:
        print_json({"name": name, "deleting": True})
    else:
        waits = figures.in_flight and not force
        click.echo(f"deleting queue {name}" + (f" when {figures.in_flight} leases have settled" if waits else ""))


@queue.command()
@name_argument
@destroys
@json_option
@connected
def purge(connection: Connection, *, name: str, yes: bool, reason: str | None, as_json: bool) -> None:
    """Delete all messages of a queue; the queue stays."""
    there = connection.queue(name)
    what = f"This deletes {plural(_count(there.stats()), 'message')} of queue {name}"
    why = confirmed_reason(what, name, yes=yes, reason=reason)
    purged = there.purge(confirm=name, reason=why)
    if as_json:
        print_json({"name": name, "purged": purged})
    else:
        click.echo(f"purged {plural(purged, 'message')} of queue {name}")


@queue.command()
@name_argument
@click.option("--max", "limit", type=int, default=10, show_default=True, metavar="N", help="How many, at most.")
@click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")
@json_option
@connected
def peek(connection: Connection, *, name: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """Look at waiting messages in order of delivery, without leasing them."""
    page = connection.queue(name).peek(limit, cursor=cursor)
    if as_json:
        print_json({"messages": [stored_fields(one) for one in page.messages], "cursor": page.cursor})
        return
    now = SystemClock().wall_ms()
    rows = [
        (
            one.id,
            one.state,
            one.priority,
            one.attempts,
            show_age(max(0, now - one.added_at)),
            one.size,
            "(hidden)" if one.hidden else f"({one.body_error})" if one.body_error else preview(one.body),
        )
        for one in page.messages
    ]
    headings = ("id", "state", "priority", "attempts", "age", "bytes", "body")
    print_table(headings, rows, empty="no messages wait")
    if page.cursor is not None:
        click.echo(f"more: --cursor {page.cursor}", err=True)


def _changes(given: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    return {**parse_settings(settings), **{name: value for name, value in given.items() if value is not None}}


def _count(figures: QueueReply) -> int:
    return figures.ready + figures.delayed + figures.in_flight


def _show(queue: QueueReply, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(queue)
    elif done:
        click.echo(done)
    else:
        print_facts(msgspec.to_builtins(queue))
