"""``tenantq poll``: lease messages and print them."""

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import click

from tenantq.cli.command_group import Command
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import Count, duration
from tenantq.cli.output import body_fields, json_option, print_json_line, said
from tenantq.cli.server_restarts import TRY_AGAIN_S, until_answered
from tenantq.client import Message, Queue
from tenantq.domain import limits
from tenantq.domain.formatting import printable, show_duration
from tenantq.errors import NotFound, TenantqError

T = TypeVar("T")

_FOLLOW_WAIT_MS: Final = 20_000
_ROUND_MS: Final = 100  # a lease of 29.996 s is shown as 30s


@click.command(cls=Command)
@click.argument("queue")
@click.option("--max", type=Count(1, limits.BATCH_MESSAGES_MAX), default=1, help="Maximum number of messages.")  # fmt: skip
@click.option("--wait", "wait_ms", type=duration, default="0ms", help="Time to wait for the first message, up to 5m.")
@click.option("--lease", "lease_ms", type=duration, help="Lease time.  [default: the queue's lease_ms]")
@click.option("--follow", is_flag=True, help="Keep polling until interrupted. Survives server restarts and waits for the queue to be created.")  # fmt: skip
@click.option("--ack", "acks", is_flag=True, help="Ack each message after printing it.")
@click.option("--body", "only_body", is_flag=True, help="Print only the bodies, byte for byte, each followed by a newline.")  # fmt: skip
@json_option
@connected
def poll(
    connection: ServerConnection,
    *,
    queue: str,
    follow: bool,
    acks: bool,
    only_body: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Lease messages of a queue and print them.

    Finish each with 'tenantq ack QUEUE RECEIPT' before its lease ends, or use --ack. Prints nothing if the queue is empty.
    With --json, each message is one line.

    \b
    tenantq poll mail --max 10 --wait 20s
    tenantq poll mail --follow --ack --body | while read -r line; do echo "$line"; done
    """
    if as_json and only_body:
        raise click.UsageError("Give either --json or --body, not both.")
    there = connection.queue(queue)
    if follow:
        options["wait_ms"] = max(options["wait_ms"], _FOLLOW_WAIT_MS)
    poll_once = partial(there.poll, **options)
    insist = False  # retry only a server that was reached once
    while True:
        messages = _tried(partial(_awaited, poll_once) if follow else poll_once, insist=insist)
        insist = follow
        _print_all(messages, acks=acks, only_body=only_body, as_json=as_json)
        if acks and messages:
            lost = _tried(partial(there.ack_many, messages, errors="return"), insist=insist)
            _report([error for error in lost if error is not None], follow=follow)
        if not follow:
            break
    if not messages and sys.stderr.isatty():
        said("no messages" if as_json else _no_messages(there))


def _no_messages(queue: Queue) -> str:
    """Return that a poll found nothing, and why if the queue is paused and the credential may see that."""
    with contextlib.suppress(TenantqError):
        if queue.stats().status == "paused":
            return f"no messages: queue {queue.name} is paused; resume it with 'tenantq queue resume {queue.name}'"
    return "no messages"


def _awaited(poll: Callable[[], list[Message]]) -> list[Message]:
    """Return messages of a queue once the queue exists."""
    announced = False
    while True:
        try:
            return poll()
        except NotFound as error:
            if error.queue is None:
                raise
            if not announced:
                said(f"{error.message} Waiting for it.")
            announced = True
            time.sleep(TRY_AGAIN_S)


def _tried(call: Callable[[], T], *, insist: bool) -> T:
    """Return what ``call`` returns. With ``insist``, retry until the server answers."""
    return until_answered(call) if insist else call()


def _report(errors: list[TenantqError], *, follow: bool) -> None:
    """Report messages that were not acked and will be redelivered. Raises the first error unless ``follow``."""
    if errors and not follow:
        raise errors[0]
    for error in errors:
        click.echo(f"tenantq: {error.message} [{error.code}]", err=True)


def _print_all(messages: list[Message], *, acks: bool, only_body: bool, as_json: bool) -> None:
    """Print messages. If that fails, release those that were not printed, and with ``acks`` all of them."""
    printed = 0
    try:
        for message in messages:
            if as_json:
                print_json_line(_fields(message))
            elif only_body:
                click.echo(message.body)
            else:
                click.echo(_described(message, acks=acks))
            printed += 1
        sys.stdout.flush()
    except BaseException:
        _release(messages[printed:] if not acks else messages)
        raise


def _fields(message: Message) -> dict[str, Any]:
    """Return a leased message as JSON fields, named as in the HTTP interface."""
    names = ("attempt", "priority", "attributes", "group", "added_at", "lease_until", "tenant", "queue")
    fields = {"id": message.id, "receipt": message.receipt, **body_fields(message.body)}
    return fields | {name: getattr(message, name) for name in names}


def _release(messages: list[Message]) -> None:
    for message in messages:
        try:
            message.release()
        except TenantqError:
            return  # the leases end by themselves


def _described(message: Message, *, acks: bool) -> str:
    """Return a message as text. A message that is acked immediately needs no receipt."""
    facts = [f"attempt {message.attempt}", f"priority {message.priority}"]
    if message.group is not None:
        facts.append(f"group {message.group}")
    if message.lease_ms is not None and not acks:
        facts.append(f"leased for {show_duration(max(1, round(message.lease_ms / _ROUND_MS)) * _ROUND_MS)}")
    facts += [f"{name}={value}" for name, value in message.attributes.items()]
    body = message.body.decode(errors="replace")
    receipt = "" if acks else f"  receipt {message.receipt}\n"
    return f"{message.id}  {printable(', '.join(facts))}\n{receipt}  {printable(body)}"
