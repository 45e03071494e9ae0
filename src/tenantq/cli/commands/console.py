"""``tenantq console``: the live console, or one snapshot of all tenants for scripts."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import duration
from tenantq.cli.output import Table, json_option, print_json, print_table
from tenantq.console.reader import ConsoleReader, ConsoleSnapshot
from tenantq.errors import Unavailable
from tenantq.runtime.clock import SystemClock

_REFRESH_MS_MIN: Final = 500
_REFRESH_MS_MAX: Final = 3_600_000
_FIELDS: Final = {
    **{name: name for name in ("name", "status", "on_hold", "weight")},
    "quota_state": "health",
    **{name: name for name in ("backlog", "in_flight", "dead")},
    "throttled_total": "throttled",
    "stored_bytes": "bytes",
    "queues": "queues",
}
"""What scripts get of a tenant, and the attribute of ``TenantSummary``. None means not granted."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@click.command(cls=Command)
@click.option("--refresh", "refresh_ms", type=duration, default="2s", show_default=True, help="Refresh interval.")
@click.option("--once", is_flag=True, help="Print a table of all tenants and exit.")
@json_option
@connected
def console(connection: ServerConnection, *, refresh_ms: int, once: bool, as_json: bool) -> int:
    """Watch and manage tenants, queues and security in the terminal.

    A platform administrator sees all tenants; other credentials see their own. Missing permissions show as "not granted".
    Press ? for the keys, q to quit. Requires tenantq[console], except with --once or --json.
    """
    if not _REFRESH_MS_MIN <= refresh_ms <= _REFRESH_MS_MAX:
        raise click.UsageError("--refresh must be between 500ms and 1h.")
    if once or as_json:
        _show(asyncio.run(_read(connection)), as_json=as_json)
        return exit_codes.OK
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on stderr
        raise click.UsageError("The console requires a terminal. In scripts, use --json or --once.")
    return asyncio.run(_run(connection, refresh_ms))


async def _read(connection: ServerConnection) -> ConsoleSnapshot:
    async with connection.async_client() as client:
        return await ConsoleReader(client, SystemClock(), connection.target.tenant).read(None)


async def _run(connection: ServerConnection, refresh_ms: int) -> int:
    """Run the console until the user quits or a signal arrives. The terminal is restored in any case."""
    try:
        from tenantq.console.app import ConsoleApp  # noqa: PLC0415  # needs Textual, which is an extra
    except ImportError as error:
        raise Unavailable("the console requires Textual: install tenantq[console], or use --once") from error
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


def _show(snapshot: ConsoleSnapshot, *, as_json: bool) -> None:
    tenants = [{name: getattr(one, field) for name, field in _FIELDS.items()} for one in snapshot.tenants]
    if as_json:
        print_json({"tenants": tenants, "all_tenants": snapshot.everyone})
        return
    headings = [name.replace("_", " ") for name in _FIELDS]
    print_table(Table(headings, [tuple(one.values()) for one in tenants], "no tenants"))
