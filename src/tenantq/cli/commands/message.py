"""``tenantq message``: one message by its ID."""

from typing import Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, connected, server_command
from tenantq.cli.options import duration, options
from tenantq.cli.output import Output, body_fields, journal_table, json_option, message_fields, print_json
from tenantq.client import Queue
from tenantq.domain.formatting import show_time
from tenantq.errors import NotFound, TenantqError

_RESULT_CODES: Final = {"failed": exit_codes.ERROR, "pending": exit_codes.UNAVAILABLE}
_message_arguments = options(click.argument("queue"), click.argument("id"))


@click.group(cls=CommandGroup)
def message() -> None:
    """Show or remove a message by its ID."""


@server_command(message)
@_message_arguments
def show(connection: ServerConnection, *, queue: str, id: str) -> Output:
    """Show the state of a stored message."""
    document = message_fields(connection.queue(queue).get(id))
    facts = {name: one for name, one in document.items() if name not in ("history", "body") and one not in (None, {})}
    for name in ("added_at", "visible_at", "expires_at", "lease_until"):
        if name in facts:
            facts[name] = show_time(facts[name])
    if document["dead"] is not None:
        facts["dead"] = document["dead"] | {"at": show_time(document["dead"]["at"])}
    history = [
        f"attempt {one['attempt']}  {one['outcome']} {show_time(one['at'])} {one['reason']}".rstrip()
        for one in document["history"]
    ]
    body = [{"body": document["body"]}] if "body" in document else []
    return Output(document, facts, *history, *body)


@server_command(message)
@_message_arguments
def trace(connection: ServerConnection, *, queue: str, id: str) -> Output:
    """Show the history of a message from the journal, even after it is finished."""
    rows = connection.queue(queue).trace(id)
    return Output({"rows": rows}, journal_table(rows, "ts", "op", "outcome", "attempt", "principal", "details"))


@message.command()
@_message_arguments
@click.option("--wait", "wait_ms", type=duration, help="Maximum time to wait while it is pending.  [default: do not wait]")  # fmt: skip
@json_option
@connected
def result(connection: ServerConnection, *, queue: str, id: str, wait_ms: int | None, as_json: bool) -> int:
    """Show the result that a consumer reported for a message.

    Writes the value to stdout, byte for byte. If the job failed, writes the error to stderr and exits with 1. Exits with 6
    while the result is pending.
    """
    there = connection.queue(queue)
    found = there.wait_result(id, timeout_ms=wait_ms) if wait_ms else there.result(id)
    if as_json:
        value: dict[str, Any] = body_fields(found.value, "value") if found.value is not None else {"value": None}
        print_json({"id": id, "status": found.status, **value, "value_hidden": found.hidden, "error": found.error})
    elif found.status == "failed":
        click.echo(f"tenantq: the job failed: {found.error}", err=True)
    elif found.status == "pending":
        click.echo("tenantq: the result is pending; wait for it with --wait 1m [unavailable]", err=True)
    else:
        click.echo("(hidden: this token cannot read payloads)" if found.hidden else found.value or b"")
    return _RESULT_CODES.get(found.status, exit_codes.OK)


@server_command(message)
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def remove(connection: ServerConnection, *, queue: str, ids: tuple[str, ...]) -> Output:
    """Delete messages by ID in any state. Exits with 3 if one does not exist."""
    there = connection.queue(queue)
    results = [{"id": id, "removed": one} for id, one in zip(ids, there.remove(*ids), strict=True)]
    missing = [str(one["id"]) for one in results if not one["removed"]]
    return Output(
        {"results": results},
        f"removed {len(results) - len(missing)}",
        notes=[f"tenantq: {id[:80]}: {_reason_missing(there, id)} [not_found]" for id in missing],
        code=exit_codes.NOT_FOUND if missing else exit_codes.OK,
    )


def _reason_missing(queue: Queue, id: str) -> str:
    """Return why a message was not found: it may be in the dead-letter queue."""
    try:
        queue.get(id)
    except NotFound as error:
        return error.message
    except TenantqError:
        pass
    return "no such message"
