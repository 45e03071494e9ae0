"""``tenantq ack``, ``nack``, ``release`` and ``extend``: end or extend leases by their receipts."""

import sys
from typing import Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import duration
from tenantq.cli.output import Output
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid, TenantqError

_DONE: Final = {"ack": "acked", "nack": "nacked", "release": "released", "extend": "extended"}


def _settle(connection: ServerConnection, *, queue: str, receipts: tuple[str, ...], **settings: Any) -> Output:
    """Settle the receipts in the way that the name of the command says."""
    how: Any = click.get_current_context().info_name
    wanted = _read_receipts() if receipts == ("-",) else list(receipts)
    outcomes = list(zip(wanted, connection.queue(queue).settle(how, wanted, **settings), strict=True))
    failed = [(receipt, one) for receipt, one in outcomes if isinstance(one, TenantqError)]
    until = [one for _, one in outcomes if isinstance(one, int)]
    ends = f" until {show_time(max(until))}" if until else ""
    done = len(outcomes) - len(failed)
    return Output(
        {"results": [_item(receipt, one) for receipt, one in outcomes]},
        *([f"{_DONE[how]} {done}{ends}"] if done else []),
        notes=[f"tenantq: {receipt[:80]}: {one.message} [{one.code}]" for receipt, one in failed],
        code=exit_codes.exit_code(failed[0][1]) if failed else exit_codes.OK,
    )


def _read_receipts() -> list[str]:
    try:
        return sys.stdin.buffer.read().decode().split()
    except UnicodeDecodeError as error:
        raise Invalid("receipts: stdin is not valid UTF-8") from error


def _item(receipt: str, outcome: int | TenantqError | None) -> dict[str, Any]:
    error = outcome if isinstance(outcome, TenantqError) else None
    return {
        "receipt": receipt,
        "ok": error is None,
        "error": {"code": error.code, "detail": error.message} if error is not None else None,
        "lease_until": outcome if isinstance(outcome, int) else None,
    }


def _command(name: str, help: str, *own: Any) -> click.Command:
    """Return a command that settles receipts, with its own options."""
    receipts = click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
    text = f"{help}\n\nRECEIPT is printed by 'tenantq poll'; - reads receipts from stdin, one per line."
    return server_command(None, click.argument("queue"), receipts, *own, name=name, help=text)(_settle)


ack = _command("ack", "Ack leased messages: mark them as done.")
nack = _command(
    "nack",
    "Return failed messages for another attempt.",
    click.option("--delay", "delay_ms", type=duration, help="Delay before the next attempt.  [default: the queue's backoff]"),
    click.option("--reason", default="", metavar="TEXT", help="Reason for the failure, stored in the message's history."),
)  # fmt: skip
release = _command("release", "Return messages immediately, without using up an attempt.")
extend = _command(
    "extend",
    "Extend leases.",
    click.option("--lease", "lease_ms", type=duration, required=True, help="New lease time, counted from now."),
)
