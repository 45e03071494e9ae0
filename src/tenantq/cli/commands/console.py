"""``tenantq console``: a server on the terminal, live; or one look at all tenants, for scripts."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import duration
from tenantq.cli.output import Table, json_option, print_json, print_table
from tenantq.console.reader import Reader
from tenantq.errors import Unavailable
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from tenantq.console.overview import TenantLine
    from tenantq.console.reader import Snapshot

_REFRESH_MS_MIN: Final = 500
_REFRESH_MS_MAX: Final = 3_600_000
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--refresh", "refresh_ms", type=duration, default="2s", show_default=True, help="How often to look.")
@click.option("--once", is_flag=True, help="Print one look at all tenants as a table, and end.")
@json_option
@connected
def console(connection: ServerConnection, *, refresh_ms: int, once: bool, as_json: bool) -> int:
    """Watch and manage a server on the terminal: tenants, queues, security.

    A platform administrator sees all tenants, any other credential its own. What it may not see is "not granted". Press ? for
    the keys, q to quit. Needs tenantq[console], but for --once and --json.
    """
    if not _REFRESH_MS_MIN <= refresh_ms <= _REFRESH_MS_MAX:
        raise click.UsageError("--refresh must be between 500ms and 1h.")
    if once or as_json:
        _show(asyncio.run(_look(connection)), as_json=as_json)
        return exit_codes.OK
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on stderr
        raise click.UsageError("The console needs a terminal; in scripts use 'tenantq console --json' or --once.")
    return asyncio.run(_run(connection, refresh_ms))


async def _look(connection: ServerConnection) -> Snapshot:
    async with connection.async_client() as client:
        return await Reader(client, SystemClock(), connection.target.tenant).look(None)


async def _run(connection: ServerConnection, refresh_ms: int) -> int:
    """Run the console until it is left, or until a signal comes; the terminal is as before in any case."""
    try:
        from tenantq.console.app import ConsoleApp  # noqa: PLC0415  # needs Textual, which is an extra
    except ImportError as error:
        raise Unavailable("the console needs Textual: install tenantq[console]; --once works without") from error
    target = connection.target
    async with connection.async_client() as client:
        app = ConsoleApp(client, url=target.url, tenant=target.tenant, refresh_ms=refresh_ms)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, app.exit, None, exit_codes.SIGNAL + number)
        refused = await app.run_async()
    if refused is not None:
        raise refused
    return app.return_code or exit_codes.OK


def _show(look: Snapshot, *, as_json: bool) -> None:
    if as_json:
        print_json({"tenants": [_fields(line) for line in look.tenants], "all_tenants": look.everyone})
        return
    rows = [tuple(_fields(line).values()) for line in look.tenants]
    headings = [name.replace("_", " ") for name in _fields(look.tenants[0])] if look.tenants else []
    print_table(Table(headings, rows, "no tenants"))


def _fields(line: TenantLine) -> dict[str, Any]:
    """Return a tenant as scripts get it; null: not granted."""
    return {
        "name": line.name,
        "status": line.status,
        "on_hold": line.on_hold,
        "weight": line.weight,
        "quota_state": line.health,
        "backlog": line.backlog,
        "in_flight": line.in_flight,
        "dead": line.dead,
        "throttled_total": line.throttled,
        "stored_bytes": line.bytes,
        "queues": line.queues,
    }
