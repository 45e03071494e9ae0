"""``tenantq ack``, ``nack``, ``release`` and ``extend``: end leases, or make them longer, by their receipts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from tenantq.cli import exit_codes
from tenantq.cli.connection import Connection, connected
from tenantq.cli.durations import duration
from tenantq.cli.output import json_option, print_json
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid, TenantqError

if TYPE_CHECKING:
    from collections.abc import Callable

How = Literal["ack", "nack", "release", "extend"]
_DONE: Final[dict[How, str]] = {"ack": "acked", "nack": "nacked", "release": "released", "extend": "extended"}


def _receipts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its queue and its receipts."""
    command = json_option(command)
    command = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")(command)
    return click.argument("queue")(command)


@click.command()
@_receipts
@connected
def ack(connection: Connection, *, queue: str, receipts: tuple[str, ...], as_json: bool) -> int:
    """Finish leased messages. RECEIPT - reads receipts from stdin, one a line."""
    return _settle(connection, "ack", queue, receipts, as_json=as_json)


@click.command()
@_receipts
@click.option("--delay", "delay_ms", type=duration, help="Hide them that long.  [default: the queue's backoff]")
@click.option("--reason", default="", metavar="TEXT", help="What went wrong; kept in the message's history.")
@connected
def nack(
    connection: Connection,
    *,
    queue: str,
    receipts: tuple[str, ...],
    delay_ms: int | None,
    reason: str,
    as_json: bool,
) -> int:
    """Give failed messages back for another attempt. RECEIPT - reads receipts from stdin, one a line."""
    return _settle(connection, "nack", queue, receipts, as_json=as_json, delay_ms=delay_ms, reason=reason)


@click.command()
@_receipts
@connected
def release(connection: Connection, *, queue: str, receipts: tuple[str, ...], as_json: bool) -> int:
    """Give messages back at once, without using up an attempt. RECEIPT - reads receipts from stdin, one a line."""
    return _settle(connection, "release", queue, receipts, as_json=as_json)


@click.command()
@_receipts
@click.option("--lease", "lease_ms", type=duration, required=True, help="How long from now they are yours.")
@connected
def extend(
    connection: Connection,
    *,
    queue: str,
    receipts: tuple[str, ...],
    lease_ms: int,
    as_json: bool,
) -> int:
    """Let leases end later. RECEIPT - reads receipts from stdin, one a line."""
    return _settle(connection, "extend", queue, receipts, as_json=as_json, lease_ms=lease_ms)


def _settle(
    connection: Connection, how: How, queue: str, given: tuple[str, ...], *, as_json: bool, **options: Any
) -> int:
    receipts = _read_receipts() if given == ("-",) else list(given)
    outcomes = connection.queue(queue).settle(how, receipts, **options)
    failed = [one for one in outcomes if isinstance(one, TenantqError)]
    if as_json:
        results = [_item(receipt, one) for receipt, one in zip(receipts, outcomes, strict=True)]
        print_json({"results": results})
    else:
        done = len(outcomes) - len(failed)
        until = {one for one in outcomes if isinstance(one, int)}
        ends = f" until {show_time(max(until))}" if until else ""
        if done:
            click.echo(f"{_DONE[how]} {done}{ends}")
        for receipt, one in zip(receipts, outcomes, strict=True):
            if isinstance(one, TenantqError):
                click.echo(f"tenantq: {receipt[:80]}: {one.message} [{one.code}]", err=True)
    return exit_codes.exit_code(failed[0]) if failed else exit_codes.OK


def _read_receipts() -> list[str]:
    try:
        return sys.stdin.buffer.read().decode().split()
    except UnicodeDecodeError as error:
        raise Invalid("receipts: what stdin gives is not UTF-8") from error


def _item(receipt: str, outcome: int | TenantqError | None) -> dict[str, Any]:
    refused = isinstance(outcome, TenantqError)
    return {
        "receipt": receipt,
        "ok": not refused,
        "error": {"code": outcome.code, "detail": outcome.message} if isinstance(outcome, TenantqError) else None,
        "lease_until": outcome if isinstance(outcome, int) else None,
    }
