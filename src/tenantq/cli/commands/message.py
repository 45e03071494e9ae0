"""``tenantq message``: one message by its id."""

from __future__ import annotations

from typing import Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import Connection, connected
from tenantq.cli.durations import duration
from tenantq.cli.journal_rows import print_rows
from tenantq.cli.output import body_fields, json_option, print_facts, print_json
from tenantq.cli.stored_message import stored_fields
from tenantq.domain.formatting import show_time

_RESULT_CODES: Final = {"failed": exit_codes.ERROR, "pending": exit_codes.UNAVAILABLE}
queue_argument = click.argument("queue")
id_argument = click.argument("id")


@click.group(cls=CommandGroup)
def message() -> None:
    """Look at a message by its id: facts, history, result. Or remove it."""


@message.command()
@queue_argument
@id_argument
@json_option
@connected
def show(connection: Connection, *, queue: str, id: str, as_json: bool) -> None:
    """Show everything known of a message that is still stored."""
    found = stored_fields(connection.queue(queue).get(id))
    if as_json:
        print_json(found)
        return
    for name in ("added_at", "visible_at", "expires_at", "lease_until"):
        found[name] = show_time(found[name])
    history = found.pop("history")
    body = found.pop("body", None)
    print_facts({name: value for name, value in found.items() if value not in (None, {})})
    for entry in history:
        click.echo(
            f"attempt {entry['attempt']}  {entry['outcome']} {show_time(entry['at'])} {entry['reason']}".rstrip()
        )
    if body is not None:
        print_facts({"body": body})


@message.command()
@queue_argument
@id_argument
@json_option
@connected
def trace(connection: Connection, *, queue: str, id: str, as_json: bool) -> None:
    """Show a message's whole history from the journal, also of one that is done."""
    rows = connection.queue(queue).trace(id)
    if as_json:
        print_json({"rows": rows})
    else:
        print_rows(rows, columns=("ts", "op", "outcome", "attempt", "principal", "details"))


@message.command()
@queue_argument
@id_argument
@click.option("--wait", "wait_ms", type=duration, help="Wait that long while it is pending.")
@json_option
@connected
def result(connection: Connection, *, queue: str, id: str, wait_ms: int | None, as_json: bool) -> int:
    """Show what a consumer reported of a message.

    The value goes to stdout byte for byte; a failed one's error to stderr, with exit code 1. Pending is 6. With --json
    the exit codes are the same.
    """
    there = connection.queue(queue)
    found = there.wait_result(id, timeout_ms=wait_ms) if wait_ms else there.result(id)
    if as_json:
        value: dict[str, Any] = body_fields(found.value, "value") if found.value is not None else {"value": None}
        print_json({"id": id, "status": found.status, **value, "value_hidden": found.hidden, "error": found.error})
        return _RESULT_CODES.get(found.status, exit_codes.OK)
    if found.status == "failed":
        click.echo(f"tenantq: it failed: {found.error}", err=True)
    elif found.status == "pending":
        click.echo("tenantq: it is pending; --wait 1m waits for it [unavailable]", err=True)
    else:
        click.echo("(hidden: this token may not read it)" if found.hidden else found.value or b"")
    return _RESULT_CODES.get(found.status, exit_codes.OK)


@message.command()
@queue_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@connected
def remove(connection: Connection, *, queue: str, ids: tuple[str, ...], as_json: bool) -> int:
    """Delete messages by id, whatever their state. Exit code 3 if one was not there."""
    gone = connection.queue(queue).remove(*ids)
    if as_json:
        print_json({"results": [{"id": id, "removed": one} for id, one in zip(ids, gone, strict=True)]})
    else:
        click.echo(f"removed {sum(gone)}")
        for id, one in zip(ids, gone, strict=True):
            if not one:
                click.echo(f"tenantq: {id[:80]}: no such message [not_found]", err=True)
    return exit_codes.OK if all(gone) else exit_codes.NOT_FOUND
